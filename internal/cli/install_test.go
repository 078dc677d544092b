package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"sandlot/internal/app"
	"sandlot/internal/clientconfig"
)

// home is a user's, with nothing of this machine in it.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"SANDLOT_SERVER", "SANDLOT_TOKEN", "SANDLOT_CONFIG", "XDG_CONFIG_HOME",
		"CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "WSL_DISTRO_NAME", "SANDLOT_PORT", "SANDLOT_HOST", "SANDLOT_AUTH"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", dir)
	t.Setenv("SANDLOT_STATE_DIR", filepath.Join(dir, "state"))
	return dir
}

func sandlot(t *testing.T, want int, args ...string) (out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	if code := Main(args, strings.NewReader(""), &o, &e); code != want {
		t.Fatalf("sandlot %q: exit code %d, want %d\n%s%s", args, code, want, o.String(), e.String())
	}
	return o.String(), e.String()
}

func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q is not in\n%s", w, text)
		}
	}
}

// runs makes the state folder look as if its server ran, at a port that no setting has: its socket says so.
func runs(t *testing.T) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	dir := os.Getenv("SANDLOT_STATE_DIR")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	owner, err := net.Listen("unix", app.SocketPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			t.Errorf("the command asks for %s", r.URL)
		}
		fmt.Fprintf(w, `{"status":"ok","address":"http://localhost:%s/mcp"}`, port)
	})}
	go s.Serve(owner)
	t.Cleanup(func() { s.Close() })
	return port
}

// Each client, with its usual file: shown, written, there, and not written again.
func TestInstall(t *testing.T) {
	for client, file := range map[string]string{
		"claude-desktop": ".config/Claude/claude_desktop_config.json", "claude-code": ".claude.json",
		"cursor": ".cursor/mcp.json", "vscode": ".config/Code/User/mcp.json",
		"crush": ".config/crush/crush.json", "kiro": ".kiro/settings/mcp.json",
		"windsurf": ".codeium/windsurf/mcp_config.json", "gemini": ".gemini/settings.json",
		"copilot": ".copilot/mcp-config.json", "qwen": ".qwen/settings.json", "zed": ".config/zed/settings.json",
		"lm-studio": ".lmstudio/mcp.json", "jetbrains": ".junie/mcp/mcp.json",
		"roo": ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json",
	} {
		t.Run(client, func(t *testing.T) {
			path := filepath.Join(home(t), file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("{\n  // mine\n  \"theme\": \"dark\"\n}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			out, _ := sandlot(t, 0, "install", client, "--dry-run")
			says(t, out, "--- "+path, "+++ "+path, `+    "sandlot": {`)
			if text, _ := os.ReadFile(path); strings.Contains(string(text), "sandlot") {
				t.Fatal("a dry run writes")
			}
			out, _ = sandlot(t, 0, "install", client, "--yes")
			says(t, out, path+" is written", path+".bak-")
			text, _ := os.ReadFile(path)
			self, _ := os.Executable() // no server runs: the client starts one
			says(t, string(text), "// mine", `"theme": "dark"`, `"command": "`+self+`"`, `"stdio"`, `"--state-dir"`)
			out, _ = sandlot(t, 0, "install", client, "--yes")
			says(t, out, "nothing to do")
			if again, _ := os.ReadFile(path); !bytes.Equal(text, again) {
				t.Error("a second time it is written again")
			}
			out, _ = sandlot(t, 0, "install", "--list")
			says(t, out, "installed  "+path)
			out, _ = sandlot(t, 0, "uninstall", client, "--dry-run")
			says(t, out, `-    "sandlot": {`)
			out, _ = sandlot(t, 0, "uninstall", client, "--yes")
			says(t, out, path+" is written", path+".bak-")
			if text, _ := os.ReadFile(path); strings.Contains(string(text), "sandlot") || !strings.Contains(string(text), "// mine") {
				t.Errorf("left: %s", text)
			}
			out, _ = sandlot(t, 0, "uninstall", client, "--yes")
			says(t, out, "nothing to do")
		})
	}
}

func TestInstallElsewhere(t *testing.T) {
	dir := home(t)
	port := runs(t)
	file := filepath.Join(dir, "deep", "mcp.json")
	out, _ := sandlot(t, 0, "install", "cursor", "--stdio", "--dry-run")
	says(t, out, `"stdio"`)
	_, errs := sandlot(t, 0, "install", "cursor", "--file", file, "--name", "box", "--yes")
	says(t, errs, "is Cursor installed for this user?")
	text, _ := os.ReadFile(file)
	says(t, string(text), `"box"`, "http://localhost:"+port+"/mcp")
	out, _ = sandlot(t, 0, "install", "cursor", "--file", file, "--url", "https://sandlot.example.com", "--token-env",
		"TOK", "--yes")
	says(t, out, `"Authorization": "Bearer ${env:TOK}"`, "https://sandlot.example.com/mcp")
	out, _ = sandlot(t, 0, "install", "cursor", "--file", file, "--token", "s3cret-s3cret", "--yes")
	says(t, out, "Bearer [secret]")
	if text, _ = os.ReadFile(file); strings.Contains(out, "s3cret") ||
		!strings.Contains(string(text), "Bearer s3cret-s3cret") {
		t.Errorf("%s\n%s", out, text)
	}
	out, _ = sandlot(t, 0, "--server", "http://10.1.2.3:8000/", "install", "claude-desktop", "--file", file, "--token",
		"s3cret-s3cret", "--yes")
	says(t, out, `"SANDLOT_SERVER": "http://10.1.2.3:8000"`, `"SANDLOT_TOKEN": "[secret]"`)
}

// A client on the server's machine needs no way around: public_url is for others.
func TestInstallBesideAProxy(t *testing.T) {
	home(t)
	port := runs(t)
	t.Setenv("SANDLOT_PUBLIC_URL", "https://sandlot.example.com")
	out, _ := sandlot(t, 0, "install", "cursor", "--dry-run")
	says(t, out, "http://localhost:"+port+"/mcp")
	if strings.Contains(out, "example.com") {
		t.Error(out)
	}
}

func TestInstallAsksForAToken(t *testing.T) {
	home(t)
	runs(t)
	_, errs := sandlot(t, 0, "install", "cursor", "--yes")
	if strings.Contains(errs, "token") {
		t.Error(errs)
	}
	token, _ := sandlot(t, 0, "token", "create", "--user", "alice")
	_, errs = sandlot(t, 0, "install", "cursor", "--dry-run")
	says(t, errs, "this server asks for a token")
	_, errs = sandlot(t, 0, "install", "cursor", "--token", strings.TrimSpace(token), "--yes")
	if errs != "" {
		t.Error(errs)
	}
}

func TestInstallRefuses(t *testing.T) {
	dir := home(t)
	for _, tt := range []struct {
		code int
		args []string
		word string
	}{
		{2, nil, "which client?"},
		{2, []string{"curser"}, `did you mean "cursor"?`},
		{2, []string{"a", "b"}, "too many arguments"},
		{2, []string{"cursor", "--name", "a b"}, "the name"},
		{2, []string{"cursor", "--url", "nowhere"}, "the URL"},
		{2, []string{"cursor", "--token", "a", "--token-env", "B"}, "not both"},
		{2, []string{"claude-desktop", "--token", "a"}, "needs no token"},
		{2, []string{"claude-desktop", "--url", "http://x/", "--token-env", "A"}, "puts no variables"},
		{1, []string{"cursor"}, "no terminal"},
		{1, []string{"cursor", "--check"}, "sandlot install cursor"},
	} {
		out, errs := sandlot(t, tt.code, append([]string{"install"}, tt.args...)...)
		says(t, errs, tt.word)
		if strings.Contains(out, "is written") {
			t.Errorf("%q: %s", tt.args, out)
		}
	}
	path := filepath.Join(dir, "mcp.json")
	if err := os.WriteFile(path, []byte("{ broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs := sandlot(t, 1, "install", "cursor", "--file", path, "--yes")
	says(t, errs, "is left as it is", "not JSON")
	if files, _ := filepath.Glob(filepath.Join(dir, "mcp.json*")); len(files) != 1 {
		t.Errorf("left behind: %q", files)
	}
}

func TestInstallList(t *testing.T) {
	dir := home(t)
	out, _ := sandlot(t, 0, "install", "--list")
	if n := strings.Count(out, "\n"); n != 19 || strings.Count(out, "no file") != 19 {
		t.Errorf("%s", out)
	}
	out, _ = sandlot(t, 0, "install", "--list", "--json")
	var rows []struct {
		Client, Name, File string
		Exists, Installed  bool
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 19 || rows[2].Client != "cursor" ||
		rows[2].File != filepath.Join(dir, ".cursor/mcp.json") || rows[2].Exists {
		t.Errorf("%v %+v", err, rows)
	}
}

// On a terminal it is asked, and only a yes is one.
func TestInstallOnATerminal(t *testing.T) {
	for answer, code := range map[string]int{"y\n": 0, "Yes\n": 0, "n\n": 1, "\n": 1, "maybe\n": 1} {
		path := filepath.Join(home(t), ".cursor", "mcp.json")
		terminal, in, err := pty.Open()
		if err != nil {
			t.Skip("no terminals here: ", err)
		}
		go func() {
			time.Sleep(50 * time.Millisecond)
			terminal.WriteString(answer)
		}()
		var out, errs bytes.Buffer
		if got := Main([]string{"install", "cursor"}, in, &out, &errs); got != code {
			t.Errorf("%q: exit code %d, want %d: %s", answer, got, code, errs.String())
		}
		says(t, errs.String(), "Write this to "+path+"? [y/N]")
		if _, err := os.Stat(path); (err == nil) != (code == 0) {
			t.Errorf("%q: %v", answer, err)
		}
		terminal.Close()
		in.Close()
	}
}

// A client that starts the program in any folder names the settings file, or its
// place is told: no other one counts.
func TestInstallNamesTheSettings(t *testing.T) {
	dir := home(t)
	file := filepath.Join(dir, "mine.yaml")
	if err := os.WriteFile(file, []byte("port: 9124\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	out, errs := sandlot(t, 0, "install", "claude-desktop", "--dry-run")
	if strings.Contains(out, "--config") {
		t.Error(out)
	}
	if strings.Contains(errs, "its settings are those of") {
		t.Errorf("of a file that is not there: %s", errs)
	}
	place := filepath.Join(dir, "state", "sandlot.yaml")
	if err := errors.Join(os.MkdirAll(filepath.Dir(place), 0o700), os.WriteFile(place, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, errs = sandlot(t, 0, "install", "claude-desktop", "--dry-run")
	says(t, errs, "its settings are those of", place)
	out, _ = sandlot(t, 0, "--config", "mine.yaml", "install", "claude-desktop", "--dry-run")
	says(t, out, `"--config"`, `"`+file+`"`)
	t.Setenv("SANDLOT_CONFIG", dir)
	out, _ = sandlot(t, 0, "install", "claude-desktop", "--dry-run")
	says(t, out, `"--config"`, `"`+dir+`/"`)
}

// Each client gets the view that is named, in its address or in the command that it starts.
func TestInstallTools(t *testing.T) {
	dir := home(t)
	for _, k := range clientconfig.All() {
		file := filepath.Join(dir, k.ID+".json")
		sandlot(t, 0, "install", k.ID, "--tools", "code", "--stdio", "--file", file, "--yes")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(strings.Fields(string(text)), "")
		if !strings.Contains(got, `"stdio","--tools","code"`) && !strings.Contains(got, "-stdio---tools-code") {
			t.Errorf("%s starts\n%s", k.ID, text)
		}
		sandlot(t, 0, "install", k.ID, "--tools", "search", "--url", "http://localhost:1/mcp", "--file", file, "--yes")
		text, err = os.ReadFile(file)
		got = strings.Join(strings.Fields(string(text)), "")
		if k.StdioOnly() { // its program gets both, each in its own way
			if !strings.Contains(got, `"stdio","--tools","search"`) ||
				!strings.Contains(got, `"SANDLOT_SERVER":"http://localhost:1"`) {
				t.Errorf("%s starts\n%s", k.ID, text)
			}
			continue
		}
		if err != nil || !strings.Contains(string(text), `http://localhost:1/mcp?tools=search`) {
			t.Errorf("%s connects to\n%s", k.ID, text)
		}
		out, _ := sandlot(t, 0, "install", k.ID, "--tools", "search", "--url", "http://localhost:1/mcp", "--file", file,
			"--yes")
		says(t, out, "nothing to do")
	}
	_, errs := sandlot(t, 2, "install", "cursor", "--tools", "some", "--dry-run")
	says(t, errs, "--tools must be one of all, search, code, auto")
}

// TestInstallFindsAnyPort: a server that takes connections of its owner alone has no address for a client, and the file
// that a client has is the one that is changed.
func TestInstallFindsAnyPort(t *testing.T) {
	dir := home(t)
	jsonc := filepath.Join(dir, ".config", "opencode", "opencode.jsonc")
	err := errors.Join(os.MkdirAll(filepath.Dir(jsonc), 0o700), os.WriteFile(jsonc, []byte("{ // mine\n}\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	out, _ := sandlot(t, 0, "install", "opencode", "--yes")
	says(t, out, jsonc+" is written", `"local"`)
	port := runs(t)
	out, _ = sandlot(t, 0, "install", "opencode", "--yes")
	says(t, out, jsonc+" is written", `"remote"`, "http://localhost:"+port+"/mcp")
	out, _ = sandlot(t, 0, "install", "--list")
	says(t, out, "installed  "+jsonc)
}
