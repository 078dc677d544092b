package reason

import (
	"strings"
	"testing"

	"sandlot/internal/egress"
)

// TestRefusals: the text has each refusal and one advice for each kind, with the session that it is about; the data has
// what the agent knows of the program.
func TestRefusals(t *testing.T) {
	if got := Refusals(nil); got.Text != "" || got.Hosts != nil || got.Advice != "" {
		t.Errorf("nothing was refused: %+v", got)
	}
	got := Refusals([]egress.Refusal{
		{Session: "one", Host: "a.example", Port: 443, Reason: "no rule allows it", Cause: egress.NotListed, Times: 3,
			Program: egress.Program{Name: "curl", PID: 41, Process: "p2"}},
		{Session: "one", Host: "b.example", Reason: "no rule allows it", Cause: egress.NotListed, Times: 1},
		{Session: "two", Host: "c.example", Port: 80, Reason: "the rules allow this host on other ports only",
			Cause: egress.OtherPort, Rule: "c.example:443", Times: 1},
		{Session: "one", Host: "10.0.0.1", Port: 80, Reason: "its address 10.0.0.1 is private", Cause: egress.NotPublic, Times: 1},
		{Session: "one", Host: "d.example", Port: 80, Reason: "the user was asked, and refused", Cause: egress.AnsweredNo,
			Question: "q_1", Times: 1},
	})
	for _, want := range []string{"Network access refused: a.example:443: no rule allows it\n",
		"Network access refused: b.example: no rule", "`sandlot network allow a.example:443 b.example --session one`",
		"`sandlot network allow c.example:80 --session two`", "network.allow_private", "d.example:80: the user was asked"} {
		if !strings.Contains(got.Text, want) {
			t.Errorf("no %q in %s", want, got.Text)
		}
	}
	if strings.Contains(got.Text, "d.example:80 --session") || !strings.HasSuffix(got.Text, got.Advice) {
		t.Errorf("advice %q of %s", got.Advice, got.Text)
	}
	if len(got.Hosts) != 5 || got.Hosts[0] != (RefusedHost{Host: "a.example", Port: 443, Reason: "no rule allows it",
		Cause: "not_listed", Program: "curl", PID: 41, ProcessID: "one.p2", Times: 3}) || got.Hosts[2].Rule != "c.example:443" ||
		got.Hosts[4].QuestionID != "q_1" {
		t.Errorf("%+v", got.Hosts)
	}
}
