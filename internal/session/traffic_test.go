package session

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/auth"
	"sandlot/internal/egress"
	quotas "sandlot/internal/quota"
	"sandlot/internal/sandbox/sandboxtest"
)

// echoes is a broker whose whole network is one server that says what it hears.
func echoes(l egress.Limits) *egress.Broker {
	return egress.New(egress.Config{
		Limits:       l,
		Proxy:        func(string, uint16) (*url.URL, error) { return nil, nil },
		OwnAddresses: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")} },
		Dial: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { io.Copy(here, here); here.Close() }()
			return there, nil
		},
	})
}

// networked returns testSessions whose sandboxes reach everything, at most 100 000 bytes.
func networked(t *testing.T) *testSessions {
	w := newTestSessions(t, nil)
	w.network()
	return w
}

func (w *testSessions) network() {
	w.out = echoes(egress.Limits{Bytes: 100_000})
	w.Egress = w.out
	w.SetPolicies(Policies{Operator: egress.Policy{Mode: egress.Public}})
}

// again opens the Sessions again, as after a crash of the server.
func (w *testSessions) again() {
	w.t.Helper()
	old := w.Sessions
	w.open(nil)
	w.SetPolicies(old.Policies())
	// What the test process has of the old one may go now.
	for _, s := range old.all() {
		if s.cur.booted != nil {
			s.cur.booted.Detach()
		}
	}
}

// moves sends n bytes out of the lease's sandbox and has them back. It returns
// the answer of the broker.
func moves(t *testing.T, l *Lease, n int) wire.NetReply {
	t.Helper()
	here, there := net.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); l.Booted.Outlet.Serve(context.Background(), there) }()
	defer func() { here.Close(); <-done }()
	to := wire.NetRequest{Kind: wire.NetConnect, Address: []byte{20, 0, 0, 1}, Port: 1}
	if err := wire.WriteNetRequest(here, to); err != nil {
		t.Fatal(err)
	}
	reply, err := wire.ReadNetReply(here)
	if err != nil {
		t.Fatal(err)
	}
	if reply.Code == wire.NetOK {
		go here.Write(make([]byte, n))
		if _, err := io.ReadFull(here, make([]byte, n)); err != nil {
			reply.Message = err.Error()
		}
	}
	return reply
}

// networkOf returns what a session's network is.
func (w *testSessions) networkOf(p auth.Principal, id string) Network {
	w.t.Helper()
	n, err := w.Network(p, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// What a session moved counts over all its sandboxes, and what it may move is no
// other session's.
func TestTrafficOutlivesSandboxes(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.network()
		l := w.use(ann, OpenRequest{ID: "new"})
		for i := range 4 {
			if r := moves(t, l, 12_000); r.Code != wire.NetOK || r.Message != "" {
				t.Fatalf("sandbox %d: %v", i, r)
			}
			w.fake.Box(l.Booted.ID).Kill("killed")
			before := l.Booted.ID
			for range 500 {
				if !l.Booted.Agent.Linked() {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if l = w.use(ann, OpenRequest{ID: l.ID()}); l.Booted.ID == before {
				t.Fatal("it has the sandbox that died")
			}
		}
		n := w.networkOf(ann, l.ID())
		if n.Traffic != (egress.Traffic{Up: 48_000, Down: 48_000}) || n.MaxBytes != 100_000 || n.Usage.Up != 0 {
			t.Errorf("%+v, the sandbox alone %+v", n, n.Usage)
		}
		if r := moves(t, l, 12_000); r.Message == "" {
			t.Error("more than the limit passed")
		}
		if r := moves(t, l, 1); r.Code != wire.NetRefused || !strings.Contains(r.Message, "100000 bytes") {
			t.Errorf("the next connection: %v", r)
		}
		list := l.Refusals()
		if len(list) != 1 || list[0].Times != 2 || list[0].Remedy() != egress.RaiseByteLimit {
			t.Errorf("%+v", list)
		}
		for _, other := range []*Lease{w.use(ann, OpenRequest{ID: "new"}), w.use(bob, OpenRequest{})} {
			if r := moves(t, other, 12_000); r.Code != wire.NetOK || r.Message != "" {
				t.Errorf("another session: %v", r)
			}
		}
		// The operator lets it begin anew.
		if n, err := w.ResetTraffic(t.Context(), auth.SocketOwner(), l.ID()); err != nil ||
			n.Traffic != (egress.Traffic{}) {
			t.Errorf("%+v, %v", n, err)
		}
		if r := moves(t, l, 12_000); r.Code != wire.NetOK || r.Message != "" {
			t.Errorf("counted anew: %v", r)
		}
		infos, err := w.List(t.Context(), ann, l.ID())
		if err != nil || infos[0].Traffic != (egress.Traffic{Up: 12_000, Down: 12_000}) ||
			infos[0].MaxBytes != 100_000 {
			t.Errorf("%+v, %v", infos, err)
		}
	})
}

// A crash of the server forgets no more than what moved since it was stored, and
// storing is one write for all, however many connections there were.
func TestTrafficOutlivesServer(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := networked(t)
		defer synctest.Wait()
		defer w.close()
		run := func() (stop func()) {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { w.Run(ctx); close(done) }()
			return func() { cancel(); <-done }
		}
		stop := run()
		l, other := w.use(ann, OpenRequest{ID: "new"}), w.use(bob, OpenRequest{})
		const each = 100
		for range 100 {
			moves(t, l, each)
			moves(t, other, each)
		}
		time.Sleep(countInterval + time.Millisecond)
		w.store.mu.Lock()
		puts := w.store.puts
		w.store.mu.Unlock()
		if puts != 1 {
			t.Errorf("it was stored %d times", puts)
		}
		moves(t, l, 7) // is lost: nothing stops in order
		stop()
		w.again()
		for _, x := range []struct {
			who auth.Principal
			l   *Lease
		}{{ann, l}, {bob, other}} {
			if n := w.networkOf(x.who, x.l.ID()); n.Traffic != (egress.Traffic{Up: 100 * each, Down: 100 * each}) {
				t.Errorf("after a crash: %+v", n.Traffic)
			}
		}
		// What cannot be stored now is stored later; a record that is stored
		// meanwhile takes nothing back.
		stop = run()
		l = w.use(ann, OpenRequest{ID: l.ID()})
		w.store.mu.Lock()
		w.store.broken = errors.New("the disk is full")
		w.store.mu.Unlock()
		moves(t, l, each)
		time.Sleep(2 * countInterval)
		if _, err := w.ResetTraffic(t.Context(), auth.SocketOwner(), l.ID()); err == nil {
			t.Error("counted anew without being stored")
		}
		w.store.mu.Lock()
		w.store.broken = nil
		w.store.mu.Unlock()
		time.Sleep(2 * countInterval)
		l.persistUse()
		stop()
		w.again()
		l = w.use(ann, OpenRequest{ID: l.ID()})
		if n := w.networkOf(ann, l.ID()); n.Traffic != (egress.Traffic{Up: 101 * each, Down: 101 * each}) {
			t.Errorf("after the second crash: %+v", n.Traffic)
		}
		// A server that ends in order forgets nothing.
		moves(t, l, 3)
		w.Close(context.Background())
		w.again()
		if n := w.networkOf(ann, l.ID()); n.Traffic != (egress.Traffic{Up: 101*each + 3, Down: 101*each + 3}) {
			t.Errorf("after an orderly end: %+v", n.Traffic)
		}
	})
}

// What a principal moves on a day is bounded over all sessions, also those that are removed and those of the next
// server; the next day it begins anew, and others have their own.
func TestTrafficOfADay(t *testing.T) {
	if !sandboxtest.Alone(t) {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		w := newTestSessions(t, nil)
		defer synctest.Wait()
		defer w.close()
		w.Quotas = quotas.New()
		w.Quotas.Set(quotas.Settings{Users: quotas.Limits{TrafficMBPerDay: 1}})
		w.out = echoes(egress.Limits{})
		w.Egress = w.out
		w.SetPolicies(Policies{Operator: egress.Policy{Mode: egress.Public}})
		passes := func(l *Lease, n int) {
			t.Helper()
			if r := moves(t, l, n); r.Code != wire.NetOK || r.Message != "" {
				t.Errorf("%d bytes: %v", n, r)
			}
		}
		refused := func(l *Lease) {
			t.Helper()
			if r := moves(t, l, 1); r.Code != wire.NetRefused || !strings.Contains(r.Message, "all 1 MB") ||
				!strings.Contains(r.Message, "quota") {
				t.Errorf("beyond the quota: %v", r)
			}
			if list := l.Refusals(); len(list) != 1 || list[0].Remedy() != egress.RaiseDayQuota {
				t.Errorf("%+v", list)
			}
		}
		first, second := w.use(ann, OpenRequest{ID: "new"}), w.use(ann, OpenRequest{ID: "new"})
		passes(first, 200_000)
		w.Stop(context.Background(), ann, first.ID())
		passes(second, 200_000)
		w.storeCounts(t.Context())
		limits := w.Quotas
		w.again() // a crash
		w.Quotas = limits
		if text := w.QuotaText(ann.ID); text != "1 of 1 MB of network today (UTC)" {
			t.Errorf("in use are %s", text)
		}
		third := w.use(ann, OpenRequest{ID: "new"})
		if r := moves(t, third, 200_000); r.Message == "" {
			t.Error("more than the quota passed")
		}
		third.Refusals()
		refused(third)
		refused(w.use(ann, OpenRequest{ID: second.ID()}))
		passes(w.use(bob, OpenRequest{}), 200_000)
		time.Sleep(24 * time.Hour)
		third = w.use(ann, OpenRequest{ID: third.ID()})
		passes(third, 200_000)
		w.storeCounts(t.Context())
		if d := w.store.days[ann.ID]; d.Up != 200_000 || d.Number != egress.Today() {
			t.Errorf("the next day is stored as %+v", d)
		}
	})
}

// TestPolicyWhileWaking: a session that wakes while the policy of the network changes has the new one.
func TestPolicyWhileWaking(t *testing.T) {
	in(t, sleeps, func(t *testing.T, w *testSessions) {
		w.network()
		id := w.use(ann, OpenRequest{}).ID()
		if err := w.sleepNow(id); err != nil {
			t.Fatal(err)
		}
		w.fake.OnStep = func(s sandboxtest.Step) error {
			if s == sandboxtest.StepRemove { // its sandbox runs, and the session does not have it yet
				w.SetPolicies(Policies{Operator: egress.Policy{Mode: egress.None}})
			}
			return nil
		}
		l, err := w.Open(t.Context(), ann, OpenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Release()
		if got := moves(t, l, 1); got.Code != wire.NetRefused {
			t.Errorf("the network answers %v %q", got.Code, got.Message)
		}
	})
}
