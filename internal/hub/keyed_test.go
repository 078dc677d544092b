package hub

import (
	"context"
	"testing"
	"testing/synctest"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/once"
	"sandlot/internal/policy"
	"sandlot/internal/quota"
	"sandlot/internal/tool"
)

// keyed is a source of a tool whose calls go on when the client has left.
type keyed struct {
	replies *once.Replies[*tool.Result]
	block   chan struct{}
}

func newKeyed() keyed {
	return keyed{once.New(once.Config[*tool.Result]{Size: (*tool.Result).Size}), make(chan struct{})}
}

func (k keyed) Tools(context.Context, auth.Principal) []tool.Tool { return nil }

func (k keyed) Find(auth.Principal, string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.CodeExecute, DetailFollows: true,
		Detail: func(tool.Call) (tool.Detail, error) { return tool.Detail{}, nil },
		Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
			q := once.Request{Principal: c.Principal, Name: c.Name, Key: string(c.Args), Input: c.Args,
				Hold: c.Door().Hold}
			return k.replies.Do(ctx, q, func(ctx context.Context) (*tool.Result, error) {
				<-k.block
				if err := c.May(ctx, policy.CodeExecute, "python", tool.Question{}); err != nil {
					return nil, err
				}
				return &tool.Result{Summary: "ran"}, nil
			})
		}}, true
}

// leave begins a call with a key, and ends it as a client does that disconnects.
func leave(t *testing.T, h *Hub, key string) error {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := h.Call(ctx, tool.Call{Principal: auth.User("ann", false), Name: "x", Args: []byte(key)})
		done <- err
	}()
	synctest.Wait()
	cancel()
	return <-done
}

// A run counts against the quota of calls until it ends, also when its client has left.
func TestARunCountsUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, q := newKeyed(), quota.New()
		defer k.replies.Close()
		q.Set(quota.Settings{Users: quota.Limits{Calls: 1}})
		h := New(Config{Sources: []tool.Source{k}, Quotas: q, Events: event.New()})
		_ = leave(t, h, "1")
		if err := leave(t, h, "2"); !fault.Is(err, fault.ResourceLimit) {
			t.Errorf("a second run began: %v", err)
		}
		close(k.block)
		synctest.Wait()
		if _, err := h.Call(t.Context(), tool.Call{Principal: auth.User("ann", false), Name: "x",
			Args: []byte("3")}); err != nil {
			t.Errorf("after the run: %v", err)
		}
	})
}

// A run whose client has left asks policy about its detail.
func TestARunDecidesWithoutItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule, err := policy.ParseRule("deny * code.execute bash", "x:1")
		if err != nil {
			t.Fatal(err)
		}
		rules := new(policy.Current)
		rules.Set(policy.Compile([]policy.Rule{rule}))
		k := newKeyed()
		defer k.replies.Close()
		h := New(Config{Sources: []tool.Source{k}, Rules: rules, Events: event.New()})
		_ = leave(t, h, "k")
		close(k.block)
		synctest.Wait()
		r, err := h.Call(t.Context(), tool.Call{Principal: auth.User("ann", false), Name: "x", Args: []byte("k")})
		if err != nil || r.Summary != "ran" {
			t.Errorf("the retry got %v, %v", r, err)
		}
	})
}

// What a run asked policy is asked again with its details, also if no rule was about them when it ran.
func TestReplayAsksAboutDetails(t *testing.T) {
	k := newKeyed()
	defer k.replies.Close()
	close(k.block)
	rules := new(policy.Current)
	h := New(Config{Sources: []tool.Source{k}, Rules: rules, Events: event.New()})
	var trail Trail
	c := tool.Call{Principal: ann, Name: "x", Args: []byte("k")}
	if _, err := h.Call(WithTrail(t.Context(), &trail), c); err != nil {
		t.Fatal(err)
	}
	if err := h.Replay(t.Context(), ann, &trail); err != nil {
		t.Error(err)
	}
	for text, allowed := range map[string]bool{"deny * code.execute bash": true, "deny * code.execute python": false,
		"deny * code.execute": false, "ask * code.execute": true, "deny bob code.execute": true} {
		rules.Set(rulesOf(t, text))
		if err := h.Replay(t.Context(), ann, &trail); (err == nil) != allowed || err != nil &&
			!fault.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v", text, err)
		}
	}
	narrow := ann
	narrow.Scope = auth.NewScope("file.read")
	rules.Set(nil)
	if err := h.Replay(t.Context(), narrow, &trail); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a token without the operation gets the answer: %v", err)
	}
}
