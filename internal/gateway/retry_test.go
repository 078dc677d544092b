package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/gateway/relay"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
)

var local = auth.Local

func resultOf(t *testing.T, answer string) (kind, state, rest string) {
	t.Helper()
	var r struct {
		Result struct{ ResultType, RequestState string }
	}
	if err := json.Unmarshal([]byte(answer), &r); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return r.Result.ResultType, r.Result.RequestState, answer
}

// A third-party server may be a Sandlot too: its states are encrypted again.
func TestStatesOfAnotherSandlot(t *testing.T) {
	theirState := relay.StatePrefix + "AAAA"
	var came string
	g := newGateway(&fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
		call: func(_ context.Context, c tool.Call) (*tool.Result, error) {
			if c.Inputs.Empty() {
				return &tool.Result{Raw: asksInput("q", theirState)}, nil
			}
			came = c.Inputs.State
			return &tool.Result{Raw: json.RawMessage(`{"content":[]}`)}, nil
		}})
	kind, state, answer := resultOf(t, ask(g, "tools/call", "ext_t", `"name":"ext_t","arguments":{}`))
	if kind != "input_required" || state == theirState || !strings.HasPrefix(state, relay.StatePrefix) {
		t.Fatalf("asked with %s", answer)
	}
	kind, _, answer = resultOf(t, ask(g, "tools/call", "ext_t",
		fmt.Sprintf(`"name":"ext_t","arguments":{},"requestState":%q,"inputResponses":{"q":{"action":"accept"}}`,
			state)))
	if kind != "complete" || came != theirState {
		t.Errorf("the server got %q; %s", came, answer)
	}
	if got := ask(g, "tools/call", "ext_t", fmt.Sprintf(`"name":"ext_t","arguments":{},"requestState":%q`,
		theirState)); !strings.Contains(got, "-32602") {
		t.Errorf("a state that was not sealed here: %s", got)
	}
}

// A call that waits for the client's answer ends with the gateway, and leaves no goroutine:
// synctest would report it.
func TestCloseEndsSuspendedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		g := newGateway(&fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
			call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
				_, err := c.Client.Ask(ctx, "elicitation/create", json.RawMessage(`{"message":"m"}`))
				ended <- err
				return nil, err
			}})
		kind, _, answer := resultOf(t, ask(g, "tools/call", "ext_t", `"name":"ext_t","arguments":{}`))
		if kind != "input_required" {
			t.Fatal(answer)
		}
		g.Close()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("it was answered")
			}
		default:
			t.Error("the call still waits")
		}
		g.Close()
	})
}

// The number of suspended calls is limited for each user, over all of their tokens. Calls that
// have ended are not counted.
func TestSuspendedCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(&fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
			call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
				_, err := c.Client.Ask(ctx, "elicitation/create", json.RawMessage(`{"message":"m"}`))
				return nil, err
			}})
		call := func(user string, token int) string {
			return askAs(g, withToken(user, fmt.Sprint("tok_", user, token), false), "tools/call", "ext_t",
				`"name":"ext_t","arguments":{}`)
		}
		most := int(limit.Default[limit.WaitingCalls])
		for n := range most {
			if kind, _, answer := resultOf(t, call("ann", n%8)); kind != "input_required" {
				t.Fatalf("%d: %s", n, answer)
			}
		}
		if got := call("ann", 99); !strings.Contains(got, "RESOURCE_LIMIT") || !strings.Contains(got, "waiting_calls") {
			t.Errorf("one more, by another token: %s", got)
		}
		if kind, _, answer := resultOf(t, call("bob", 1)); kind != "input_required" {
			t.Errorf("another user: %s", answer)
		}
		time.Sleep(tool.UserTimeout + time.Minute) // nobody answered
		synctest.Wait()
		if kind, _, answer := resultOf(t, call("ann", 99)); kind != "input_required" {
			t.Errorf("after the others ended: %s", answer)
		}
		g.Close()
	})
}

// A suspended call ends with its token, whether it waits for the user's answer or, after the
// answer, for the server. Another token of the same user cannot continue it, and that token's
// own calls stay.
func TestATokenEndsSuspendedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ended := &fakeTokens{}, make(chan string, 10)
		g := newGatewayWithTokens(l, &fakeExternal{tools: []tool.Tool{externalTool("ext_t", `{"type":"object"}`)},
			call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
				_, err := c.Client.Ask(ctx, "elicitation/create", json.RawMessage(`{"message":"m"}`))
				if err == nil {
					<-ctx.Done() // the server thinks
					err = ctx.Err()
				}
				ended <- c.Principal.Token
				return nil, err
			}})
		one, two := withToken("ann", "tok_1", false), withToken("ann", "tok_2", false)
		call := func(p auth.Principal, more string) string {
			return askAs(g, p, "tools/call", "ext_t", `"name":"ext_t","arguments":{}`+more)
		}
		goesOn := func(state string) string {
			return fmt.Sprintf(`,"requestState":%q,"inputResponses":{"input":{"action":"accept"}}`, state)
		}
		_, waits, _ := resultOf(t, call(one, ""))
		_, thinks, _ := resultOf(t, call(one, ""))
		_, others, _ := resultOf(t, call(two, ""))
		answers := make(chan string, 1)
		go func() { answers <- call(one, goesOn(thinks)) }()
		synctest.Wait()
		if got := call(two, goesOn(waits)); !strings.Contains(got, "is over") {
			t.Errorf("with her other token: %s", got)
		}
		l.end(one.Token)
		synctest.Wait()
		if len(ended) != 2 || <-ended != one.Token || <-ended != one.Token {
			t.Errorf("%d calls more ended", len(ended))
		}
		// The connection has ended with the token, so the error may or may not be written.
		if got := <-answers; got != "" && !strings.Contains(got, `"error"`) {
			t.Errorf("the one that waited for its server: %s", got)
		}
		if got := call(one, goesOn(waits)); !strings.Contains(got, `"error"`) {
			t.Errorf("after its token: %s", got)
		}
		go func() { answers <- call(two, goesOn(others)) }()
		synctest.Wait()
		if len(ended) != 0 {
			t.Error("the other token's call ended")
		}
		g.Close()
		l.end(two.Token)
		synctest.Wait()
		<-answers
		if release, err := g.Limits.Acquire("user:ann", limit.WaitingCalls,
			limit.Default[limit.WaitingCalls]); err != nil {
			t.Errorf("something still counts: %v", err)
		} else {
			release()
		}
	})
}
