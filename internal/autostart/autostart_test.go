package autostart

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// oddWords has the letters that a format of some system takes for something else.
var oddWords = []string{"plain", "", "two words", `a "quoted" word`, "it's", `C:\dir\`, `\\server\share\`, `a\"b`,
	`ends with \\`, `ends "\`, "$HOME", "${HOME}", "$$", "100%", "%h", "%%", "a&b<c>d", "]]>", "--", "-->", "a;b#c",
	"{x}", "é 日本", "🙂", "`x`", "!x", "*?"}

// moreWords are words with line breaks.
var moreWords = []string{"tab\there", "two\nlines", "return\rhere", "line's end\n", "\n", `\n`, "\\\n"}

// TestUnitWords: systemd reads back each word as it was, by its rules for quotes (systemd.syntax(7),
// systemd.service(5)). That it is so in truth is shown by TestService of the whole program.
func TestUnitWords(t *testing.T) {
	for _, word := range append(append([]string{"\x01\x7f"}, moreWords...), oddWords...) {
		line := unitDollars(unitWord(word))
		if strings.ContainsAny(line, "\n\r") {
			t.Errorf("%q becomes more than a line: %q", word, line)
		}
		if got := readUnitWord(t, line); got != word {
			t.Errorf("%q is read as %q: %s", word, got, line)
		}
	}
}

// readUnitWord reads a word of a command as systemd does.
func readUnitWord(t *testing.T, line string) string {
	t.Helper()
	if inner, quoted := strings.CutPrefix(line, `"`); quoted {
		if !strings.HasSuffix(inner, `"`) {
			t.Fatalf("no end: %s", line)
		}
		line = inner[:len(inner)-1]
	} else if strings.ContainsAny(line, " \t\"'\\") {
		t.Fatalf("no quotes: %s", line)
	}
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		rest := line[i:]
		switch {
		case strings.HasPrefix(rest, `\n`):
			b.WriteByte('\n')
			i++
		case strings.HasPrefix(rest, `\x`):
			var c byte
			if _, err := fmt.Sscanf(rest[2:4], "%02x", &c); err != nil {
				t.Fatal(err)
			}
			b.WriteByte(c)
			i += 3
		case strings.HasPrefix(rest, `\\`), strings.HasPrefix(rest, `\"`), strings.HasPrefix(rest, "$$"),
			strings.HasPrefix(rest, "%%"):
			b.WriteByte(rest[1])
			i++
		case strings.ContainsRune(`\"$%`, rune(rest[0])):
			t.Fatalf("%q stands alone in %s", rest[0], line)
		default:
			b.WriteByte(rest[0])
		}
	}
	return b.String()
}

// TestUnitVerified: systemd finds no fault with a unit, whatever its words are.
func TestUnitVerified(t *testing.T) {
	dir := t.TempDir()
	for i, folder := range []string{"plain", "with space", "100%h $HOME", `a "b" \n`, "two\nlines"} {
		program := filepath.Join(dir, folder, "sandlot")
		if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o755),
			os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		text, err := unit(Server{Program: program, Args: slices.Concat(oddWords, moreWords),
			Variables: map[string]string{"PATH": "/bin:/a b:/100%", "X": "two\nlines \"and\" $quotes\\"}})
		if err != nil {
			t.Fatal(err)
		}
		if out := verify(t, dir, text); out != "" {
			t.Errorf("%d: %s\n%s", i, out, text)
		}
		if out := verify(t, dir, strings.Replace(text, program, "/no/such/program", 1)); i == 0 && out == "" {
			t.Error("systemd looks at nothing")
		}
	}
}

// verify returns what systemd complains about.
func verify(t *testing.T, dir, text string) (complaints string) {
	t.Helper()
	path := filepath.Join(dir, unitName)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("systemd-analyze", "--user", "verify", path)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "HOME="+dir)
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, unitName) {
			complaints += line
		}
	}
	if err != nil && complaints == "" && !strings.Contains(string(out), "unit") {
		t.Fatalf("%v\n%s", err, out)
	}
	return complaints
}

// A value of a property list.
type value struct {
	kind string
	text string
	list []value // of an array; of a dict the keys and values in turn
}

// readPlist reads a property list by the rules of Apple's DTD: the elements that there are, and what each has.
func readPlist(t *testing.T, text string) map[string]value {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	var read func(start xml.StartElement) value
	read = func(start xml.StartElement) value {
		v := value{kind: start.Name.Local}
		if !slices.Contains([]string{"plist", "array", "dict", "key", "string", "true", "false", "integer"}, v.kind) {
			t.Fatalf("the DTD has no <%s>", v.kind)
		}
		container := v.kind == "plist" || v.kind == "array" || v.kind == "dict"
		for {
			token, err := d.Token()
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			switch token := token.(type) {
			case xml.StartElement:
				if !container {
					t.Fatalf("<%s> in <%s>", token.Name.Local, v.kind)
				}
				inner := read(token)
				if v.kind == "dict" && (len(v.list)%2 == 0) != (inner.kind == "key") {
					t.Fatalf("a dict has keys and values in turn, and not %v after %v", inner, v.list)
				}
				v.list = append(v.list, inner)
			case xml.CharData:
				if container && strings.TrimSpace(string(token)) != "" {
					t.Fatalf("text in <%s>: %q", v.kind, token)
				}
				if !container {
					v.text += string(token)
				}
			case xml.EndElement:
				return v
			}
		}
	}
	for {
		token, err := d.Token()
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		root := read(start)
		for token, err = d.Token(); !errors.Is(err, io.EOF); token, err = d.Token() {
			if _, more := token.(xml.StartElement); err != nil || more {
				t.Fatalf("after the list: %v %v", token, err)
			}
		}
		if root.kind != "plist" || len(root.list) != 1 || root.list[0].kind != "dict" {
			t.Fatalf("%+v", root)
		}
		return root.list[0].dict()
	}
}

func (v value) dict() map[string]value {
	all := map[string]value{}
	for i := 0; i+1 < len(v.list); i += 2 {
		all[v.list[i].text] = v.list[i+1]
	}
	return all
}

func (v value) texts() (all []string) {
	for _, one := range v.list {
		all = append(all, one.text)
	}
	return all
}

// TestPlist: a property list is one by Apple's rules, and has each word as it was.
func TestPlist(t *testing.T) {
	words := slices.Concat(oddWords, moreWords)
	variables := map[string]string{"PATH": "/bin:/a & b", "A": "<\"'>\n"}
	text, err := plist(Server{Program: "/a b/<sand&lot>", Args: words, Variables: variables}, "/Users/a & b", "/log<>")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE plist PUBLIC \"-//Apple//DTD "+
		"PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">\n") {
		t.Error(text)
	}
	list := readPlist(t, text)
	kinds := map[string]string{}
	for name, v := range list {
		kinds[name] = v.kind
	}
	// As in launchd.plist(5).
	if want := map[string]string{"Label": "string", "ProgramArguments": "array", "EnvironmentVariables": "dict",
		"WorkingDirectory": "string", "RunAtLoad": "true", "KeepAlive": "dict", "ExitTimeOut": "integer",
		"ProcessType": "string", "StandardOutPath": "string", "StandardErrorPath": "string"}; !maps.Equal(kinds, want) {
		t.Errorf("%v", kinds)
	}
	if got := list["ProgramArguments"].texts(); !slices.Equal(got, append([]string{"/a b/<sand&lot>"}, words...)) {
		t.Errorf("%q", got)
	}
	got := map[string]string{}
	for name, v := range list["EnvironmentVariables"].dict() {
		got[name] = v.text
	}
	if !maps.Equal(got, variables) || list["WorkingDirectory"].text != "/Users/a & b" ||
		list["StandardErrorPath"].text != "/log<>" || list["KeepAlive"].dict()["SuccessfulExit"].kind != "false" {
		t.Errorf("%v %v", got, list)
	}
	for _, bad := range []string{"\x01", "\xff", "\x00", "\ufffe"} {
		if text, err := plist(Server{Program: "/p", Args: []string{bad}}, "/", "/"); err == nil {
			t.Errorf("%q is in\n%s", bad, text)
		}
	}
}

// systems returns the systems, each with a home folder of the test, whose programs are run.
func systems(t *testing.T, run Run) []System {
	t.Helper()
	var all []System
	for _, name := range []string{"linux", "darwin"} {
		home := filepath.Join(t.TempDir(), "a & b")
		s, err := New(Machine{System: name, Account: Account{ID: "501", Name: "me", Home: home},
			Getenv: func(string) string { return "" }, Run: run})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// TestRecorded: a definition says which server it starts, and whether somebody has changed it.
func TestRecorded(t *testing.T) {
	for _, system := range systems(t, nil) {
		server := Server{Program: "/a b/--sandlot--", Args: slices.Clone(oddWords),
			Variables: map[string]string{"PATH": "/bin", "A": "--"}}
		text, err := system.Definition(server)
		if err != nil {
			t.Fatal(err)
		}
		if got, found := Recorded(text); !found || !reflect.DeepEqual(got, server) {
			t.Errorf("%s: %+v, %v", system.Name(), got, found)
		}
		if Edited(system, text) {
			t.Errorf("%s: it is as it was made", system.Name())
		}
		for _, changed := range []string{strings.Replace(text, "--sandlot--", "--other--", 1), "",
			strings.Replace(text, "true", "false", 1) + "\n[Service]\n", "[Service]\nExecStart=/bin/true\n"} {
			if changed != text && !Edited(system, changed) {
				t.Errorf("%s: it was changed\n%s", system.Name(), changed)
			}
		}
		for _, bad := range []string{"\x00", "\xff"} {
			if text, err := system.Definition(Server{Program: "/p", Args: []string{bad}}); err == nil {
				t.Errorf("%q is in\n%s", bad, text)
			}
		}
	}
}

// TestNew: users and systems that have no service of their own learn why.
func TestNew(t *testing.T) {
	none := func(string) string { return "" }
	for _, tt := range []struct {
		m    Machine
		want string
	}{
		{Machine{System: "linux", Account: Account{ID: "0", Home: "/root"}}, "deploy.md"},
		{Machine{System: "darwin", Account: Account{ID: "0", Home: "/root"}}, "without sudo"},
		{Machine{System: "windows", Account: Account{ID: "S", Home: "/"}}, "in WSL"},
		{Machine{System: "plan9", Account: Account{ID: "1", Home: "/"}}, "plan9"},
		{Machine{System: "linux", Account: Account{ID: "1"}}, "HOME"},
	} {
		tt.m.Getenv = none
		if _, err := New(tt.m); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt.m.Account, err)
		}
	}
	m := Machine{System: "linux", Account: Account{ID: "1", Home: "/home/me"}, Getenv: func(name string) string {
		return map[string]string{"XDG_CONFIG_HOME": "/config"}[name]
	}}
	if s, err := New(m); err != nil || s.Path() != "/config/systemd/user/sandlot.service" {
		t.Errorf("%v %v", s, err)
	}
}

// TestBackUp: no copy replaces another.
func TestBackUp(t *testing.T) {
	system := systems(t, nil)[0]
	now := time.Date(2026, 11, 21, 14, 31, 5, 0, time.UTC)
	for i, end := range []string{"20261121-143105", "20261121-143105-1", "20261121-143105-2"} {
		path, err := BackUp(system, fmt.Sprint(i), now)
		if err != nil || path != system.Path()+".bak-"+end {
			t.Errorf("%s, %v", path, err)
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != fmt.Sprint(i) {
			t.Errorf("%q, %v", text, err)
		}
	}
}

// fakeSystem answers in the place of launchctl, which is not on Linux.
type fakeSystem struct {
	t       *testing.T
	calls   []string
	loaded  bool
	running bool
	no      string
}

func (f *fakeSystem) run(_ context.Context, _ []string, program string, args ...string) (string, error) {
	line := program + " " + strings.Join(args, " ")
	f.calls = append(f.calls, line)
	if f.no != "" && strings.Contains(line, f.no) {
		return "it says no", errors.New("exit status 1")
	}
	switch {
	case program == "launchctl" && args[0] == "print" && strings.Contains(args[1], label):
		if !f.loaded {
			return "Could not find service", errors.New("exit status 113")
		}
		if f.running {
			return "gui/501/" + label + " = {\n\tstate = running\n\n\tpid = 77\n\tlast exit code = (never exited)\n" +
				"\tenvironment = {\n\t\tstate = no\n\t}\n}\n", nil
		}
		return "x = {\n\tstate = not running\n\tlast exit code = 1\n}\n", nil
	case strings.HasPrefix(line, "launchctl bootstrap gui/501 "):
		f.loaded, f.running = true, true
	case line == "launchctl bootout gui/501/"+label:
		f.loaded, f.running = false, false
	case line == "launchctl kickstart gui/501/"+label:
		f.running = true
	case line == "launchctl kill SIGTERM gui/501/"+label:
		f.running = false
	case line == "launchctl print-disabled gui/501":
		return "disabled services = {\n\t\"com.example\" => disabled\n\t\"" + label + "\" => enabled\n}\n", nil
	case line == "launchctl print gui/501", line == "launchctl enable gui/501/"+label:
	default:
		f.t.Errorf("unknown: %s", line)
	}
	return "", nil
}

// TestLifeElsewhere: a service of macOS is installed, installed again, stopped, started and removed.
func TestLifeElsewhere(t *testing.T) {
	f := &fakeSystem{t: t}
	system := systems(t, f.run)[1]
	ctx := t.Context()
	text, err := system.Definition(Server{Program: "/p", Args: []string{"serve"}})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error, running bool, pid int) {
		t.Helper()
		state, stateErr := system.State(ctx)
		if err := errors.Join(err, stateErr); err != nil || state.Running != running ||
			state.Ended == running || running && state.PID != pid {
			t.Errorf("%s: %v, %+v\n%q", what, err, state, f.calls)
		}
	}
	const pid = 77
	if err := system.Check(ctx); err != nil {
		t.Error(err)
	}
	if old, err := system.Installed(ctx); err != nil || old != "" {
		t.Errorf("%q, %v", old, err)
	}
	check("nothing", nil, false, 0)
	check("install", system.Apply(ctx, text), true, pid)
	if now, err := system.Installed(ctx); err != nil || now != text {
		t.Errorf("%q, %v", now, err)
	}
	check("install again", system.Apply(ctx, text), true, pid)
	check("stop", system.Stop(ctx), false, 0)
	check("stop again", system.Stop(ctx), false, 0)
	check("start", system.Start(ctx), true, pid)
	if state, _ := system.State(ctx); !state.AtLogIn {
		t.Errorf("%+v", state)
	}
	check("remove", system.Remove(ctx), false, 0)
	if old, err := system.Installed(ctx); err != nil || old != "" {
		t.Errorf("%q, %v", old, err)
	}
	if _, err := os.Stat(system.Path()); err == nil {
		t.Error("its file is left")
	}
	check("install", system.Apply(ctx, text), true, pid)
	f.no = "bootstrap"
	if err := system.Apply(ctx, text); err == nil || !strings.Contains(err.Error(), "it says no") ||
		!strings.Contains(err.Error(), f.no) {
		t.Errorf("%v", err)
	}
}

// TestNoScreen: without a session on the screen launchd has no place for an agent.
func TestNoScreen(t *testing.T) {
	f := &fakeSystem{t: t, no: "print gui/501"}
	if err := systems(t, f.run)[1].Check(t.Context()); err == nil || !strings.Contains(err.Error(), "log in there") {
		t.Error(err)
	}
}
