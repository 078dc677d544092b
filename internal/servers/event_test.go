package servers

import (
	"slices"
	"testing"

	"sandlot/internal/event"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Every change of the state that an owner sees is an event, and nothing else is one:
// whatever happens in whichever state, to a server that is being installed, lacks
// values or has tools that are held back.
func TestEveryChangeOfStateIsAnEvent(t *testing.T) {
	states := []state.State{state.Disabled, state.Starting, state.Connected, state.Idle, state.Backoff, state.Failed,
		state.NeedsEnv, state.NeedsAuth}
	held := catalog.Catalog{Loaded: true, Tools: []catalog.Definition{{Remote: "t", HeldBecause: "it is new"}}}
	stream := event.New()
	events := stream.Subscribe(event.Filter{Principal: P.ID}, 0)
	defer events.Close()
	servers := New(Config{Store: &memStore{}, Events: stream})
	servers.Close() // nothing starts
	changes := 0
	see := func(s *server, what any, before state.State, then ...state.State) {
		t.Helper()
		var want, got []string
		was := before
		for _, is := range append(then, s.info().State) {
			if is != was {
				want = append(want, string(is))
				changes++
			}
			was = is
		}
		all, _, _ := events.Read()
		for _, e := range all {
			if e.Kind != event.Connection || e.Name != "x" || e.ByOthers {
				t.Errorf("%+v", e)
			}
			got = append(got, e.Outcome)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, when it is %s: the events are %q, want %q", what, before, got, want)
		}
	}
	for _, was := range states {
		for what := state.Created; what <= state.Removal; what++ {
			for flags := range 8 {
				s := own(servers, P, "x", "aaaaaa", spec.Configured{})
				s.State, s.installing, s.Values.Complete = was, flags&1 != 0, flags&2 == 0
				if flags&4 != 0 {
					s.rec.Catalog = held
				}
				s.announced, s.offered = s.shown(), s.offersIn(s.shown())
				before := s.announced
				then, _ := state.Next(s.Status, state.Event{What: what, Why: "why"})
				s.mu.Lock()
				s.apply(state.Event{What: what, Why: "why"})
				s.mu.Unlock()
				// A start that is an action of this event is another event.
				see(s, what, before, then.Shown(s.installing, !s.Values.Complete, flags&4 != 0))
			}
		}
	}
	s := own(servers, P, "x", "aaaaaa", spec.Configured{})
	s.State = state.Connected
	s.announced, s.offered = s.shown(), s.offersIn(s.shown())
	if err := s.update(func(r *Record) { r.Catalog = held }); err != nil {
		t.Fatal(err)
	}
	see(s, "an unknown tool", state.Connected)
	if err := s.update(func(r *Record) {
		r.Catalog.Tools = append(slices.Clone(r.Catalog.Tools), catalog.Definition{Remote: "more", HeldBecause: "new"})
		r.Catalog.Prompts = []catalog.Definition{{Remote: "p"}}
	}); err != nil {
		t.Fatal(err)
	}
	all, _, _ := events.Read()
	if len(all) != 1 || !all[0].ByOthers || all[0].Offers != (event.Offers{Tools: len(held.Tools) + 1, Prompts: 1}) {
		t.Errorf("another tool and a prompt are told by %+v", all)
	}
	release, err := servers.beginInstall(P, "x", "/workspace/x")
	if err != nil {
		t.Fatal(err)
	}
	see(s, "an installation", state.NeedsApproval)
	release()
	see(s, "its end", state.Installing)
	if _, err := servers.Approve(t.Context(), P, "x", nil); err != nil {
		t.Fatal(err)
	}
	see(s, "an approval", state.NeedsApproval)
	if changes < 250 {
		t.Errorf("%d changes prove little", changes)
	}
}
