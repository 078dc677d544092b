package egress

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/agent/wire"
)

// TestReach: what rules say about a host comes before the policy, and a person's yes allows a host that no
// rule of the network allows, and no other address than the policy would.
func TestReach(t *testing.T) {
	var mu sync.Mutex
	verdicts := map[string]Verdict{}
	var asked []string
	set := func(host string, v Verdict) {
		mu.Lock()
		defer mu.Unlock()
		verdicts[host] = v
	}
	r := newRig(t, &Policy{Mode: Allowlist, Allow: []Rule{mustRule("listed.example")}}, func(c *Config) {
		c.Reach = func(o Owner, host string, phase Phase) Ruling {
			mu.Lock()
			defer mu.Unlock()
			if o.Principal != "user:ann" || o.Session != "s1" {
				t.Errorf("asked for %v", o)
			}
			if phase == Connecting {
				asked = append(asked, host)
			}
			return Ruling{Verdict: verdicts[host]}
		}
	})
	for name, a := range map[string]string{"listed.example": "9.255.255.1", "new.example": "9.255.255.2",
		"private.example": "10.0.0.1"} {
		r.name(name, a)
		r.serve(a+":443", echo)
	}
	set("listed.example:443", Denied)
	if why := r.client().want(wire.NetRefused, toName("listed.example", 443)); !strings.Contains(why,
		"a rule of the operator") {
		t.Errorf("denied: %q", why)
	}
	set("new.example", Asked)
	set("new.example:443", Asked)
	r.client().want(wire.NetOK, lookup("new.example"))
	if why := r.client().want(wire.NetRefused, toName("NEW.example.", 443)); !strings.Contains(why,
		"sandlot questions") {
		t.Errorf("asked: %q", why)
	}
	if resolved, dialed := r.asked(); slices.Contains(resolved, "new.example") || len(dialed) > 0 {
		t.Errorf("before the answer: resolved %q, dialed %q", resolved, dialed)
	}
	set("new.example:443", Granted)
	r.client().want(wire.NetRefused, toName("new.example", 80))
	c := r.connected(toName("new.example", 443))
	c.roundTrip("granted")
	r.outlet.SetPolicy(&Policy{Mode: Allowlist}) // the settings change: the answer still counts
	c.roundTrip("still")
	set("private.example:443", Granted)
	if why := r.client().want(wire.NetRefused, toName("private.example", 443)); !strings.Contains(why, "10.0.0.1") {
		t.Errorf("a private address: %q", why)
	}
	set("169.254.169.254:80", Granted)
	r.client().want(wire.NetRefused, toAddr("169.254.169.254", 80))
	set("[2001:db8::1]:80", Denied)
	r.client().want(wire.NetRefused, toAddr("2001:db8::1", 80))
	set("127.0.0.1:80", Granted)
	r.client().want(wire.NetRefused, toAddr("::ffff:127.0.0.1", 80))
	set("new.example:443", Denied)
	r.outlet.SetPolicy(&Policy{Mode: Public})
	if got := c.ended(); got != "" {
		t.Errorf("a connection that is denied now: %q", got)
	}
	r.outlet.SetPolicy(&Policy{Mode: None})
	set("new.example:443", Granted)
	r.client().want(wire.NetRefused, toName("new.example", 443))
	mu.Lock()
	defer mu.Unlock()
	for _, host := range []string{"new.example:443", "[2001:db8::1]:80", "127.0.0.1:80"} {
		if !slices.Contains(asked, host) {
			t.Errorf("nobody was asked about %s: %q", host, asked)
		}
	}
}

func mustRule(text string) Rule {
	r, err := ParseRule(text)
	if err != nil {
		panic(err)
	}
	return r
}
