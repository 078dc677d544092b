package port

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// memory is a Store that can fail.
type memory struct {
	all    map[portKey]Record
	broken error
}

func (m *memory) PutPort(_ context.Context, r Record) error {
	if m.broken == nil {
		m.all[portKey{r.Session, r.Port}] = r
	}
	return m.broken
}

func (m *memory) Ports(context.Context) (all []Record, err error) {
	for _, r := range m.all {
		all = append(all, r)
	}
	return all, m.broken
}

func (m *memory) RemovePort(_ context.Context, session string, port int) error {
	if m.broken == nil {
		delete(m.all, portKey{session, port})
	}
	return m.broken
}

// world is ports over sessions that can go.
type world struct {
	*Ports
	t        *testing.T
	store    *memory
	sessions map[string]string // owner by session
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: &memory{all: map[portKey]Record{}}, sessions: map[string]string{one: "ann", two: "bob"}}
	w.open()
	return w
}

// open makes ports over the same store, as a new server does.
func (w *world) open() {
	w.Ports = New(Config{Store: w.store, SessionExists: func(owner, s string) bool { return w.sessions[s] == owner },
		Log: slog.New(slog.DiscardHandler)})
	if err := w.Recover(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) expose(owner, session string, port int, public bool, life time.Duration) string {
	w.t.Helper()
	_, token, err := w.Expose(context.Background(), owner, session, port, public, life)
	if err != nil {
		w.t.Fatal(err)
	}
	return token.Reveal()
}

func (w *world) check(session string, port int, token string, want error) {
	w.t.Helper()
	if _, err := w.Check(session, port, token); !errors.Is(err, want) {
		w.t.Errorf("%s %d %q: %v, want %v", session, port, token, err, want)
	}
}

const (
	one = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	two = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestTokens(t *testing.T) {
	w := newWorld(t)
	token := w.expose("ann", one, 80, false, DefaultLifetime)
	other := w.expose("bob", two, 80, false, DefaultLifetime)
	if len(token) < 4+26 || token == other || strings.Contains(w.store.all[portKey{one, 80}].Hash, token) ||
		w.store.all[portKey{one, 80}].Hash != secret.Hash(token) {
		t.Errorf("tokens %q, %q; stored %+v", token, other, w.store.all)
	}
	w.check(one, 80, token, nil)
	w.check(two, 80, other, nil)
	for _, wrong := range []string{other, token[:len(token)-1], token + "x", strings.ToUpper(token), secret.Hash(token),
		"x"} {
		w.check(one, 80, wrong, ErrUnknown)
	}
	w.check(one, 81, token, ErrUnknown) // of another port
	// Who brings no token learns nothing, whatever there is.
	w.check(one, 80, "", ErrNoToken)
	w.check(one, 81, "", ErrNoToken)
	w.check("nobodys", 80, "", ErrNoToken)
	// A new link takes the old one's place.
	again := w.expose("ann", one, 80, false, DefaultLifetime)
	w.check(one, 80, token, ErrUnknown)
	w.check(one, 80, again, nil)
}

func TestPublic(t *testing.T) {
	w := newWorld(t)
	w.expose("ann", one, 80, true, DefaultLifetime)
	w.check(one, 80, "", nil)
	w.check(one, 80, "any", nil)
	w.expose("ann", one, 80, false, DefaultLifetime)
	w.check(one, 80, "", ErrNoToken)
}

func TestClose(t *testing.T) {
	w := newWorld(t)
	token := w.expose("ann", one, 80, false, DefaultLifetime)
	use, err := w.Acquire(t.Context(), one, 80, token)
	if err != nil || use.Owner != "ann" {
		t.Fatal(use, err)
	}
	defer use.Release()
	ctx := use.Context
	if ok, err := w.Close(t.Context(), "bob", one, 80); ok || err != nil {
		t.Errorf("another user closed it: %v %v", ok, err)
	}
	w.store.broken = errors.New("the disk is full")
	if ok, err := w.Close(t.Context(), "ann", one, 80); ok || err == nil || ctx.Err() != nil {
		t.Errorf("closed although it was not stored: %v %v", ok, err)
	}
	w.check(one, 80, token, nil)
	w.store.broken = nil
	if ok, err := w.Close(t.Context(), "ann", one, 80); !ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
	<-ctx.Done() // who used it is ended
	w.check(one, 80, token, ErrUnknown)
	if ok, err := w.Close(t.Context(), "ann", one, 80); ok || err != nil {
		t.Errorf("closed twice: %v %v", ok, err)
	}
	if len(w.store.all) != 0 || len(w.List("ann", one)) != 0 {
		t.Errorf("left: %v", w.store.all)
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		token := w.expose("ann", one, 80, false, time.Hour)
		w.expose("ann", one, 81, true, 2*time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		use, err := w.Acquire(t.Context(), one, 80, token)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Second)
		w.check(one, 80, token, nil)
		time.Sleep(time.Second)
		w.check(one, 80, token, ErrUnknown)
		if synctest.Wait(); use.Context.Err() == nil {
			t.Error("the use of a link that has expired goes on")
		}
		use.Release()
		time.Sleep(sweepInterval)
		if synctest.Wait(); len(w.store.all) != 1 || len(w.List("ann", one)) != 1 {
			t.Errorf("left: %v", w.store.all)
		}
		cancel()
		<-done
	})
}

func TestSessionsThatGo(t *testing.T) {
	w := newWorld(t)
	token := w.expose("ann", one, 80, false, DefaultLifetime)
	w.expose("ann", one, 81, true, DefaultLifetime)
	kept := w.expose("bob", two, 80, false, DefaultLifetime)
	delete(w.sessions, one)
	w.check(one, 80, token, ErrUnknown)
	w.check(one, 81, "", ErrNoToken)
	w.open() // forgets them
	if len(w.store.all) != 1 {
		t.Errorf("left: %v", w.store.all)
	}
	w.check(two, 80, kept, nil)
	w.sessions[two] = "eve" // which never happens
	w.check(two, 80, kept, ErrUnknown)
}

func TestLinksOutliveTheServer(t *testing.T) {
	w := newWorld(t)
	token := w.expose("ann", one, 80, false, DefaultLifetime)
	w.open()
	w.check(one, 80, token, nil)
	w.check(one, 80, "wrong", ErrUnknown)
	w.store.broken = errors.New("cannot read")
	if err := New(w.Config).Recover(t.Context()); err == nil {
		t.Error("a server starts that knows no ports")
	}
}

func TestBounds(t *testing.T) {
	w := newWorld(t)
	for n := range MaxPorts {
		w.expose("ann", one, 1+n, false, DefaultLifetime)
	}
	if _, _, err := w.Expose(t.Context(), "ann", one, 1000, false, DefaultLifetime); !fault.Is(err,
		fault.ResourceLimit) {
		t.Errorf("one port more: %v", err)
	}
	token := w.expose("ann", one, 1, false, DefaultLifetime) // again
	w.expose("bob", two, 1000, false, DefaultLifetime)
	var leaves []func()
	for range MaxConns - 1 {
		use, err := w.Acquire(t.Context(), one, 1, token)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, use.Release)
	}
	leave, err := w.AcquireForOwner(one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.AcquireForOwner(one); !errors.Is(err, ErrFull) {
		t.Errorf("one connection more: %v", err)
	}
	if _, err := w.Acquire(t.Context(), one, 1, token); !errors.Is(err, ErrFull) {
		t.Errorf("one request more: %v", err)
	}
	if l, err := w.AcquireForOwner(two); err != nil {
		t.Error("another session's:", err)
	} else {
		l()
	}
	leave()
	leave() // twice is once
	for _, l := range leaves {
		l()
	}
	if len(w.conns) != 0 {
		t.Errorf("left: %v", w.conns)
	}
}

func TestNotStored(t *testing.T) {
	w := newWorld(t)
	token := w.expose("ann", one, 80, false, DefaultLifetime)
	w.store.broken = errors.New("the disk is full")
	if _, _, err := w.Expose(t.Context(), "ann", one, 80, true, DefaultLifetime); err == nil {
		t.Error("exposed, and not stored")
	}
	w.check(one, 80, token, nil)
	w.check(one, 80, "", ErrNoToken)
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.expose("ann", one, 80, true, DefaultLifetime)
		hold, dialing, most := make(chan struct{}), 0, 0
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				use, err := w.Acquire(t.Context(), one, 80, "")
				if err != nil {
					t.Error(err)
					return
				}
				defer use.Release()
				_, err = use.Dial(func(context.Context) (net.Conn, error) {
					mu.Lock()
					dialing++
					most = max(most, dialing)
					mu.Unlock()
					<-hold
					mu.Lock()
					dialing--
					mu.Unlock()
					return nil, nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		if synctest.Wait(); dialing != 4 {
			t.Errorf("%d dial at once", dialing)
		}
		use, err := w.Acquire(t.Context(), one, 80, "")
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, use.Release)
		if _, err := use.Dial(nil); !errors.Is(err, context.Canceled) {
			t.Errorf("who has left: %v", err)
		}
		close(hold)
		if all.Wait(); most > 4 {
			t.Errorf("%d dialed at once", most)
		}
	})
}

func TestParting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.expose("ann", one, 80, true, DefaultLifetime)
		use, err := w.Acquire(t.Context(), one, 80, "")
		if err != nil {
			t.Fatal(err)
		}
		defer use.Release()
		w.Drain()
		if time.Sleep(DrainTimeout - 1); use.Context.Err() != nil {
			t.Error("no moment to end")
		}
		time.Sleep(1 * time.Nanosecond)
		if synctest.Wait(); use.Context.Err() == nil {
			t.Error("the use goes on")
		}
	})
}

func TestUnserved(t *testing.T) {
	w := newWorld(t)
	if w.Offline() {
		t.Error("unserved from the start")
	}
	if w.SetOffline(); !w.Offline() {
		t.Error("served")
	}
}
