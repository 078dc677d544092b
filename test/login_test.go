package test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sandlot/internal/servers/serverstest"
)

// logIn opens the link of a log-in in a browser of its own, goes on and agrees.
func logIn(t *testing.T, link string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &http.Client{Jar: jar, Timeout: 10 * time.Second}
	see := func(address string) string {
		t.Helper()
		resp, err := b.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %s, %v\n%s", address, resp.Status, err, page)
		}
		return string(page)
	}
	next := regexp.MustCompile(`href="(\?go=[0-9a-f]+)"`).FindStringSubmatch(see(link))
	if next == nil {
		t.Fatalf("the page of %s leads nowhere", link)
	}
	if page := see(link + next[1]); !strings.Contains(page, "Sandlot finishes the log-in now") {
		t.Fatal(page)
	}
}

// TestLoginServerKilled: who has logged in at a third-party server need not do so
// again after a crash of Sandlot, also when the token is too old by then; what
// they were given stands nowhere; and it is theirs alone.
func TestLoginServerKilled(t *testing.T) {
	t.Parallel()
	bank := serverstest.NewProtected(t, 12) // seconds, of which the last ten do not count
	host := strings.TrimSuffix(strings.TrimPrefix(bank.URL, "http://"), "/mcp")
	s := start(t, "SANDLOT_LOG_LEVEL=DEBUG", "SANDLOT_NETWORK_ALLOW_PRIVATE="+host+
		"=127.0.0.0/8")
	tokens := map[string]string{"ann": s.token("ann"), "bob": s.token("bob")}
	told := ""
	row := func(user string) map[string]any {
		t.Helper()
		c := s.connect(older, tokens[user], nil)
		row := c.state("bank")
		text, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		told += string(text)
		return row
	}
	tools := map[string]string{}
	for user, token := range tokens {
		r := s.connect(older, token, nil).call("connect_external_mcp", args{"name": "bank", "url": bank.URL})
		link, _ := r.Fields["authUrl"].(string)
		if !strings.HasPrefix(link, s.URL+"/oauth/start/") || strings.Contains(r.All, "state=") {
			t.Fatalf("%s is told %s", user, r.All)
		}
		logIn(t, link)
		for end := time.Now().
			Add(time.Minute); row(user)["state"] != "connected"; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s's is %v", user, row(user))
			}
		}
		for name := range s.connect(older, token, nil).toolNames() {
			if strings.HasSuffix(name, "_balance") {
				tools[user] = name
			}
		}
	}
	works := func(user string) {
		t.Helper()
		if r := s.connect(older, tokens[user], nil).call(tools[user], nil); r.IsError || r.Text != "42 are left" {
			t.Errorf("%s's bank says %q", user, r.All)
		}
		row(user)
	}
	works("ann")
	if n, _, _ := bank.Counts(); n != 2 {
		t.Fatalf("%d log-ins", n)
	}

	for range 2 { // what the first server that renews a token gets is for the second
		s.kill()
		transport.CloseIdleConnections()
		time.Sleep(2500 * time.Millisecond) // a token is good for two seconds
		_, before, _ := bank.Counts()
		s.launch()
		works("ann")
		if n, after, reused := bank.Counts(); n != 2 || after <= before || reused != 0 {
			t.Errorf("%d log-ins; %d renewals before the crash and %d after it; %d with a token that was used", n,
				before, after, reused)
		}
	}
	given := bank.Given()
	if len(given) < 8 {
		t.Fatalf("given were %d values", len(given))
	}
	for _, v := range given {
		s.holds(v)
		if strings.Contains(told, v) {
			t.Errorf("the list has %s", v)
		}
	}

	// Who disconnects has to log in again, and who does not need not.
	s.connect(older, tokens["ann"], nil).call("disconnect_external_mcp", args{"name": "bank"})
	s.kill()
	transport.CloseIdleConnections()
	// With another key what was stored is of no use, and that is said.
	key := filepath.Join(s.State, "secrets.key")
	right, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	s.launch()
	if _, err := s.connect(older, tokens["ann"], nil).try(t.Context(), "restart_external_mcp",
		args{"name": "bank"}); err == nil || row("ann")["state"] != "needs auth" {
		t.Errorf("ann's is %v, %v", row("ann"), err)
	}
	s.kill()
	transport.CloseIdleConnections()
	if err := os.WriteFile(key, []byte(strings.Repeat("x", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.launch()
	if _, err := s.connect(older, tokens["bob"], nil).try(t.Context(), tools["bob"], nil); err == nil ||
		row("bob")["state"] != "needs auth" {
		t.Errorf("bob's, with another key, is %v, %v", row("bob"), err)
	}
	if !strings.Contains(s.log.String(), "is needed again, as all are") {
		t.Error("the log does not say so")
	}
	s.kill()
	transport.CloseIdleConnections()
	if err := os.WriteFile(key, right, 0o600); err != nil {
		t.Fatal(err)
	}
	s.launch()
	works("bob")
}
