package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// uncheckable are the operations that Schemathesis does not call:
//   - streams on upgraded connections, and those of events and output, which do not end: TestTheClientIsKilled,
//     TestPortsForward, TestEvents, TestFaces and TestLiveTerminal have them;
//   - the log-in and log-out of a browser, whose answers depend on its cookie: TestConsole has them;
//   - tools that run any text as a program, for as long as the call says, and those that start or
//     install third-party servers, which reach the network: the tests of the tools have them;
//   - builds of templates, whose images come from a registry: TestTemplates has them.
const uncheckable = `^/v1/(stdio|events|live)$|^/console/log|/exec$|/ports/|/output$|/build$|` +
	`^/v1/tools/(execute_|sandbox_shell_exec|connect_external|auto_install|restart_external)`

// uncheckableIDs are more of them, of which the path has another method: images come from registries, and each checkup
// boots a sandbox. TestOperator has them.
var uncheckableIDs = []string{"--exclude-operation-id", "image.pull", "--exclude-operation-id", "doctor.run"}

// The HTTP API is what its description says: Schemathesis makes requests of the description, some
// that match it and some that do not, and checks the answers.
func TestAPIDescription(t *testing.T) {
	t.Parallel()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v0.1/servers" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"servers": [{"server": {"name": "io.github.someone/weather", "description": "Says the weather",
			"version": "1.2.0", "remotes": [{"type": "streamable-http", "url": "https://weather.example/mcp"}]}}]}`)
	}))
	defer registry.Close()
	s := startConfigured(t, "mcp_registries: [\"test="+registry.URL+"\"]\n")
	operator := s.token("ann", "--role", "operator", "--role", "metrics")
	if status, _, text := s.request("POST", "/v1/tools/execute_command", strings.NewReader(`{"command": "echo > f"}`),
		"Authorization", "Bearer "+operator); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}

	for _, run := range []struct {
		name  string
		least int // operations
		args  []string
	}{
		{"everything", 35, []string{"--phases", "examples,coverage,fuzzing,stateful", "-n", "12",
			"--exclude-path-regex", uncheckable}},
		{"the home", 6, []string{"--phases", "coverage,fuzzing", "-n", "12", "--include-path-regex",
			`^/v1/sessions/\{id\}`, "--exclude-path-regex", uncheckable}},
	} {
		config, err := os.ReadFile("testdata/schemathesis.toml")
		if err != nil {
			t.Fatal(err)
		}
		text := string(config)
		if run.name == "the home" {
			text = "parameters = { \"path.id\" = \"home\" }\n" + text
		}
		code, out := s.schemathesis(text, s.URL+"/v1/openapi.json", operator, append(run.args, uncheckableIDs...)...)
		tested := regexp.MustCompile(`Tested: (\d+)`).FindStringSubmatch(out)
		if code != 0 || tested == nil {
			t.Fatalf("%s: Schemathesis ended with %d\n%s", run.name, code, out)
		}
		if n, _ := strconv.Atoi(tested[1]); n < run.least {
			t.Errorf("%s: only %d operations were tested\n%s", run.name, n, out)
		}
	}
	if log := s.log.String(); strings.Contains(log, "panic") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the server's log:\n%s", log)
	}
	s.removeSnapshots(operator)

	// A description that is not true is found out.
	_, _, text := s.request("GET", "/v1/openapi.json", nil)
	wrong := strings.Replace(text, `"Readiness":{`, `"Readiness":{"minProperties":9,`, 1)
	if wrong == text || !json.Valid([]byte(wrong)) {
		t.Fatal("the description has no Readiness")
	}
	file := filepath.Join(t.TempDir(), "wrong.json")
	if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := s.schemathesis("", file, operator, "--url", s.URL, "-n", "2", "--include-path", "/healthz")
	if code != 1 || !strings.Contains(out, "violates schema") {
		t.Errorf("Schemathesis finds nothing wrong: %d\n%s", code, out)
	}
}

// removeSnapshots removes all snapshots of a token's owner, which would stay.
func (s *server) removeSnapshots(token string) {
	s.t.Helper()
	_, _, text := s.request("GET", "/v1/snapshots", nil, "Authorization", "Bearer "+token)
	var list struct {
		Snapshots []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		s.t.Fatalf("%v: %s", err, text)
	}
	for _, one := range list.Snapshots {
		status, _, text := s.request("DELETE", "/v1/snapshots/"+one.Name, nil, "Authorization", "Bearer "+token)
		if status != http.StatusNoContent {
			s.t.Errorf("removing the snapshot %s: %d %s", one.Name, status, text)
		}
	}
}

// schemathesis runs it against the server with a configuration, and returns its exit code and output.
func (s *server) schemathesis(config, document, token string, args ...string) (code int, out string) {
	s.t.Helper()
	dir := s.t.TempDir()
	file := filepath.Join(dir, "schemathesis.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(tools(s.t), "py", "bin", "schemathesis"),
		append([]string{"--no-color", "--config-file", file, "run", document, "--seed", "1", "--no-shrink",
			"--request-timeout", "20", "--suppress-health-check", "all", "--header",
			fmt.Sprintf("Authorization: Bearer %s", token)}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8", "NO_PROXY=*"}
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.t.Fatalf("%v; run `make tools`", err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}
