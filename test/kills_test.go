package test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/store/storetest"
)

// changes is a writer's view of things that it alone makes and removes: files, or secrets.
type changes struct {
	path  func(name string) string
	token string
	value map[string]string // acknowledged; of a name that is not there: nothing
	open  string            // a name whose last change was not acknowledged
	meant string            // the value of that change; empty: nothing
	sent  int
	count int // acknowledged
}

// do makes one change, and returns false if it was not acknowledged.
func (c *changes) do(s *server) error {
	c.sent++
	name, value := fmt.Sprintf("N%d", rand.IntN(8)), ""
	method, body := "DELETE", io.Reader(nil)
	if _, there := c.value[name]; !there || rand.IntN(3) > 0 {
		value = fmt.Sprintf("value %d", c.sent)
		method, body = "PUT", strings.NewReader(value)
	}
	c.open, c.meant = name, value
	r, err := http.NewRequest(method, s.URL+c.path(name), body)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 500: // the server is about to die
		return fmt.Errorf("%d %s", resp.StatusCode, text)
	case resp.StatusCode >= 400:
		s.t.Errorf("%s %s: %d %s", method, c.path(name), resp.StatusCode, text)
	}
	c.settle(value)
	return nil
}

// settle takes down what the open change has come to.
func (c *changes) settle(value string) {
	c.count++
	if delete(c.value, c.open); value != "" {
		c.value[c.open] = value
	}
	c.open = ""
}

// compare compares what there is with what was acknowledged.
func (c *changes) compare(t *testing.T, what string, there map[string]string) {
	t.Helper()
	if c.open != "" && (there[c.open] == c.meant || there[c.open] == c.value[c.open]) {
		c.settle(there[c.open])
	}
	if fmt.Sprint(there) != fmt.Sprint(c.value) {
		t.Fatalf("%s: there are %v, and %v were acknowledged (%s may be %q)", what, there, c.value, c.open, c.meant)
	}
}

// TestKilledOften: whatever was acknowledged is there after a kill at any moment: files of a session, secrets, tokens,
// and that a token was revoked. SANDLOT_KILLS=200 is how often the server is killed, with each store.
func TestKilledOften(t *testing.T) {
	for _, store := range []string{"sqlite", "postgres"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			var settings []string
			if store == "postgres" {
				settings = append(settings, "SANDLOT_STORE="+storetest.Start(t).Database(t))
			}
			killOften(t, start(t, settings...))
		})
	}
}

func killOften(t *testing.T, s *server) {
	files := &changes{token: s.token("ann"), value: map[string]string{}, path: func(name string) string {
		return "/v1/sessions/home/files/workspace/" + name
	}}
	secrets := &changes{token: s.token("bob"), value: map[string]string{}, path: func(name string) string {
		return "/v1/secrets/" + name
	}}
	s.connect(newer, files.token, nil).shell("home", "true")
	tokens, users := map[string]bool{}, map[string]string{} // whether a token is valid, and whose it is
	kills := numberOf(t, "SANDLOT_KILLS", 20)
	for n := range kills {
		var working sync.WaitGroup
		for _, c := range []*changes{files, secrets} {
			working.Go(func() {
				for c.do(s) == nil {
				}
			})
		}
		if n%10 == 0 {
			id := fmt.Sprintf("user%d", n)
			token := s.token(id)
			tokens[token], users[token] = true, id
			for token := range tokens {
				if rand.IntN(4) == 0 && tokens[token] {
					s.revoke(users[token])
					tokens[token] = false
				}
			}
		}
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		s.kill()
		working.Wait()
		transport.CloseIdleConnections()
		s.launch()
		files.compare(t, "files", s.files(files.token))
		secrets.compare(t, "secrets", s.secrets(secrets))
		for token, valid := range tokens {
			if status, _, _ := s.request("GET", "/v1/sessions", nil, credentials(token)...); (status == 200) != valid {
				t.Fatalf("a token that is valid (%v): %d", valid, status)
			}
		}
	}
	t.Logf("%d files and %d secrets were changed in %d lives", files.count, secrets.count, kills)
	if files.count < kills/2 || secrets.count < kills {
		t.Error("the load was too small to say anything")
	}
}

// revoke revokes the tokens of a user.
func (s *server) revoke(user string) {
	s.t.Helper()
	out, errs, _ := s.cli("token", "list")
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == user {
			if _, errs, code := s.cli("token", "revoke", f[0]); code != 0 {
				s.t.Fatalf("the token %s is not revoked: %s", f[0], errs)
			}
			return
		}
	}
	s.t.Fatalf("%s has no token: %s %s", user, out, errs)
}

// files are the contents of the files in the workspace of a user's home.
func (s *server) files(token string) map[string]string {
	r := s.connect(newer, token, nil).code("home", `import os, json
print(json.dumps({n: open("/workspace/" + n).read() for n in os.listdir("/workspace") if n[0] == "N"}))`)
	var found map[string]string
	line, _, _ := strings.Cut(r.Text, "\n")
	if err := json.Unmarshal([]byte(line), &found); err != nil {
		s.t.Fatalf("%v: %s", err, r.Text)
	}
	return found
}

// secrets are the secrets of a user. Nobody is told their values: a secret that is there has the value that it should
// have.
func (s *server) secrets(c *changes) map[string]string {
	status, _, body := s.request("GET", "/v1/secrets", nil, credentials(c.token)...)
	var list struct {
		Secrets []struct {
			Name     string `json:"name"`
			Readable bool   `json:"readable"`
		} `json:"secrets"`
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 {
		s.t.Fatalf("the secrets: %d %s, %v", status, url.QueryEscape(body), err)
	}
	found := map[string]string{}
	for _, one := range list.Secrets {
		if !one.Readable {
			s.t.Errorf("the secret %s cannot be read", one.Name)
		}
		value, there := c.value[one.Name]
		if !there && one.Name == c.open {
			value = c.meant
		}
		found[one.Name] = value
	}
	return found
}
