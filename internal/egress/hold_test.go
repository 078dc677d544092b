package egress

import (
	"context"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/agent/wire"
)

// testAsker answers as its map says, and counts questions.
type testAsker struct {
	mu      sync.Mutex
	answers map[string]Verdict
	asked   []string
	may     bool
}

func (a *testAsker) Hold(_ context.Context, o Owner, host string, unlisted bool) Ruling {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !unlisted {
		host += " by a rule"
	}
	a.asked = append(a.asked, host)
	if v, ok := a.answers[host]; ok {
		return Ruling{Verdict: v, Question: "q_1"}
	}
	return Ruling{Verdict: Asked}
}

func (a *testAsker) MayHold(Owner, string) bool { return a.may }

// TestHold: a connection that no rule allows waits for a person, and goes on after a yes; nobody is asked about what no
// rule could open.
func TestHold(t *testing.T) {
	a := &testAsker{answers: map[string]Verdict{"new.example:443": Granted, "no.example:443": Denied,
		"private.example:443": Granted, "ruled.example:443 by a rule": Granted, "9.255.255.3:80": Granted}, may: true}
	r := newRig(t, &Policy{Mode: Allowlist, Allow: []Rule{mustRule("listed.example:80")}}, func(c *Config) {
		c.Asker = a
		c.Reach = func(_ Owner, host string, _ Phase) Ruling {
			if strings.HasPrefix(host, "ruled.example") {
				return Ruling{Verdict: Asked}
			}
			return Ruling{}
		}
	})
	for name, at := range map[string]string{"listed.example": "9.255.255.1", "new.example": "9.255.255.2",
		"private.example": "10.0.0.1", "ruled.example": "9.255.255.4"} {
		r.name(name, at)
		r.serve(at+":443", echo)
	}
	r.serve("9.255.255.3:80", echo)
	r.client().want(wire.NetOK, lookup("new.example"))
	if resolved, dialed := r.asked(); len(resolved) > 0 || len(dialed) > 0 {
		t.Errorf("before the answer: resolved %q, dialed %q", resolved, dialed)
	}
	c := r.connected(toName("new.example", 443))
	c.roundTrip("granted")
	r.outlet.SetPolicy(&Policy{Mode: Allowlist}) // the settings change: the answer still counts
	c.roundTrip("still")
	r.connected(toName("ruled.example", 443)).roundTrip("granted")
	r.connected(toAddr("9.255.255.3", 80)).roundTrip("granted")
	for _, x := range []struct {
		to   wire.NetRequest
		want string
	}{
		{toName("no.example", 443), "the user was asked, and refused"},
		{toName("silent.example", 443), "no rule allows it"},
		{toName("listed.example", 443), "no rule allows it"}, // the second policy lists nothing
		{toName("private.example", 443), "10.0.0.1"},
		{toName("printer", 443), "no rule allows it"},
		{toName("localhost", 443), "the server itself"},
		{toName("db.localdomain", 443), "the server itself"},
		{toAddr("10.1.2.3", 443), "no rule allows it"},
		{toAddr("169.254.169.254", 80), "no rule allows it"},
		{toAddr("127.0.0.1", 80), "no rule allows it"},
		{toAddr("fd00::1", 80), "no rule allows it"},
	} {
		if why := r.client().want(wire.NetRefused, x.to); !strings.Contains(why, x.want) {
			t.Errorf("%v: %q", x.to, why)
		}
	}
	if got := strings.Join(a.asked, " "); got != "new.example:443 ruled.example:443 by a rule 9.255.255.3:80 "+
		"no.example:443 silent.example:443 listed.example:443 private.example:443" {
		t.Errorf("asked about %s", got)
	}
	r.outlet.SetPolicy(&Policy{Mode: None})
	r.client().want(wire.NetRefused, toName("new.example", 443))
	if len(a.asked) != 7 {
		t.Errorf("without a network somebody was asked: %q", a.asked)
	}
}

// TestHeldLookups: a name that no rule lists has no answer where nobody can be asked.
func TestHeldLookups(t *testing.T) {
	a := &testAsker{}
	r := newRig(t, &Policy{Mode: Allowlist}, func(c *Config) { c.Asker = a })
	r.client().want(wire.NetRefused, lookup("new.example"))
	a.may = true
	r.client().want(wire.NetOK, lookup("new.example"))
	r.client().want(wire.NetRefused, lookup("printer"))
	r.client().want(wire.NetRefused, lookup("localhost"))
	if resolved, _ := r.asked(); len(resolved) > 0 {
		t.Errorf("resolved %q", resolved)
	}
}
