package hub

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/builtin"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/serverstest"
	"sandlot/internal/tool"
)

// detailed is a source with one tool, whose calls remove something.
type detailed struct{ source }

func (detailed) Find(auth.Principal, string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.ShellExecute,
		Detail: func(tool.Call) (tool.Detail, error) { return tool.Detail{Text: "rm x"}, nil },
		Call: func(context.Context, tool.Call) (*tool.Result, error) {
			return &tool.Result{}, nil
		}}, true
}

// A call is decided by the rules of one moment: no change from one set of rules to another lets through what both
// deny.
func TestRulesOfOneMoment(t *testing.T) {
	current := new(policy.Current)
	all, some := rulesOf(t, "deny * shell.execute"), rulesOf(t, "deny * shell.execute rm *")
	current.Set(all)
	h := New(Config{Rules: current, Sources: []tool.Source{detailed{}}})
	done := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				current.Set(some)
				current.Set(all)
			}
		}
	})
	defer changes.Wait()
	defer close(done)
	for range 100_000 {
		if _, err := h.Call(t.Context(), tool.Call{Principal: ann, Name: "x"}); !fault.Is(err, fault.Forbidden) {
			t.Fatalf("a call that both sets of rules deny: %v", err)
		}
	}
}

// permits permits the operations of a list, and refuses others without naming a rule.
type permits []policy.Operation

func (p permits) decide(q policy.Question) policy.Decision {
	if slices.Contains(p, q.Operation) {
		return policy.Decision{Effect: policy.Allow}
	}
	return policy.Decision{}
}

// A refusal without a rule is none that leaves the decision to the settings of third-party servers.
func TestRefusalsWithoutARule(t *testing.T) {
	current := new(policy.Current)
	h := New(Config{Rules: current, Events: event.New()})
	r := Request{Principal: ann, Operation: policy.MCPConnect, Detail: "docs https://x", consents: true}
	if decided, err := (&door{hub: h, request: r}).Consent(t.Context(), tool.Question{}); !decided || err == nil {
		t.Error("a refusal lets the settings decide")
	}
	connections := servers.New(servers.Config{Store: noConnections{}, Version: "1", Dial: serverstest.Dial})
	t.Cleanup(connections.Close)
	var permitted permits
	h = New(Config{Decide: func(q policy.Question) policy.Decision { return permitted.decide(q) }, Events: event.New(),
		Sources: []tool.Source{builtin.New(builtin.Config{Connections: connections})}})
	address := serverstest.Empty(t, nil)
	connect := fmt.Sprintf(`{"name":"docs","url":%q}`, address)
	call := func(name, arguments string) error {
		_, err := h.Call(t.Context(), tool.Call{Principal: ann, Name: name, Args: []byte(arguments)})
		return err
	}
	for _, c := range []struct {
		permitted       permits
		tool, arguments string
		want            bool
	}{
		{permits{}, "connect_external_mcp", connect, false},
		{permits{policy.MCPConnect}, "connect_external_mcp", connect, true},
		{permits{policy.MCPRestart}, "restart_external_mcp", `{"name":"docs"}`, true},
		{permits{policy.MCPRestart}, "restart_external_mcp", `{"name":"docs","headers":{"X-A":"1"}}`, false},
		{permits{policy.MCPRestart, policy.MCPConnect}, "restart_external_mcp", `{"name":"docs","headers":{"X-A":"1"}}`,
			true},
	} {
		permitted = c.permitted
		if err := call(c.tool, c.arguments); (err == nil) != c.want || err != nil && !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s %s with %v: %v", c.tool, c.arguments, c.permitted, err)
		}
	}
}

// What a run asked policy is complete, or nobody gets its answer again.
func TestTrailIsCompleteOrRefuses(t *testing.T) {
	current := new(policy.Current)
	h := New(Config{Rules: current, Events: event.New()})
	run := func(n int, pad string) *Trail {
		trail := &Trail{}
		for i := range n {
			if _, err := h.permit(WithTrail(t.Context(), trail), Request{Principal: ann, Operation: policy.SecretUse,
				Detail: fmt.Sprintf("KEY_%d", i) + pad}); err != nil {
				t.Fatal(err)
			}
		}
		return trail
	}
	many := run(1000, "")
	if err := h.Replay(t.Context(), ann, many); err != nil {
		t.Errorf("1,000 requests: %v", err)
	}
	current.Set(rulesOf(t, "deny * secret.use KEY_999"))
	if err := h.Replay(t.Context(), ann, many); !fault.Is(err, fault.Forbidden) {
		t.Errorf("the last request of 1,000 is denied now: %v", err)
	}
	current.Set(nil)
	huge := run(300, strings.Repeat("x", 8<<10))
	if err := h.Replay(t.Context(), ann, huge); !fault.Is(err, fault.Forbidden) || huge.Size() > maxTrail {
		t.Errorf("more than fits: %v, %d bytes", err, huge.Size())
	}
	same := &Trail{}
	for range 100_000 {
		same.add(Request{Principal: ann, Operation: policy.SecretUse, Detail: "KEY"})
	}
	if err := h.Replay(t.Context(), ann, same); err != nil || len(same.requests) != 1 {
		t.Errorf("the same request many times: %v, %d requests", err, len(same.requests))
	}
}

// The answer of a run that is a part of another one is denied with what the inner run asked.
func TestTrailsOfPartsCount(t *testing.T) {
	current := new(policy.Current)
	h := New(Config{Rules: current, Events: event.New()})
	ask := func(ctx context.Context, o policy.Operation) {
		if _, err := h.permit(ctx, Request{Principal: ann, Operation: o}); err != nil {
			t.Fatal(err)
		}
	}
	var outer, second Trail
	ctx := WithTrail(t.Context(), &outer)
	inner, trail := (&door{hub: h}).Record(ctx)
	ask(inner, policy.SecretUse)
	ask(ctx, policy.ShellExecute)
	// A second request gets the answer of the inner run, and a third one that of the second.
	if err := trail.Recheck(WithTrail(t.Context(), &second), ann); err != nil {
		t.Fatal(err)
	}
	current.Set(rulesOf(t, "deny * secret.use"))
	for name, trail := range map[string]*Trail{"the outer run": &outer, "a run with its answer": &second} {
		if err := h.Replay(t.Context(), ann, trail); !fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
