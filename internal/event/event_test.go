package event

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
	"unicode/utf8"
)

func put(s *Stream, principal string, n int) {
	for i := range n {
		s.Publish(Event{Kind: Call, Principal: principal, Name: fmt.Sprint(i), Outcome: OK})
	}
}

// drain reads all that there is, and checks that ids grow.
func drain(t *testing.T, sub *Subscription) (events []Event, lost Lost) {
	t.Helper()
	for {
		e, l, more := sub.Read()
		events = append(events, e...)
		lost.Count, lost.Unknown = lost.Count+l.Count, lost.Unknown || l.Unknown
		if !more {
			break
		}
	}
	for i := 1; i < len(events); i++ {
		if events[i].ID <= events[i-1].ID {
			t.Fatalf("event %d comes after event %d", events[i].ID, events[i-1].ID)
		}
	}
	return events, lost
}

func TestOwnEventsAlone(t *testing.T) {
	s := New()
	put(s, "user:ann", 3)
	put(s, "user:bob", 2)
	for principal, want := range map[string]int{"user:ann": 3, "user:bob": 2, "": 5, "user:cleo": 0} {
		sub := s.Subscribe(Filter{Principal: principal}, 0)
		events, lost := drain(t, sub)
		if len(events) != want || lost.Any() {
			t.Errorf("%q sees %d events, want %d; lost %v", principal, len(events), want, lost)
		}
		for _, e := range events {
			if principal != "" && e.Principal != principal {
				t.Errorf("%s sees an event of %s", principal, e.Principal)
			}
		}
		sub.Close()
	}
}

func TestFilter(t *testing.T) {
	s := New()
	s.Publish(Event{Kind: Egress, Principal: "local", Session: "a"})
	s.Publish(Event{Kind: Call, Principal: "local", Session: "a"})
	s.Publish(Event{Kind: Call, Principal: "local", Session: "b"})
	for _, c := range []struct {
		filter Filter
		want   int
	}{
		{Filter{Kinds: []Kind{Call}}, 2}, {Filter{Kinds: []Kind{Call, Egress}}, 3}, {Filter{Session: "a"}, 2},
		{Filter{Session: "b", Kinds: []Kind{Egress}}, 0},
	} {
		events, _ := drain(t, s.Subscribe(c.filter, 0))
		if len(events) != c.want {
			t.Errorf("%+v gives %d events, want %d", c.filter, len(events), c.want)
		}
	}
}

// A subscriber who does not read loses the oldest, and is told how many. Another
// principal's flood takes nothing from them.
func TestOldestAreLost(t *testing.T) {
	s := New()
	idle := s.Subscribe(Filter{Principal: "user:ann"}, s.Newest())
	all := s.Subscribe(Filter{}, s.Newest())
	put(s, "user:ann", 10)
	put(s, "user:bob", maxEvents+100)
	if events, lost := drain(t, idle); len(events) != 10 || lost.Any() {
		t.Errorf("ann reads %d events and lost %v", len(events), lost)
	}
	put(s, "user:ann", maxEvents+7)
	events, lost := drain(t, idle)
	if len(events) != maxEvents || lost != (Lost{Count: 7}) {
		t.Errorf("ann reads %d events and lost %v, want %d and 7", len(events), lost, maxEvents)
	}
	if events[0].Name != "7" {
		t.Errorf("the first one is %s: not the oldest were lost", events[0].Name)
	}
	if events, lost := drain(t, all); len(events) != 2*maxEvents || lost != (Lost{Count: 117}) {
		t.Errorf("the operator reads %d events and lost %v", len(events), lost)
	}
}

// What programs do in sandboxes pushes out nothing of what their user did.
func TestNoiseHidesNothing(t *testing.T) {
	s := New()
	sub := s.Subscribe(Filter{Principal: "local"}, 0)
	put(s, "local", 3)
	for range 10 * maxEvents {
		s.Publish(Event{Kind: Egress, Principal: "local"})
	}
	for range 10 * maxEvents {
		s.Publish(Event{Kind: Call, Principal: "local", ByOthers: true, Name: "visit"})
	}
	put(s, "local", 2)
	events, lost := drain(t, sub)
	calls := 0
	for _, e := range events {
		if e.Kind == Call && !e.ByOthers {
			calls++
		}
	}
	if calls != 5 || lost.Count != 19*maxEvents {
		t.Errorf("%d calls of %d events are there, and %v are lost", calls, len(events), lost)
	}
}

func TestBytesAreBounded(t *testing.T) {
	s := New()
	long := strings.Repeat("€", maxText)
	for range 3 * maxEvents {
		s.Publish(Event{Principal: "local", Name: long, Session: long, Operation: long, Outcome: long})
	}
	l := s.log("local", quiet)
	sum := 0
	for n := l.added - uint64(l.stored); n < l.added; n++ {
		e := l.event(n)
		sum += e.size()
		if len(e.Name) > maxText || !utf8.ValidString(e.Name) {
			t.Fatalf("a name of %d bytes is kept: %q", len(e.Name), e.Name)
		}
	}
	if sum != l.bytes || sum > maxBytes || l.stored < 50 {
		t.Errorf("%d events of %d bytes are kept, counted as %d", l.stored, sum, l.bytes)
	}
}

func TestPrincipalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		read := s.Subscribe(Filter{Principal: "user:0"}, 0) // used least lately, but read
		defer read.Close()
		all := s.Subscribe(Filter{}, 0)
		defer all.Close()
		for i := range maxLogs + 50 {
			put(s, fmt.Sprintf("user:%d", i), 1)
			time.Sleep(time.Second)
		}
		if n := len(*s.logs.Load()); n > maxLogs {
			t.Errorf("there are %d logs", n)
		}
		if events, _ := drain(t, read); len(events) != 1 {
			t.Errorf("who reads has %d events", len(events))
		}
		if events, lost := drain(t, all); len(events) < maxLogs-2 || !lost.Unknown {
			t.Errorf("the operator reads %d events, and lost %v", len(events), lost)
		}
	})
}

// Who comes again with the last id that they saw misses nothing, or is told.
func TestResume(t *testing.T) {
	s := New()
	put(s, "local", 5)
	put(s, "user:bob", 1)
	put(s, "local", 5)
	for _, principal := range []string{"local", ""} {
		all, _ := drain(t, s.Subscribe(Filter{Principal: principal}, 0))
		for i, e := range all {
			rest, lost := drain(t, s.Subscribe(Filter{Principal: principal}, e.ID))
			if len(rest) != len(all)-i-1 || lost.Any() {
				t.Errorf("behind event %d there are %d more, want %d; lost %v", e.ID, len(rest), len(all)-i-1, lost)
			}
		}
	}
	put(s, "local", maxEvents)
	if _, lost := drain(t, s.Subscribe(Filter{Principal: "local"}, 3)); !lost.Unknown {
		t.Error("nobody says that events are gone")
	}
}

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		ctx, cancel := context.WithCancelCause(t.Context())
		done := errors.New("over")
		for _, principal := range []string{"local", ""} {
			sub := s.Subscribe(Filter{Principal: principal}, s.Newest())
			go func() {
				time.Sleep(time.Minute)
				s.Publish(Event{Principal: "local", Name: "late"})
			}()
			events, _, err := sub.Next(ctx)
			if err != nil || len(events) != 1 || events[0].Name != "late" {
				t.Fatalf("%v, %v", events, err)
			}
			sub.Close()
		}
		sub := s.Subscribe(Filter{Principal: "local"}, s.Newest())
		go func() {
			time.Sleep(time.Minute)
			cancel(done)
		}()
		if _, _, err := sub.Next(ctx); !errors.Is(err, done) {
			t.Errorf("it ends with %v", err)
		}
		sub.Close()
		if len(*s.allReaders.Load()) > 0 {
			t.Error("somebody still subscribes to all")
		}
	})
}

// Many publish while some read: each reader sees each event once, in order, or
// knows how many it lost.
func TestManyAtOnce(t *testing.T) {
	s := New()
	const publishers, each = 8, 2000
	subs := []*Subscription{s.Subscribe(Filter{}, 0), s.Subscribe(Filter{Principal: "user:3"}, 0)}
	want := []uint64{publishers * each, each}
	ctx, cancel := context.WithCancel(t.Context())
	var readers, writers sync.WaitGroup
	seen := make([]uint64, len(subs))
	for i, sub := range subs {
		readers.Go(func() {
			last := uint64(0)
			for {
				events, lost, err := sub.Next(ctx)
				if err != nil {
					return
				}
				seen[i] += lost.Count + uint64(len(events))
				for _, e := range events {
					if e.ID <= last {
						t.Errorf("event %d comes after event %d", e.ID, last)
					}
					last = e.ID
				}
				if seen[i] == want[i] {
					return
				}
			}
		})
	}
	for p := range publishers {
		writers.Go(func() { put(s, fmt.Sprintf("user:%d", p), each) })
	}
	writers.Wait()
	time.AfterFunc(30*time.Second, cancel)
	readers.Wait()
	cancel()
	for i := range subs {
		if seen[i] != want[i] {
			t.Errorf("reader %d knows of %d events, want %d", i, seen[i], want[i])
		}
	}
}

func TestJSON(t *testing.T) {
	e := Event{ID: 7, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Kind: Call, Principal: "local", Session: "s",
		Operation: "shell.execute", Name: "execute_command", Outcome: OK, Duration: 1500 * time.Microsecond}
	b, err := json.Marshal(e)
	const want = `{"id":7,"time":"2026-01-02T03:04:05Z","kind":"call","principal":"local","session_id":"s",` +
		`"operation":"shell.execute","name":"execute_command","outcome":"ok","duration_ms":1.5}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	var back Event
	if err := json.Unmarshal(b, &back); err != nil || back != e {
		t.Errorf("%+v, %v", back, err)
	}
}

// Nobody listens: that is what every call pays.
func BenchmarkPublish(b *testing.B) {
	s := New()
	for b.Loop() {
		s.Publish(Event{Kind: Call, Principal: "local", Operation: "shell.execute",
			Name: "execute_command", Outcome: OK, Duration: 1})
	}
}

func BenchmarkPublishParallel(b *testing.B) {
	s := New()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Publish(Event{Kind: Call, Principal: "local", Operation: "shell.execute",
				Name: "execute_command", Outcome: OK, Duration: 1})
		}
	})
}

// Texts that a client chose are texts that every store stores as they are, and stay bounded.
func TestTextsAreClean(t *testing.T) {
	for text, want := range map[string]string{
		"a\x00b": "a\ufffdb", "a\xffb": "a\ufffdb", "a\nb\x7f\u0085": "a\ufffdb\ufffd\ufffd", "grün €": "grün €",
		strings.Repeat("\x01", maxText):   strings.Repeat("\ufffd", maxText/3),
		strings.Repeat("\xff", maxText+9): "",
	} {
		s := New()
		sub := s.Subscribe(Filter{}, 0)
		s.Publish(Event{Principal: text, Session: text, Operation: text, Name: text, Outcome: text,
			Origin: Origin{Token: text, Service: text, Address: text, Trace: text, Method: text, ClientSession: text}})
		events, _ := drain(t, sub)
		e := events[0]
		for i, got := range []string{e.Session, e.Operation, e.Name, e.Outcome, e.Token, e.Service, e.Address, e.Trace,
			e.Method, e.ClientSession} {
			if got != want {
				t.Errorf("text %d of %.9q is %.9q of %d bytes, want %.9q", i, text, got, len(got), want)
			}
		}
		if !utf8.ValidString(e.Principal) || strings.ContainsAny(e.Principal, "\x00\n") {
			t.Errorf("the principal is %q", e.Principal)
		}
		sub.Close()
	}
}
