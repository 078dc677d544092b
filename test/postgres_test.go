package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/store/storetest"
)

// TestPostgres: tokens, sessions and secrets in a PostgreSQL database outlive a crash of the server. While the database
// is gone, calls say so. Its password stands nowhere.
func TestPostgres(t *testing.T) {
	t.Parallel()
	database := storetest.Start(t)
	url := database.Database(t)
	s := start(t, "SANDLOT_LOG_LEVEL=DEBUG", "SANDLOT_STORE="+url)
	token := s.token("ann")
	c := s.connect(older, token, nil)
	session := c.code("home", "x = 'still here'").session()
	if out, code := s.cliAs(token, "hunter2 of ann\n", "secret", "set", "KEY"); code != 0 {
		t.Fatalf("%d %s", code, out)
	}

	s.kill()
	transport.CloseIdleConnections()
	s.launch()
	s.connect(newer, token, nil).want(session, "x", "'still here'")
	if out, code := s.cliAs(token, "", "secret", "list"); code != 0 || !strings.Contains(out, "KEY") {
		t.Errorf("%d %s", code, out)
	}

	other := prepare(t)
	other.env = s.env
	if out, code := other.cliAs("", "", "serve", "--port", "65001"); code == 0 {
		t.Errorf("a second server: %s", out)
	}
	file := filepath.Join(t.TempDir(), "backup")
	out, errs, code := s.cli("backup", file)
	if code != 0 || !strings.Contains(out, "secrets.key") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if _, errs, code := s.cli("restore", file); code != 0 {
		t.Errorf("restored under the server: %d %s", code, errs)
	}
	transport.CloseIdleConnections()
	settings, _, _ := s.cli("config")

	call := func() int {
		status, _, _ := s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code",`+
			`"arguments":{"code":"1"}}}`, "Authorization", "Bearer "+token)
		return status
	}
	database.Stop()
	if status := call(); status != 503 {
		t.Errorf("without the database: %d", status)
	}
	if err := database.Run(); err != nil {
		t.Fatal(err)
	}
	until(t, "the database is used again", func() bool { return call() == 200 })
	s.connect(newer, token, nil).want(session, "x", "'still here'")

	if _, err := os.Stat(filepath.Join(s.State, "sandlot.db")); err == nil {
		t.Error("there is an SQLite database too")
	}
	for what, text := range map[string]string{"log": s.log.String(), "config": settings, "backup": out + errs} {
		if strings.Contains(text, storetest.Password) || text == "" {
			t.Errorf("the %s has the password, or nothing:\n%s", what, text)
		}
	}
}
