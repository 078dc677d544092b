package servers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/oauth"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// server is one server of one principal.
//
// Lock order: lock (acquire), the owner's naming, storing, the mu of the Servers, mu, the locks of
// account.
type server struct {
	servers *Servers
	owner   auth.Principal
	identity

	log     process.Log         // what the server's program wrote to standard error
	lock    *semaphore.Weighted // held while the server is started, changed, stopped or removed
	storing sync.Mutex          // held while the record changes, in memory and in the store
	account *oauth.Account

	mu                  sync.Mutex
	rec                 Record
	instance.Definition // of the next start
	state.Status
	announced  state.State        // the state of the last event that was published
	offered    event.Offers       // of that event
	instance   *instance.Instance // nil: the server does not run
	start      *start             // the running attempt to start it; nil: there is none
	retry      *time.Timer        // starts it after a pause; nil: it is not to be started
	takeovers  int                // how many calls have replaced the definition, or are about to
	installing bool               // it is being installed again
	follows    followers
	mute       bool // the last start was not answered in time: the next one asks for the revision in the other way
	usage
}

// on is apply for an event without details. The caller holds s.mu.
func (s *server) on(what state.Occurrence) { s.apply(state.Event{What: what}) }

// apply changes the server's status by an event, publishes the new state, and takes the actions of the
// state machine. The caller holds s.mu.
func (s *server) apply(e state.Event) {
	e.At = time.Now()
	var actions []state.Action
	s.Status, actions = state.Next(s.Status, e)
	s.announce()
	for _, a := range actions {
		switch a {
		case state.DropTimer:
			if s.retry != nil {
				s.retry.Stop()
				s.retry = nil
			}
		case state.StartNow:
			s.beginUnlessBusy()
		case state.StartLater:
			s.retry = time.AfterFunc(time.Until(s.Earliest), func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.beginUnlessBusy()
			})
		}
	}
}

// shown returns the state that the server's owner sees. The caller holds s.mu.
func (s *server) shown() state.State {
	held := s.Settings.TrustMode() == spec.TrustHold && slices.ContainsFunc(s.rec.Catalog.Tools,
		func(d catalog.Definition) bool { return d.HeldBecause != "" })
	return s.Shown(s.installing, !s.Values.Complete, held)
}

// announce publishes the state that the owner sees, with what the server offers, if either has changed. It is
// called after each change of a field that shown uses. The caller holds s.mu.
func (s *server) announce() {
	now := s.shown()
	offers := s.offersIn(now)
	if now == s.announced && offers == s.offered {
		return
	}
	// The third-party server can change what it offers at any time.
	byOthers := now == s.announced
	s.announced, s.offered = now, offers
	s.servers.Events.Publish(event.Event{Kind: event.Connection, Principal: s.owner.ID, Operation: event.ServerState,
		Name: s.Name, Outcome: string(now), Offers: offers, ByOthers: byOthers})
	s.logger.Debug("connection", "state", now, "why", s.Why)
}

// offersIn returns what the server offers in a state. The caller holds s.mu.
func (s *server) offersIn(now state.State) event.Offers {
	if now != state.Connected && now != state.NeedsApproval {
		return event.Offers{}
	}
	c := &s.rec.Catalog
	return event.Offers{Tools: len(c.Tools), Prompts: len(c.Prompts), Resources: len(c.Resources) + len(c.Templates)}
}

// beginUnlessBusy starts the server, unless it runs, is being started, or must not run. The caller holds
// s.mu.
func (s *server) beginUnlessBusy() {
	if s.instance == nil && s.start == nil && s.unusable() == nil {
		s.launch()
	}
}

// identity has the part of a server that never changes.
type identity struct {
	diagnosis.Identity
	created time.Time
	logger  *slog.Logger // with the server's name and owner
}

// usage counts what a server has done.
type usage struct {
	restarts int
	calls    int
	used     time.Time // the end of the last call
	took     samples   // durations of calls
}

// start is one attempt to start a server. Any number of calls may wait for it.
type start struct {
	cancel context.CancelFunc
	done   chan struct{} // closed at the end
	err    error         // valid after done is closed
}

// update changes the record: in the store first, then in memory.
func (s *server) update(change func(*Record)) error {
	return s.updateIf(func(r *Record) error { change(r); return nil })
}

// updateIf is update, unless change returns an error.
func (s *server) updateIf(change func(*Record) error) error {
	s.storing.Lock()
	defer s.storing.Unlock()
	s.mu.Lock()
	r, removed := s.rec, s.Removed
	s.mu.Unlock()
	if err := change(&r); err != nil {
		return err
	}
	if !removed {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.servers.Store.PutConnection(ctx, r); err != nil {
			return fmt.Errorf("storing the connection: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec = r
	s.announce()
	return nil
}

// acquire waits for the server's lock.
func (s *server) acquire(ctx context.Context) error {
	if err := s.lock.Acquire(ctx, 1); err != nil {
		return fault.From(err)
	}
	return nil
}

func (s *server) release() { s.lock.Release(1) }

// worked counts a call that was answered.
func (s *server) worked(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on(state.Worked)
	s.account.ServerAnswered()
	s.calls++
	s.took.add(took)
}

// samples has the last durations of calls.
type samples struct {
	all [64]time.Duration // a ring buffer
	n   int               // durations that were added, also those that are overwritten
}

func (s *samples) add(d time.Duration) {
	s.all[s.n%len(s.all)] = d
	s.n++
}

// at returns a quantile: at(0.5) is the median.
func (s *samples) at(q float64) time.Duration {
	n := min(s.n, len(s.all))
	if n == 0 {
		return 0
	}
	sorted := slices.Clone(s.all[:n])
	slices.Sort(sorted)
	return sorted[min(int(q*float64(n)), n-1)]
}

// info returns the part of the server that its owner may see.
func (s *server) info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, c := s.rec, s.rec.Catalog
	i := Info{ID: r.ID, Name: r.Name, Configured: r.Configured, Kind: s.Settings.Kind, Where: s.Settings.Where,
		Cwd: r.Cwd, EnvKeys: r.EnvKeys, Secrets: r.SecretNames(), Created: r.Created, Updated: r.Updated,
		State: s.shown(), LastError: s.Why, AuthURL: s.AuthURL, Install: r.Install,
		Offers: Offers{Prompts: len(c.Prompts), Resources: len(c.Resources) + len(c.Templates), LeftOut: c.LeftOut,
			Omissions: c.Omissions},
		Usage: Usage{s.restarts, s.calls, s.took.at(0.5), s.took.at(0.95)}}
	if !r.Configured { // only the operator may see how a server of the settings is started
		i.Command, i.Args, i.URL = r.Command, r.Args, r.URL
	}
	for _, d := range c.Tools {
		n := Named{d.Exposed, d.Remote, d.HeldBecause}
		if d.HeldBecause != "" && s.Settings.TrustMode() == spec.TrustHold {
			i.Held = append(i.Held, n)
		} else {
			i.Tools = append(i.Tools, n)
		}
	}
	if l := s.instance; l != nil {
		i.Running = Running{l.Session.Version(), catalog.SafeImplementation(l.Session.Info())}
	}
	return i
}
