package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sandlot/internal/config"
)

// The start tells clients the address that they have for the server.
func TestWelcome(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8123}
	c := config.Default()
	plain := connectHelp(c, at, false)
	if n := strings.Count(plain, "http://localhost:8123/mcp"); n != 5 || strings.Contains(plain, "public_url") ||
		strings.Contains(plain, "TOKEN") {
		t.Errorf("%d times:\n%s", n, plain)
	}
	c.Server.Host, c.Server.PublicURL = "0.0.0.0", "https://sandlot.example.com/box"
	public := connectHelp(c, at, true)
	says(t, public, "is at https://sandlot.example.com/box/mcp (public_url), and listens on 127.0.0.1:8123\n",
		"claude mcp add --transport http sandlot https://sandlot.example.com/box/mcp --header")
	if n := strings.Count(public, "https://sandlot.example.com/box/mcp"); n != 5 ||
		strings.Contains(public, "http://") {
		t.Errorf("%d times:\n%s", n, public)
	}
}

// A word that is no command of a group is wrong usage, with the nearest one.
func TestUnknownCommands(t *testing.T) {
	for _, tt := range []struct {
		args []string
		near string
	}{
		{[]string{"mcp", "lst"}, "list"}, {[]string{"secret", "sett"}, "set"}, {[]string{"token", "creat"}, "create"},
		{[]string{"network", "allw"}, "allow"}, {[]string{"ports", "expos"}, "expose"},
		{[]string{"sessions", "stp"}, "stop"},
		{[]string{"network", "NO-SUCH"}, ""}, {[]string{"mcp", "NO-SUCH"}, ""}, {[]string{"token", "no-such", "x"}, ""},
	} {
		var out, errs bytes.Buffer
		if code := Main(tt.args, strings.NewReader(""), &out, &errs); code != 2 || out.Len() > 0 ||
			!strings.Contains(errs.String(), strconv.Quote(tt.args[1])) ||
			!strings.Contains(errs.String(), cmp.Or(tt.near, "its commands are")) ||
			strings.Contains(errs.String(), "did you mean "+strconv.Quote(tt.near)) != (tt.near != "") {
			t.Errorf("%v: %d %s%s", tt.args, code, out.String(), errs.String())
		}
	}
	var out bytes.Buffer
	if code := Main([]string{"mcp"}, strings.NewReader(""), &out, &out); code != 0 ||
		!strings.Contains(out.String(), "Available Commands") {
		t.Errorf("mcp alone: %d %s", code, out.String())
	}
}

// Too few words, or too many, are wrong usage in every command, and it says how it is
// used.
func TestCountOfArguments(t *testing.T) {
	for _, args := range [][]string{{"mcp", "prompt", "x"}, {"mcp", "read", "x"}, {"mcp", "logs"}, {"token", "revoke"},
		{"secret", "remove"}, {"forward", "x"}, {"network", "mode"}} {
		var out, errs bytes.Buffer
		if code := Main(args, strings.NewReader(""), &out, &errs); code != 2 ||
			!strings.Contains(errs.String(), "`sandlot "+strings.Join(args[:len(args)-1], " ")) {
			t.Errorf("%v: %d %s%s", args, code, out.String(), errs.String())
		}
	}
}

// What the doctor says, for programs.
func TestDoctorJSON(t *testing.T) {
	t.Setenv("SANDLOT_PORT", "none")
	var out, errs bytes.Buffer
	code := Main([]string{"doctor", "--json", "--state-dir", t.TempDir()}, strings.NewReader(""), &out, &errs)
	var said struct {
		OK     bool
		Checks []struct {
			Name, Detail string
			OK           bool
		}
	}
	if err := json.Unmarshal(out.Bytes(), &said); err != nil || code != 1 || said.OK || len(said.Checks) != 1 ||
		said.Checks[0].Name != "settings" || said.Checks[0].OK ||
		!strings.Contains(said.Checks[0].Detail, "SANDLOT_PORT") {
		t.Errorf("%d %v %s%s", code, err, out.String(), errs.String())
	}
}

// TestDoctorSaysWhy: the doctor says itself why its sandbox does not boot.
func TestDoctorSaysWhy(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDLOT_RUNSC", filepath.Join(bin, "sandlot-runsc"))
	t.Setenv("SANDLOT_AGENT", "/bin/false")
	var out, errs bytes.Buffer
	code := Main([]string{"doctor", "--state-dir", t.TempDir()}, strings.NewReader(""), &out, &errs)
	if code != 1 || !strings.Contains(out.String(), "FAIL  boot") ||
		!strings.Contains(out.String(), "sandbox is gone") ||
		strings.Contains(out.String(), "sandlot doctor") || strings.Contains(out.String(), "log says why") {
		t.Errorf("%d %s%s", code, out.String(), errs.String())
	}
}

// TestLogFile: a server that cannot start says so in its log file, too.
func TestLogFile(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "logs", "sandlot.log")
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDLOT_RUNSC", filepath.Join(bin, "sandlot-runsc"))
	t.Setenv("SANDLOT_AGENT", filepath.Join(bin, "sandlot-agent"))
	var out, errs bytes.Buffer
	code := Main([]string{"serve", "--state-dir", dir, "--host", "192.0.2.1", "--log-file", log}, strings.NewReader(""),
		&out, &errs)
	text, err := os.ReadFile(log)
	if err != nil || code != 1 || !strings.Contains(string(text), `msg="the server has ended"`) ||
		!strings.Contains(string(text), "there is no token yet") {
		t.Errorf("%d, %v, %s\n%s", code, err, text, errs.String())
	}
}

// What a newcomer tries: a list by the name that other groups have for it, a word that is no command, a wrong count of
// arguments.
func TestNewcomersCommands(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
		not  string
	}{
		{[]string{"sesions"}, `unknown command "sesions"; did you mean "sessions"?`, "Usage"},
		{[]string{"frobnicate"}, "unknown command \"frobnicate\"; see `sandlot --help`", "Usage"},
		{[]string{"exec"}, "an argument is missing; it is `sandlot exec [flags] -- COMMAND [ARG...]`", "arg(s)"},
		{[]string{"forward", "home"}, "an argument is missing; it is `sandlot forward SESSION PORT [flags]`", "arg(s)"},
		{[]string{"forward", "home", "1", "2"}, "too many arguments; it is", "arg(s)"},
		{[]string{"shell", "home", "other"}, "too many arguments; it is `sandlot shell [SESSION]", "arg(s)"},
		{[]string{"ps", "all"}, "it does not take the argument \"all\"; it is `sandlot ps", "unknown command"},
		{[]string{"shell", "--session", "a", "b"}, "named twice", "arg(s)"},
	} {
		var out, errs bytes.Buffer
		if code := Main(tt.args, strings.NewReader(""), &out, &errs); code != 2 || !strings.Contains(errs.String(), tt.want) ||
			strings.Contains(out.String()+errs.String(), tt.not) {
			t.Errorf("%v: %d %s%s, want %q", tt.args, code, out.String(), errs.String(), tt.want)
		}
	}
	for _, group := range []string{"sessions", "ports", "network"} {
		var out, errs bytes.Buffer
		if code := Main([]string{group, "list", "--help"}, strings.NewReader(""), &out, &errs); code != 0 ||
			!strings.Contains(out.String(), "sandlot "+group+" list [flags]") || !strings.Contains(out.String(), "--json") {
			t.Errorf("%s list: %d %s%s", group, code, out.String(), errs.String())
		}
	}
}
