package egress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/event"
)

// told returns a request of an agent that says whose it is.
func told(r wire.NetRequest) wire.NetRequest {
	r.TellsWho = true
	return r
}

// refuse makes a request that is refused, and says whose it is.
func (c *client) refuse(r wire.NetRequest, who wire.Who) {
	c.t.Helper()
	if reply := c.ask(told(r)); reply.Code != wire.NetRefused || !reply.AsksWho {
		c.t.Fatalf("%v: %+v", r, reply)
	}
	c.want(wire.NetOK, wire.NetRequest{Kind: wire.NetWho, Who: who})
}

// TestRefusalData: a refusal carries cause, rule, question and program as data, in what tools' results are made of and in
// the event.
func TestRefusalData(t *testing.T) {
	events := event.New()
	asker := &testAsker{answers: map[string]Verdict{"no.example:443": Denied, "late.example:443": Asked}}
	p := &Policy{Mode: Allowlist, Allow: []Rule{mustRule("other.example:80"), mustRule("private.example")}}
	r := newRig(t, p, func(c *Config) {
		c.Events, c.Asker = events, asker
		c.Reach = func(_ Owner, host string, phase Phase) Ruling {
			switch name, _, _ := strings.Cut(host, ":"); name {
			case "denied.example":
				return Ruling{Verdict: Denied, Rule: "sandlot.yaml:7"}
			case "answered.example":
				return Ruling{Verdict: Denied, Rule: "sandlot.yaml:8", Answered: true, Question: "q_2"}
			case "open.example":
				return Ruling{Verdict: Asked, Rule: "sandlot.yaml:8", Question: "q_3"}
			}
			return Ruling{}
		}
	})
	r.name("private.example", "10.0.0.1")
	program := Program{Name: "curl", PID: 41, Process: "p3"}
	for host, want := range map[string]Refusal{
		"new.example":      {Cause: NotListed},
		"other.example":    {Cause: OtherPort, Rule: "other.example:80"},
		"denied.example":   {Cause: DeniedByRule, Rule: "sandlot.yaml:7"},
		"answered.example": {Cause: AnsweredNo, Rule: "sandlot.yaml:8", Question: "q_2"},
		"no.example":       {Cause: AnsweredNo, Question: "q_1"},
		"open.example":     {Cause: NotAnswered, Rule: "sandlot.yaml:8", Question: "q_3"},
		"late.example":     {Cause: NotAnswered, Question: "q_1"},
		"private.example":  {Cause: NotPublic},
		"localhost":        {Cause: OwnName},
		"127.1":            {Cause: InvalidTarget},
	} {
		seen := events.Subscribe(event.Filter{}, events.Newest())
		r.client().refuse(toName(host, 443), wire.Who{PID: 41, Name: "curl", Process: "p3"})
		got := r.outlet.TakeRefusals()
		if len(got) != 1 {
			t.Fatalf("%s: %+v", host, got)
		}
		want.Session, want.Host, want.Port, want.Program, want.Times = "s1", host, 443, program, 1
		want.Reason, want.At = got[0].Reason, got[0].At
		if got[0] != want || got[0].Reason == "" {
			t.Errorf("%s: %+v, want %+v", host, got[0], want)
		}
		if remedy := got[0].Remedy(); (remedy == AddRule) != (host == "new.example" || host == "other.example" || host == "late.example") {
			t.Errorf("%s: the remedy %v", host, remedy)
		}
		all, _, _ := seen.Next(t.Context())
		seen.Close()
		if len(all) != 1 || all[0].Name != host+":443" || all[0].Refused != (event.Refused{Cause: string(want.Cause),
			Rule: want.Rule, Question: want.Question, Program: "curl", PID: 41}) {
			t.Errorf("%s: events %+v", host, all)
		}
	}
	r.outlet.SetPolicy(&Policy{Mode: None})
	r.client().refuse(toName("new.example", 443), wire.Who{})
	if got := r.outlet.TakeRefusals(); len(got) != 1 || got[0].Cause != NoNetwork || got[0].Program != (Program{}) ||
		got[0].Remedy() != ChangeMode {
		t.Errorf("without a network: %+v", got)
	}
}

// TestUntold: a refusal is recorded, too, if the agent says nothing of whose the request was.
func TestUntold(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist})
	taken := func(host string) func() bool {
		return func() bool {
			got := r.outlet.TakeRefusals()
			if len(got) > 0 && (len(got) > 1 || got[0].Host != host || got[0].Program != (Program{}) || got[0].Times != 1) {
				t.Errorf("%s: %+v", host, got)
			}
			return len(got) > 0
		}
	}
	c := r.client()
	c.want(wire.NetRefused, toName("old.example", 1)) // an agent of an older version
	if !taken("old.example")() {
		t.Error("an older agent's refusal waits")
	}
	c.want(wire.NetRefused, told(toName("next.example", 1)))
	if got := r.outlet.TakeRefusals(); len(got) != 0 {
		t.Errorf("recorded before it is known whose it is: %+v", got)
	}
	c.want(wire.NetRefused, told(lookup("silent.example")))
	if !taken("next.example")() {
		t.Error("another request came: the refusal before it is lost")
	}
	eventually(t, "the silent agent's refusal is recorded", taken("silent.example"))
	c.want(wire.NetRefused, told(lookup("gone.example")))
	c.Close()
	eventually(t, "the refusal of an agent that is gone is recorded", taken("gone.example"))
	if code := r.client().ask(wire.NetRequest{Kind: wire.NetWho, Who: wire.Who{PID: 1}}).Code; code != wire.NetInvalid {
		t.Errorf("whose nothing is: %v", code)
	}
}

// TestRefusalsOfServers: what a third-party server was refused is told of it alone; there are never many.
func TestRefusalsOfServers(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist})
	c := r.client()
	c.refuse(lookup("a.example"), wire.Who{PID: 2, Name: "node", Server: "one"})
	c.refuse(toName("a.example", 443), wire.Who{PID: 2, Name: "node", Server: "one"})
	c.refuse(toName("a.example", 443), wire.Who{PID: 9, Name: "curl"})
	if !r.outlet.RefusedLately() || r.b.Outlet(Owner{}, nil, new(Meter)).RefusedLately() {
		t.Error("when something was refused")
	}
	if got := r.outlet.TakeRefusals(); len(got) != 1 || got[0].Program.Name != "curl" || got[0].Times != 1 {
		t.Errorf("of no server: %+v", got)
	}
	if got := r.outlet.TakeRefusalsOf("one"); len(got) != 1 || got[0].Program.Name != "node" || got[0].Port != 443 {
		t.Errorf("of the server: %+v", got)
	}
	if len(r.outlet.TakeRefusalsOf("one")) != 0 {
		t.Error("they are told twice")
	}
	for n := range 20 {
		for server := range 20 {
			c.refuse(toName(fmt.Sprintf("n%d.example", n), 443), wire.Who{PID: 2, Server: fmt.Sprint("s", server)})
		}
		c.refuse(toName(fmt.Sprintf("n%d.example", n), 443), wire.Who{PID: 3})
	}
	if n := len(r.outlet.refusals); n > maxAllRefusals {
		t.Errorf("%d refusals are kept", n)
	}
	if got := r.outlet.TakeRefusals(); len(got) != maxRefusals {
		t.Errorf("servers push out %d refusals of others", maxRefusals-len(got))
	}
	other := r.b.Outlet(Owner{"user:ann", "s2", "box2"}, &Policy{Mode: Allowlist}, new(Meter))
	t.Cleanup(other.Close)
	other.AddRefusals([]Refusal{{Session: "s1", Host: "a.example", Port: 443, Times: 1, At: time.Now(), server: "one"}})
	if got := other.TakeRefusals(); len(got) != 1 || got[0].Session != "s1" {
		t.Errorf("of another sandbox: %+v", got)
	}
}

// TestHostileWho: what an agent says of programs is bounded, and fit to be shown.
func TestHostileWho(t *testing.T) {
	r := newRig(t, &Policy{Mode: Allowlist})
	long := strings.Repeat("\x1b[31m\nx", 200)
	r.client().refuse(toName("a.example", 443), wire.Who{PID: 7, Name: long, Process: long})
	got := r.outlet.TakeRefusals()
	if len(got) != 1 || len(got[0].Program.Name) > 600 || len(got[0].Program.Process) > 100 ||
		strings.ContainsAny(got[0].Program.Name+got[0].Program.Process, "\x1b\n") {
		t.Errorf("%+v", got)
	}
	r.client().refuse(toName("a.example", 443), wire.Who{PID: 1 << 30, Name: "x"})
	if got := r.outlet.TakeRefusals(); len(got) != 1 || got[0].Program != (Program{}) {
		t.Errorf("an impossible id: %+v", got)
	}
}
