package servers

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// TestWithRefused: an error says what the server was not allowed to reach, and what others have of it stays.
func TestWithRefused(t *testing.T) {
	list := []egress.Refusal{{Session: "s1", Host: "a.example", Port: 443, Reason: "no rule allows it", Cause: egress.NotListed,
		Program: egress.Program{Name: "node", PID: 7}, Times: 1}}
	if withRefused(nil, list) != nil {
		t.Error("there is no error")
	}
	for _, err := range []error{fault.New(fault.Connection, "it ended."), &tool.ExternalError{Code: 7, Message: "failed"},
		errors.New("other")} {
		if got := withRefused(err, nil); got != err {
			t.Errorf("nothing was refused: %v", got)
		}
	}
	ended := fault.New(fault.Connection, "it ended.")
	ended.Advice = []string{"look at its log"}
	got := fault.From(withRefused(ended, list))
	if got.Message != "it ended. Network access was refused: a.example: no rule allows it" || len(got.Advice) != 2 ||
		!strings.Contains(got.Advice[0], "sandlot network allow a.example:443 --session s1") ||
		got.Context["network_refused"] == nil || ended.Context != nil || len(ended.Advice) != 1 || ended.Message != "it ended." {
		t.Errorf("%+v of %+v", got, ended)
	}
	answer := &tool.ExternalError{Code: 7, Message: "failed"}
	told, ok := errors.AsType[*tool.ExternalError](withRefused(answer, list))
	if !ok || told.Code != 7 || !strings.HasPrefix(told.Message, "failed\nNetwork access refused: a.example:443: no rule") ||
		answer.Message != "failed" {
		t.Errorf("%+v of %+v", told, answer)
	}
}

// TestTellRefused: a client is told with the result, and the result of code stays what it is.
func TestTellRefused(t *testing.T) {
	list := []egress.Refusal{{Session: "s1", Host: "a.example", Port: 443, Reason: "no rule allows it", Cause: egress.NotListed, Times: 2}}
	s := &server{servers: &Servers{}}
	result := json.RawMessage(`{"content":[],"structuredContent":{"a":1}}`)
	if got := s.tellRefused(tool.Call{}, result, nil); string(got) != string(result) {
		t.Errorf("nothing was refused: %s", got)
	}
	if got := s.tellRefused(tool.Call{FromSession: "s2"}, result, list); string(got) != string(result) {
		t.Errorf("for code: %s", got)
	}
	got := string(s.tellRefused(tool.Call{}, result, list))
	for _, want := range []string{`"structuredContent":{"a":1}`, "Network access refused: a.example:443",
		`"sandlot/network_refused":[{"host":"a.example","port":443,"reason":"no rule allows it","cause":"not_listed","times":2}]`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}
