package test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandlot/internal/store/storetest"
)

// replicas are servers that share a database, each with a state folder of its own.
type replicas struct {
	t        *testing.T
	settings []string
	ports    map[*server]int // for the other servers
}

func (r *replicas) start() *server {
	r.t.Helper()
	port := freePort(r.t)
	s := start(r.t, append(r.settings, "SANDLOT_REPLICAS_ADDRESS=127.0.0.1:"+strconv.Itoa(port))...)
	r.ports[s] = port
	return s
}

// listed are the addresses that a server lists, and which of them are alive.
func (r *replicas) listed(s *server) map[string]bool {
	r.t.Helper()
	out, errs, code := s.cli("replicas", "--json")
	if code != 0 {
		r.t.Fatalf("%s %s", out, errs)
	}
	var all []struct {
		Address string
		Alive   bool
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	alive := map[string]bool{}
	for _, x := range all {
		alive[x.Address] = x.Alive
	}
	return alive
}

func (r *replicas) address(s *server) string { return "127.0.0.1:" + strconv.Itoa(r.ports[s]) }

// tool calls a tool without a session of MCP.
func tool(s *server, token, name string, a args) (int, string) {
	body, _ := json.Marshal(a)
	status, _, text := s.post("/v1/tools/"+name, string(body), "Authorization", "Bearer "+token)
	return status, text
}

func list(s *server, token string) (int, string) {
	status, _, text := s.request("GET", "/v1/sessions", nil, credentials(token)...)
	return status, text
}

// TestReplicas: servers on one PostgreSQL database, each with sandboxes on its machine. A call at any of them reaches the
// sessions of its user, be it by MCP, over HTTP or on an upgraded connection. When a server is killed, the calls that it
// was making say that they may have run, those for its sessions say that it is away, and those of others go on; users
// without sessions go on at another server. SANDLOT_KILLS is how often a server is killed.
func TestReplicas(t *testing.T) {
	t.Parallel()
	kills := 1
	if n, err := strconv.Atoi(os.Getenv("SANDLOT_KILLS")); err == nil {
		kills = n
	}
	database := storetest.Start(t)
	r := &replicas{t: t, ports: map[*server]int{}, settings: []string{"SANDLOT_STORE=" + database.Database(t),
		"SANDLOT_AUTH=required", "SANDLOT_SECRETS_KEY=" + strings.Repeat("5a", 32), "SANDLOT_EVENTS_KEEP_MAX=0"}}
	a, b := r.start(), r.start()
	ann, bob, carl := a.token("ann"), a.token("bob"), b.token("carl")

	// Each user's first call decides where the sessions are.
	home := a.connect(older, ann, nil).code("home", "x = 'of ann'").session()
	atB := b.connect(newer, ann, nil)
	atB.want(home, "x", "'of ann'")
	b.connect(older, ann, nil).want("home", "x", "'of ann'")
	b.connect(older, bob, nil).code("home", "x = 'of bob'")
	a.connect(newer, bob, nil).want("home", "x", "'of bob'")
	if status, text := list(a, carl); status != 200 {
		t.Errorf("carl, who has none: %d %s", status, text)
	}

	r.passesOn(b, ann, home)
	r.refusesStrangers(a, b, home)

	c := r.start()
	c.connect(newer, ann, nil).want(home, "x", "'of ann'")
	alive := map[string]bool{r.address(a): true, r.address(b): true, r.address(c): true}
	if got := r.listed(c); fmt.Sprint(got) != fmt.Sprint(alive) {
		t.Errorf("listed: %v, want %v", got, alive)
	}

	for range kills {
		running := make(chan string, 1)
		go func() {
			status, text := tool(b, ann, "execute_command", args{"session_id": home, "command": "touch /workspace/began; sleep 60"})
			running <- fmt.Sprint(status, " ", text)
		}()
		until(t, "the command runs", func() bool {
			status, _, _ := c.request("GET", "/v1/sessions/"+home+"/files/workspace/began", nil, credentials(ann)...)
			return status == 200
		})
		a.kill()
		transport.CloseIdleConnections()
		if text := <-running; !strings.Contains(text, "may have been carried out") || strings.HasPrefix(text, "200") {
			t.Errorf("the call that the killed server was making: %s", text)
		}
		for _, s := range []*server{b, c} {
			if status, text := tool(s, ann, "execute_code", args{"code": "x"}); status != 503 && status != 502 ||
				!strings.Contains(text, r.address(a)) || !strings.Contains(text, "nothing was done") {
				t.Errorf("a session on the server that is away: %d %s", status, text)
			}
			s.connect(newer, bob, nil).want("home", "x", "'of bob'")
			if status, text := list(s, carl); status != 200 {
				t.Errorf("a user without sessions, whose server is away: %d %s", status, text)
			}
		}
		if got := r.listed(b); got[r.address(a)] || !got[r.address(b)] {
			t.Errorf("listed: %v", got)
		}
		a.launch()
		transport.CloseIdleConnections()
		atB = b.connect(newer, ann, nil)
		atB.want(home, "x", "'of ann'")
		if status, text := tool(b, ann, "execute_command", args{"session_id": home, "command": "rm /workspace/began"}); status != 200 {
			t.Errorf("%d %s", status, text)
		}
	}
	r.refusesSettings(a)
	for _, s := range []*server{a, b, c} {
		if strings.Contains(s.log.String(), "another server acts") {
			t.Errorf("a server writes for principals of another one:\n%s", s.log)
		}
	}
}

// passesOn: files, upgraded connections and streams of a user reach the session through a server that has none.
func (r *replicas) passesOn(s *server, token, home string) {
	t := r.t
	large := strings.Repeat("0123456789abcdef", 1<<17)
	path := "/v1/sessions/" + home + "/files/workspace/large"
	if status, _, text := s.request("PUT", path, strings.NewReader(large), credentials(token)...); status >= 300 {
		t.Errorf("an upload: %d %s", status, text)
	}
	if status, _, text := s.request("GET", path, nil, credentials(token)...); status != 200 || text != large {
		t.Errorf("a download: %d, %d bytes", status, len(text))
	}
	if out, code := s.cliAs(token, "typed", "exec", "--session", home, "--", "sh", "-c", "cat; exit 4"); code != 4 || out != "typed" {
		t.Errorf("an upgraded connection: %d %q", code, out)
	}
}

// refusesStrangers: nobody but the servers can say for whom a request is.
func (r *replicas) refusesStrangers(a, b *server, home string) {
	t := r.t
	forged := base64.StdEncoding.EncodeToString([]byte(`{"Principal":{"ID":"user:ann","Authenticated":true},"Epoch":1}`))
	if status, _, text := b.request("GET", "/v1/sessions/"+home, nil, "Sandlot-Forwarded", forged); status != 401 {
		t.Errorf("a forged header at the door: %d %s", status, text)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 10 * time.Second}
	q, _ := http.NewRequest("GET", "https://"+r.address(a)+"/v1/sessions/"+home, nil)
	q.Header.Set("Sandlot-Forwarded", forged)
	if answer, err := client.Do(q); err == nil {
		answer.Body.Close()
		t.Errorf("the servers' own port: %d", answer.StatusCode)
	}
	plain, err := net.Dial("tcp", r.address(a))
	if err != nil {
		t.Fatal(err)
	}
	plain.Close()
}

// refusesSettings: a server does not start with settings with which servers cannot share a database, or alone on a
// database that they share.
func (r *replicas) refusesSettings(running *server) {
	for what, settings := range map[string][]string{
		"PostgreSQL":                  {"SANDLOT_REPLICAS_ADDRESS=127.0.0.1:7443"},
		"another Sandlot server uses": r.settings,
	} {
		other := prepare(r.t)
		other.setEnvironment(settings)
		if out, code := other.cliAs("", "", "serve", "--port", "65001"); code == 0 || !strings.Contains(out, what) {
			r.t.Errorf("%s: %d %s", what, code, out)
		}
	}
	if out, _, code := running.cli("config"); code != 0 || !strings.Contains(out, "replicas.address") {
		r.t.Errorf("%d %s", code, out)
	}
	if out, errs, code := running.cli("replicas", "remove", r.address(running), "--yes"); code == 0 ||
		!strings.Contains(errs, "is away") {
		r.t.Errorf("a server that runs is removed: %d %s %s", code, out, errs)
	}
	out, errs, code := running.cli("replicas", "remove", "unknown")
	if code == 0 || !strings.Contains(errs, "0 sessions and 0 snapshots") {
		r.t.Errorf("%d %s %s", code, out, errs)
	}
}
