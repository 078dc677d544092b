package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/secret"
	"sandlot/internal/servers/install"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
	"sandlot/internal/vault"
)

// safe is what principals have stored, by owner and name.
type safe struct {
	mu   sync.Mutex
	all  map[string]string
	asks int
}

func (s *safe) Reveal(_ context.Context, owner, name string) (secret.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks++
	v, ok := s.all[owner+" "+name]
	if !ok {
		return "", vault.NotFound(name)
	}
	return secret.Value(v), nil
}

func (s *safe) set(p auth.Principal, name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]string{}
	}
	if s.all[p.ID+" "+name] = value; value == "" {
		delete(s.all, p.ID+" "+name)
	}
}

// kept is a store that gives back what it has.
type kept struct{ memStore }

func (k *kept) Connections(_ context.Context, owner string) ([]Record, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []Record
	for _, r := range k.recs {
		if r.Owner != owner {
			continue
		}
		var again Record // as a store would
		b, _ := json.Marshal(r)
		if err := json.Unmarshal(b, &again); err != nil {
			return nil, err
		}
		all = append(all, again)
	}
	return all, nil
}

func (k *kept) Connected(context.Context) (all [][2]string, _ error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.recs {
		if !r.Configured && !r.Off {
			all = append(all, [2]string{r.Owner, r.ID})
		}
	}
	return all, nil
}

func (k *kept) text() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return fmt.Sprintf("%+v", k.recs)
}

// door is an MCP server that remembers the headers of the last initialize.
type door struct {
	mu   sync.Mutex
	last http.Header
	n    int
}

func (d *door) got(header string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last.Get(header)
}

func (d *door) calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

func opened(t *testing.T) (*door, string) {
	d := &door{}
	return d, serverstest.Empty(t, func(method string, h http.Header) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.n++
		if method == "initialize" {
			d.last = h.Clone()
		}
	})
}

// log is all that Servers log.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func withSecrets(t *testing.T, st Store, s *safe, l *log) *Servers {
	servers := New(Config{Store: st, Version: "1", Dial: serverstest.Dial, Secrets: s,
		Log: slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	t.Cleanup(servers.Close)
	return servers
}

var bob = auth.User("bob", false)

// The server is given the value, each time that it starts; all others see the
// name alone.
func TestSecretsInHeaders(t *testing.T) {
	d, url := opened(t)
	st, s, l := &kept{}, &safe{}, &log{}
	b := withSecrets(t, st, s, l)
	s.set(P, "GH", "hunter2")
	s.set(bob, "GH", "hunter3")
	var plans []spec.Change
	ask := spec.ConnectRequest{Name: "x", URL: url,
		Headers: map[string]string{"Authorization": "Bearer ${secret:GH}", "X-Both": "${secret:GH}-${secret:GH}"},
		Consent: func(_ context.Context, p spec.Change) error { plans = append(plans, p); return nil }}
	i, err := b.Connect(t.Context(), P, ask)
	if err != nil || d.got("Authorization") != "Bearer hunter2" || d.got("X-Both") != "hunter2-hunter2" {
		t.Fatalf("the server was given %q, %q; %v", d.got("Authorization"), d.got("X-Both"), err)
	}
	if !slices.Equal(i.Secrets, []string{"GH"}) || !maps.EqualFunc(b.UsesOf(P), map[string][]string{"GH": {"x"}},
		slices.Equal) || len(b.UsesOf(bob)) > 0 {
		t.Errorf("used: %v, %v, %v", i.Secrets, b.UsesOf(P), b.UsesOf(bob))
	}
	if len(plans) != 1 || plans[0].Headers["Authorization"] != "…${secret:GH}" ||
		plans[0].Headers["X-Both"] != "${secret:GH}…${secret:GH}" {
		t.Errorf("agreed to %+v", plans)
	}
	if !strings.Contains(st.text(), "Authorization:Bearer ${secret:GH}") {
		t.Errorf("stored %s", st.text())
	}
	b.Stored(P, "GH")
	if i := b.List(P)[0]; i.State != state.Connected {
		t.Errorf("stored again, what runs is %s", i.State)
	}
	restart := func() error {
		t.Helper()
		_, err := b.Restart(t.Context(), P, "x", nil, nil, nil)
		return err
	}
	s.set(P, "GH", "hunter4")
	if d.got("Authorization") != "Bearer hunter2" {
		t.Error("what runs has changed")
	}
	if err := restart(); err != nil || d.got("Authorization") != "Bearer hunter4" {
		t.Errorf("the next start has %q, %v", d.got("Authorization"), err)
	}
	if _, err := b.Connect(t.Context(), bob, ask); err != nil || d.got("Authorization") != "Bearer hunter3" {
		t.Errorf("another user's has %q, %v", d.got("Authorization"), err)
	}

	// Without the secret it does not start, is not given up, and starts when the
	// secret is there.
	s.set(P, "GH", "")
	calls := d.calls()
	for range state.MaxFailures + 1 {
		err := restart()
		if f := fault.From(err); f.Kind != fault.Connection || !strings.Contains(f.Message,
			"`sandlot secret set GH`") || f.Context["secret"] != "GH" || !strings.Contains(strings.Join(f.Advice,
			""), "sandlot secret set GH") {
			t.Fatalf("without it: %v %+v", err, f)
		}
		err = get(b, P, "x").ready(t.Context())
		if err == nil || fault.From(err).Context["state"] == string(state.Failed) {
			t.Fatalf("used without it: %v", err)
		}
	}
	if i := b.List(P)[0]; i.State != state.NeedsEnv || !strings.Contains(i.LastError, "sandlot secret set GH") {
		t.Errorf("listed as %s, %q", i.State, i.LastError)
	}
	if d.calls() != calls {
		t.Error("the server was reached without its secret")
	}
	s.set(P, "GH", "hunter5")
	b.Stored(bob, "GH")
	b.Stored(P, "OTHER")
	if i := b.List(P)[0]; i.State != state.NeedsEnv {
		t.Errorf("another's secret made it %s", i.State)
	}
	b.Stored(P, "GH")
	if i := b.List(P)[0]; i.State != state.Idle || i.LastError != "" {
		t.Errorf("listed as %s, %q", i.State, i.LastError)
	}
	if err := get(b, P, "x").ready(t.Context()); err != nil || d.got("Authorization") != "Bearer hunter5" {
		t.Errorf("with it again: %q, %v", d.got("Authorization"), err)
	}
	seen, _ := json.Marshal(append(b.List(P), b.List(bob)...))
	for what, text := range map[string]string{"the store": st.text(), "the log": l.String(), "a list": string(seen),
		"a plan": fmt.Sprintf("%+v", plans)} {
		if strings.Contains(text, "hunter") {
			t.Errorf("%s has a value: %s", what, text)
		}
	}
}

// What is stored starts again after a restart, without being asked for.
func TestSecretsAfterARestart(t *testing.T) {
	d, url := opened(t)
	st, s, l := &kept{}, &safe{}, &log{}
	s.set(P, "GH", "hunter2")
	first := withSecrets(t, st, s, l)
	for name, headers := range map[string]map[string]string{"all": {"A": "${secret:GH}"},
		"some": {"A": "x ${secret:GH}", "B": "plain"}} {
		if _, err := first.Connect(t.Context(), P, spec.ConnectRequest{Name: name, URL: url,
			Headers: headers}); err != nil {
			t.Fatal(err)
		}
	}
	first.Close()
	if strings.Contains(st.text(), "plain") {
		t.Errorf("stored %s", st.text())
	}
	b := withSecrets(t, st, s, l)
	if err := b.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.set(P, "GH", "hunter3")
	if err := get(b, P, "all").ready(t.Context()); err != nil || d.got("A") != "hunter3" {
		t.Errorf("given %q, %v", d.got("A"), err)
	}
	err := get(b, P, "some").ready(t.Context())
	f := fault.From(err)
	keys, _ := f.Context["header_keys"].([]string)
	if !slices.Equal(keys, []string{"B"}) || !strings.Contains(f.Message, "${secret:NAME}") ||
		!strings.Contains(f.Message, "sandlot secret set NAME") {
		t.Errorf("without a value: %v %v", err, f.Context)
	}
	if i, _, _ := b.Info(P, "some"); i.State != state.NeedsEnv {
		t.Errorf("listed as %s", i.State)
	}
	if _, err := b.Restart(t.Context(), P, "some", nil, map[string]string{"B": "given"},
		nil); err != nil || d.got("A") != "x hunter3" || d.got("B") != "given" {
		t.Errorf("with the missing one: %q %q, %v", d.got("A"), d.got("B"), err)
	}
	// A reference in the place of a value is stored, and the other way round.
	s.set(P, "B", "stored")
	if _, err := b.Restart(t.Context(), P, "some", nil, map[string]string{"A": "plain", "B": "${secret:B}"},
		nil); err != nil || d.got("A") != "plain" || d.got("B") != "stored" {
		t.Errorf("changed: %q %q, %v", d.got("A"), d.got("B"), err)
	}
	if r := get(b, P, "some").record(); len(r.Headers) != 1 || r.Headers["B"] != "${secret:B}" {
		t.Errorf("stored %v", r.Headers)
	}
}

// A program has the values as variables; what is the operator's own is as it is
// written.
func TestSecretsInVariables(t *testing.T) {
	s, l := &safe{}, &log{}
	s.set(P, "GH", "hunter2")
	b := withSecrets(t, &memStore{}, s, l)
	file := script(t, `
while True:
    m=readmsg()
    if base(m): continue
    ok(m["id"],{"content":[{"type":"text","text":os.environ["KEY"]}]})
`)
	env := map[string]string{"KEY": "a ${secret:GH} b"}
	mine := own(b, P, "mine", "aaaaaa", onhost("mine", file, env))
	operators := onhost("operators", file, env)
	dies := own(b, P, "dies", "bbbbbb", onhost("dies", script(t, `sys.exit(7)`), env))
	said := func(s *server) string {
		t.Helper()
		res, err := s.request(t.Context(), &instance.Request{Method: "tools/call",
			Params: rawjson.Object{"name": rawjson.Quote("t"), "arguments": []byte("{}")}})
		if err != nil {
			t.Fatal(err)
		}
		return string(res)
	}
	if err := mine.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := said(mine); !strings.Contains(got, "a hunter2 b") {
		t.Errorf("its variable: %s", got)
	}
	if err := dies.ready(t.Context()); err == nil || strings.Contains(fmt.Sprintf("%v %+v", err,
		fault.From(err).Data()), "hunter") {
		t.Errorf("one that dies: %v", err)
	}
	eve := auth.User("eve", false)
	s.set(eve, "GH", "hunter9")
	b.SetConfigured([]spec.Configured{operators})
	b.WaitReady(t.Context(), eve)
	if got := said(get(b, eve, "operators")); !strings.Contains(got, "a ${secret:GH} b") {
		t.Errorf("the operator's: %s", got)
	}
	if strings.Contains(l.String(), "hunter") {
		t.Errorf("the log has a value:\n%s", l)
	}
}

// What cannot be given is refused before anything is asked, stored, installed or
// reached.
func TestSecretsRefused(t *testing.T) {
	d, url := opened(t)
	st, s, l := &kept{}, &safe{}, &log{}
	b := withSecrets(t, st, s, l)
	s.set(P, "LINE", "hunter2\nX-Evil: 1")
	s.set(P, "BIG", strings.Repeat("hunter2", 9000))
	s.set(P, "GH", "hunter2")
	s.set(bob, "OTHERS", "hunter2")
	agree := func(context.Context, spec.Change) error { t.Error("asked, for nothing"); return nil }
	for value, want := range map[string]string{"${secret:NONE}": "sandlot secret set NONE",
		"${secret:OTHERS}": "sandlot secret set OTHERS", "${secret:GH} ${secret:gh}": "sandlot secret set gh",
		"${secret:}": "${secret:NAME}", "${secret:GH": "${secret:NAME}", "${secret:a-b}": "${secret:NAME}",
		"${secret:9}": "${secret:NAME}", "${secret:${secret:GH}}": "${secret:NAME}",
		"${secret:" + strings.Repeat("A",
			65) + "}": "${secret:NAME}", "${secret:LINE}": "HTTP", "${secret:BIG}${secret:BIG}": "larger"} {
		_, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "x", URL: url,
			Headers: map[string]string{"A": value},
			Consent: agree})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: %v", value, err)
		}
		if want == "HTTP" {
			continue // a variable may have lines
		}
		// Without Sessions an installation that begins would panic.
		if _, err := b.Install(t.Context(), P,
			install.Request{ConnectRequest: spec.ConnectRequest{Name: "y", Env: map[string]string{"A": value},
				Consent: agree}, Type: "npm",
				Spec: "a"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("installing with %s: %v", value, err)
		}
	}
	if d.calls() > 0 || len(st.recs) > 0 || len(b.List(P)) > 0 {
		t.Errorf("%d calls, stored %s", d.calls(), st.text())
	}
	// Each secret is looked up once, and what it holds is no reference.
	s.set(P, "GH", "${secret:BIG}")
	if _, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "x", URL: url,
		Headers: map[string]string{"A": strings.Repeat("${secret:GH}",
			100)}}); err != nil || d.got("A") != strings.Repeat("${secret:BIG}", 100) {
		t.Errorf("given %.100q, %v", d.got("A"), err)
	}
	s.asks = 0
	many := map[string]string{}
	for n := range spec.MaxValues {
		many[fmt.Sprint("V", n)] = strings.Repeat("${secret:BIG}", 2500)
	}
	if _, err := b.revealed(t.Context(), P.ID, spec.Values{Env: many}); err == nil || s.asks != 1 {
		t.Errorf("%v; it was looked up %d times", err, s.asks)
	}
	if _, err := b.Restart(t.Context(), P, "x", nil, map[string]string{"B": "${secret:NONE}"},
		agree); err == nil || !strings.Contains(err.Error(), "sandlot secret set NONE") {
		t.Errorf("restarted: %v", err)
	}
	if r := get(b, P, "x").record(); len(r.HeaderKeys) != 1 {
		t.Errorf("it became %+v", r)
	}
	if strings.Contains(l.String(), "hunter") {
		t.Errorf("the log has a value:\n%s", l)
	}
}

// A server that was agreed to is given no further secret without being agreed to
// again.
func TestSecretsAreAgreedTo(t *testing.T) {
	_, url := opened(t)
	s, l := &safe{}, &log{}
	b := withSecrets(t, &memStore{}, s, l)
	s.set(P, "ONE", "1")
	s.set(P, "TWO", "2")
	asked := 0
	agree := func(_ context.Context, p spec.Change) error { asked++; return nil }
	step := func(what string, want int, err error) {
		t.Helper()
		if err != nil || asked != want {
			t.Errorf("%s: asked %d times, want %d; %v", what, asked, want, err)
		}
		asked = 0
	}
	connect := func(a, b2 string) error {
		_, err := b.Connect(t.Context(), P, spec.ConnectRequest{Name: "x", URL: url,
			Headers: map[string]string{"A": a, "B": b2},
			Consent: agree})
		return err
	}
	restart := func(a string) error {
		_, err := b.Restart(t.Context(), P, "x", nil, map[string]string{"A": a}, agree)
		return err
	}
	step("new", 1, connect("${secret:ONE}", "x"))
	step("the same", 0, connect("${secret:ONE}", "x"))
	step("another text beside it", 0, restart("Bearer ${secret:ONE}"))
	step("another secret, by restart", 1, restart("${secret:TWO}"))
	step("another secret", 1, connect("${secret:TWO}", "${secret:ONE}"))
	step("less", 0, connect("${secret:TWO}", "x"))
	step("a secret for a value", 1, connect("${secret:TWO}", "${secret:ONE}"))
	step("restarted", 0, func() error { _, err := b.Restart(t.Context(), P, "x", nil, nil, agree); return err }())
}
