package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestInstallFromWSL: a client of Windows starts the program in the distribution, and its file keeps the marks and the
// line ends of Windows.
func TestInstallFromWSL(t *testing.T) {
	dir := home(t)
	_, errs := sandlot(t, 2, "install", "cursor", "--windows", "--yes")
	says(t, errs, "runs in WSL")
	t.Setenv("WSL_DISTRO_NAME", "Ubuntu-24.04")
	t.Setenv("USER", "me")
	file := filepath.Join(dir, "mnt/c/mcp.json")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	before := "\xef\xbb\xbf{\r\n  \"mcpServers\": {\r\n    \"a\": {\"command\": \"C:\\\\a.exe\"}\r\n  }\r\n" +
		"}\r\n"
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	sandlot(t, 0, "install", "cursor", "--windows", "--file", file, "--yes")
	text, _ := os.ReadFile(file)
	if s := string(text); strings.Count(s, "\n") != strings.Count(s, "\r\n") ||
		!strings.HasPrefix(s, strings.TrimSuffix(before, "\r\n  }\r\n}\r\n")) {
		t.Errorf("%q", s)
	}
	self, _ := os.Executable()
	checkEntry(t, text, "wsl.exe", "--distribution", "Ubuntu-24.04", "--user", "me", "--exec", self, "stdio",
		"--state-dir", os.Getenv("SANDLOT_STATE_DIR"))
}

// TestInstallForWSL: on Windows, a client starts the program in the default distribution.
func TestInstallForWSL(t *testing.T) {
	dir := home(t)
	program := "#!/bin/sh\ncase \"$*\" in *--list*) echo Ubuntu ;; *) echo /usr/bin/sandlot ;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "wsl.exe"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, flag := range []string{"--wsl", "--wsl=Ubuntu"} {
		file := filepath.Join(t.TempDir(), "mcp.json")
		sandlot(t, 0, "install", "claude-desktop", flag, "--file", file, "--yes")
		text, _ := os.ReadFile(file)
		checkEntry(t, text, "wsl.exe", "--distribution", "Ubuntu", "--exec", "/usr/bin/sandlot", "stdio")
	}
	_, errs := sandlot(t, 2, "install", "cursor", "--wsl", "--url", "http://x/", "--yes")
	says(t, errs, "no URL")
}

// checkEntry checks the program and the arguments of the entry sandlot in a client's file.
func checkEntry(t *testing.T, text []byte, command string, args ...string) {
	t.Helper()
	var f struct {
		MCPServers struct {
			Sandlot struct {
				Command string
				Args    []string
			}
		}
	}
	err := json.Unmarshal([]byte(strings.TrimPrefix(string(text), "\xef\xbb\xbf")), &f)
	if got := f.MCPServers.Sandlot; err != nil || got.Command != command || !slices.Equal(got.Args, args) {
		t.Errorf("%v: %s %q, want %s %q", err, got.Command, got.Args, command, args)
	}
}

// TestStdioExplains: when no server can be started, the client's user is told why.
func TestStdioExplains(t *testing.T) {
	dir := home(t)
	t.Setenv("SANDLOT_RUNTIME", "nonsense")
	t.Setenv("HOME", dir)
	in := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"1"}}}
`
	read, out := io.Pipe()
	input, write := io.Pipe()
	var errs strings.Builder
	ended := make(chan int)
	go func() { ended <- Main([]string{"stdio"}, input, out, &errs) }()
	go io.WriteString(write, in)
	answers, lines := map[float64]string{}, bufio.NewReader(read)
	for len(answers) < 3 {
		line, err := lines.ReadString('\n')
		var a struct{ ID float64 }
		if err = errors.Join(err, json.Unmarshal([]byte(line), &a)); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		answers[a.ID] = line
	}
	write.Close()
	if code := <-ended; code != 1 {
		t.Errorf("exit code %d", code)
	}
	says(t, errs.String(), "nonsense", "gvisor, docker")
	says(t, answers[1], `"instructions":"Sandlot could not start`, "nonsense")
	says(t, answers[2], `"name":"execute_code"`)
	says(t, answers[3], `"isError":true`, "nonsense")
}
