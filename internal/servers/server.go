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

// server is one server of one principal. Its locks, from outside in: lock (acquire), its owner's
// naming, storing, the Servers' mu, mu, then those of its account.
type server struct {
	servers *Servers
	owner   auth.Principal
	identity

	log     process.Log
	lock    *semaphore.Weighted // held by whoever starts, changes, stops or removes it
	storing sync.Mutex          // held while the record changes, here and in the store
	account *oauth.Account

	mu                  sync.Mutex
	rec                 Record
	instance.Definition // what the next start runs
	state.Status
	announced  state.State // the last one that was published
	instance   *instance.Instance
	start      *start
	retry      *time.Timer
	owners     int  // how often another Connect took it over
	installing bool // it is being installed anew
	follows    followers
	usage
}

// on is apply for an event that has no details. The lock is held.
func (s *server) on(what state.Occurrence) { s.apply(state.Event{What: what}) }

// apply changes the server's status by an event, and takes the actions that follow. The
// lock is held.
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

// shown is the state that the server's owner sees. The lock is held.
func (s *server) shown() state.State {
	held := s.Settings.TrustMode() == spec.TrustHold && slices.ContainsFunc(s.rec.Catalog.Tools,
		func(d catalog.Definition) bool { return d.HeldBecause != "" })
	return s.Shown(s.installing, !s.Values.Complete, held)
}

// announce publishes the state that the owner sees when it has changed. Whoever changes
// what it depends on calls it. The lock is held.
func (s *server) announce() {
	now := s.shown()
	if now == s.announced {
		return
	}
	s.announced = now
	s.servers.Events.Publish(event.Event{Kind: event.Connection, Principal: s.owner.ID, Operation: event.ServerState,
		Name: s.Name, Outcome: string(now)})
	s.logger.Debug("connection", "state", now, "why", s.Why)
}

// beginUnlessBusy starts the server unless it runs, is started or may not run. The
// lock is held.
func (s *server) beginUnlessBusy() {
	if s.instance == nil && s.start == nil && s.unusable() == nil {
		s.launch()
	}
}

// identity is what never changes of a server.
type identity struct {
	diagnosis.Identity
	created time.Time
	logger  *slog.Logger // names the server
}

// usage is how a server was used.
type usage struct {
	restarts int
	calls    int
	used     time.Time
	took     samples
}

// start is one attempt to start, for which any number of calls wait.
type start struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// update changes the record: in the store first, then in memory.
func (s *server) update(change func(*Record)) error {
	return s.updateIf(func(r *Record) error { change(r); return nil })
}

// updateIf changes the record unless change says why not.
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

// worked is called when a call was answered.
func (s *server) worked(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on(state.Worked)
	s.account.ServerAnswered()
	s.calls++
	s.took.add(took)
}

// samples are the last durations.
type samples struct {
	all [64]time.Duration
	n   int
}

func (s *samples) add(d time.Duration) {
	s.all[s.n%len(s.all)] = d
	s.n++
}

func (s *samples) at(q float64) time.Duration {
	n := min(s.n, len(s.all))
	if n == 0 {
		return 0
	}
	sorted := slices.Clone(s.all[:n])
	slices.Sort(sorted)
	return sorted[min(int(q*float64(n)), n-1)]
}

// info is what its owner may know. The lock is not held.
func (s *server) info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, c := s.rec, s.rec.Catalog
	i := Info{ID: r.ID, Name: r.Name, Configured: r.Configured, Kind: s.Settings.Kind, Where: s.Settings.Where,
		Cwd: r.Cwd, EnvKeys: r.EnvKeys, Secrets: r.SecretNames(), Created: r.Created, Updated: r.Updated,
		State: s.shown(), LastError: s.Why, AuthURL: s.AuthURL, Install: r.Install,
		Offers: Offers{Prompts: len(c.Prompts), Resources: len(c.Resources) + len(c.Templates)},
		Usage:  Usage{s.restarts, s.calls, s.took.at(0.5), s.took.at(0.95)}}
	if !r.Configured { // the operator's own settings are the operator's
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
