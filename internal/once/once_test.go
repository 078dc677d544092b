package once

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/tool"
)

// desk makes calls with idempotency keys, and counts those that ran.
type desk struct {
	*Replies[*tool.Result]
	mu  sync.Mutex
	ran map[string]int // by owner and key
}

func request(c tool.Call, key string) Request {
	return Request{Principal: c.Principal, Name: c.Name, Input: c.Args, Key: key}
}

func newDesk() *desk {
	return &desk{Replies: New(Config[*tool.Result]{Size: (*tool.Result).Size}), ran: map[string]int{}}
}

func (d *desk) call(owner, key string, run func() (*tool.Result, error)) (*tool.Result, error) {
	c := tool.Call{Principal: auth.Principal{ID: owner}, Name: "t", Args: json.RawMessage(`{}`)}
	return d.Do(context.Background(), request(c, key), func(context.Context) (*tool.Result, error) {
		d.mu.Lock()
		d.ran[owner+" "+key]++
		d.mu.Unlock()
		return run()
	})
}

// held returns the number of an owner's replies, their bytes and those of all.
func (d *desk) held(owner string) (n, own, all int) {
	d.Replies.mu.Lock()
	defer d.Replies.mu.Unlock()
	return d.ownerCount(owner), d.totalBytes(owner), d.totalBytes("")
}

func says(text string) func() (*tool.Result, error) {
	return func() (*tool.Result, error) { return &tool.Result{Summary: text}, nil }
}

// runs says whether a call runs, rather than getting a remembered result.
func (d *desk) runs(t *testing.T, owner, key string) bool {
	t.Helper()
	d.mu.Lock()
	before := d.ran[owner+" "+key]
	d.mu.Unlock()
	if _, err := d.call(owner, key, says("again")); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ran[owner+" "+key] > before
}

func TestARetryRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		for range 3 {
			if r, err := d.call("ann", "k", says("first")); err != nil || r.Summary != "first" {
				t.Errorf("%v, %v", r, err)
			}
		}
		if d.ran["ann k"] != 1 {
			t.Errorf("it ran %d times", d.ran["ann k"])
		}
		if !d.runs(t, "bob", "k") {
			t.Error("bob got ann's result")
		}
		time.Sleep(Lifetime + time.Second)
		if !d.runs(t, "ann", "k") {
			t.Error("it is remembered for ever")
		}
	})
}

// What failed before anything ran runs again; what may have run does not.
func TestFaultsAndRetries(t *testing.T) {
	for kind, again := range map[fault.Kind]bool{
		fault.ResourceLimit: true, fault.SandboxCreation: true, fault.Connection: true, fault.InvalidParameters: true,
		fault.SessionNotFound: true,
		fault.CodeExecution:   false, fault.CommandExecution: false, fault.Internal: false, fault.FileAccess: false,
	} {
		f := fault.New(kind, "no")
		d := newDesk()
		if _, err := d.call("ann", "k", func() (*tool.Result, error) {
			return nil,
				fmt.Errorf("a: %w", f)
		}); !errors.Is(err, f) {
			t.Errorf("%s: got %v", f.Code(), err)
		}
		_, err := d.call("ann", "k", says("x"))
		if got := d.ran["ann k"] == 2; got != again || got != (err == nil) {
			t.Errorf("after %s it ran again: %v, want %v; %v", f.Code(), got, again, err)
		}
	}
}

func TestAPanicIsAFault(t *testing.T) {
	d := newDesk()
	for range 2 {
		_, err := d.call("ann", "k", func() (*tool.Result, error) { panic("secret") })
		f := fault.From(err)
		if f.Kind != fault.Internal || strings.Contains(f.Error(), "secret") || f.Unwrap() == nil ||
			!strings.Contains(f.Unwrap().Error(), "secret") {
			t.Errorf("got %v", err)
		}
	}
	if d.ran["ann k"] != 1 {
		t.Errorf("it ran %d times", d.ran["ann k"])
	}
}

func TestPlacesOfAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		if d.runs(t, "bob", "k"); d.runs(t, "bob", "k") {
			t.Error("bob's was forgotten")
		}
		for i := range maxOwnerReplies + 1 {
			d.runs(t, "ann", fmt.Sprint(i))
			time.Sleep(time.Millisecond)
		}
		if d.runs(t, "ann", "1") || d.runs(t, "ann", fmt.Sprint(maxOwnerReplies)) || d.runs(t, "bob", "k") {
			t.Error("more than the oldest was forgotten")
		}
		if n, _, _ := d.held("ann"); n != maxOwnerReplies {
			t.Errorf("%d are remembered", n)
		}
		if !d.runs(t, "ann", "0") {
			t.Error("the oldest is remembered")
		}
	})
}

// Calls that still run keep their places.
func TestNoPlaceIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		end := make(chan struct{})
		wait := func() (*tool.Result, error) { <-end; return &tool.Result{}, nil }
		for i := range maxReplies {
			go d.call(fmt.Sprint("user", i%10), fmt.Sprint(i), wait)
		}
		synctest.Wait()
		for owner, limit := range map[string]string{"user1": "100 calls", "ann": "1000 calls"} {
			if _, err := d.call(owner, "k", says("x")); !fault.Is(err, fault.ResourceLimit) ||
				!strings.Contains(err.Error(), limit) {
				t.Errorf("%s: %v", owner, err)
			}
		}
		close(end)
		synctest.Wait()
		if !d.runs(t, "user1", "k") {
			t.Error("it did not run")
		}
	})
}

func TestBytesOfResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		large := strings.Repeat("x", 3<<20)
		results := []*tool.Result{
			{Summary: large},
			{Content: []tool.Content{tool.Text(large)}},
			{Content: []tool.Content{{Image: &tool.Blob{Data: []byte(large)}}}},
			{Content: []tool.Content{{Resource: &tool.Resource{Text: large}}}},
			{Fields: map[string]any{"a": []string{large}}},
		}
		for i := range 40 {
			owner := fmt.Sprint("user", i/8)
			if _, err := d.call(owner, fmt.Sprint(i), func() (*tool.Result, error) {
				return results[i%len(results)],
					nil
			}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
			if d.runs(t, owner, fmt.Sprint(i)) {
				t.Errorf("the newest, %d, was forgotten", i)
			}
			if _, own, all := d.held(owner); own > maxOwnerReplyBytes || all > maxReplyBytes {
				t.Errorf("after %d, %d and %d bytes are held", i, own, all)
			}
		}
		for owner, want := range map[string]int{"user0": 4, "user3": 4, "user4": 4} { // who had most lost some
			if n, _, _ := d.held(owner); n < want || n > want+1 {
				t.Errorf("%d results of %s are remembered, want %d", n, owner, want)
			}
		}
		held, _, _ := d.held("user0")
		huge := strings.Repeat("x", maxOwnerReplyBytes+1)
		r, err := d.call("user0", "huge", says(huge))
		if n, _, _ := d.held("user0"); err != nil || r.Summary != huge || n != held {
			t.Errorf("%v, %d are remembered", err, n)
		}
	})
}

// A call that goes on when its client has left ends with the client's token.
func TestARunEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		var revoke context.CancelCauseFunc
		d.Replies.TokenContext = func(ctx context.Context, p auth.Principal) (context.Context, func()) {
			if p.Token != "a token" {
				t.Errorf("it holds for %+v", p)
			}
			ctx, revoke = context.WithCancelCause(ctx)
			return ctx, func() { revoke(nil) }
		}
		client, leave := context.WithCancel(t.Context())
		var why error
		c := tool.Call{Principal: auth.Principal{ID: "user:ann", Token: "a token"}, Name: "t",
			Args: json.RawMessage(`{}`)}
		go func() {
			_, _ = d.Do(client, request(c, "k"), func(ctx context.Context) (*tool.Result, error) {
				<-ctx.Done()
				why = context.Cause(ctx)
				return nil, why
			})
		}()
		synctest.Wait()
		leave()
		time.Sleep(time.Minute)
		if synctest.Wait(); why != nil {
			t.Fatalf("it ended with its client: %v", why)
		}
		revoke(auth.ErrEnded)
		if synctest.Wait(); !errors.Is(why, auth.ErrEnded) {
			t.Errorf("after its token it runs on: %v", why)
		}
	})
}

// Close ends a run whose client has left, waits for it, and lets none begin.
func TestCloseWaitsForRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		client, leave := context.WithCancel(t.Context())
		c := tool.Call{Principal: auth.Principal{ID: "ann"}, Name: "t", Args: json.RawMessage(`{}`)}
		ended := false
		go d.Do(client, request(c, "k"), func(ctx context.Context) (*tool.Result, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
			return nil, ctx.Err()
		})
		synctest.Wait()
		leave()
		if d.Close(); !ended {
			t.Error("the run goes on after Close")
		}
		if _, err := d.call("ann", "next", says("x")); !fault.Is(err, fault.Connection) {
			t.Errorf("a call after Close: %v", err)
		}
		d.Close()
	})
}
