package session

import (
	"context"
	"slices"
	"sync"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/egress"
	"sandlot/internal/pool"
	"sandlot/internal/session/usage"
)

// How often sandboxes are asked what they use, and how often that is stored.
const (
	sampleInterval  = time.Minute
	historyInterval = 5 * time.Minute
)

// sampleTimeout is how long a sandbox has to say what it uses. It delays the end of one that does not answer.
const sampleTimeout = time.Second

// samplingTimeout is how long all sandboxes have together; without the answers of some, what is counted is stored.
const samplingTimeout = 30 * time.Second

// readInterval is how often a sandbox is asked because its owner reads the usage.
const readInterval = 10 * time.Second

// counted is what is counted of a session.
type counted struct {
	asking  sync.Mutex // held while the sandbox is asked and its answer is counted, before mu; nobody waits for it
	mu      sync.Mutex
	asked   time.Time     // when the sandbox was last asked
	cpu     time.Duration // of its sandbox
	traffic egress.Traffic
	at      time.Time // of the last sample; zero: this server has made none
}

// runHistory samples what sessions use until ctx ends.
func (s *Sessions) runHistory(ctx context.Context) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	stored := time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s.sampleAll(ctx)
		if time.Since(stored) >= historyInterval {
			stored = time.Now()
			s.storeHistory(context.WithoutCancel(ctx))
		}
	}
}

// sampleAll counts what all sessions have used since the last sample.
func (s *Sessions) sampleAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, samplingTimeout)
	defer cancel()
	s.sampleEach(ctx, s.all())
}

// sampleEach counts what sessions have used since the last sample.
func (s *Sessions) sampleEach(ctx context.Context, list []*Session) {
	if s.HistoryStore == nil {
		return
	}
	var work sync.WaitGroup
	free := make(chan struct{}, maxMeasuring)
	for _, session := range list {
		free <- struct{}{}
		work.Go(func() {
			defer func() { <-free }()
			session.sample(ctx, session.current().booted)
		})
	}
	work.Wait()
}

// storeHistory stores what was counted.
func (s *Sessions) storeHistory(ctx context.Context) {
	if err := s.history.Flush(ctx, egress.Today()); err != nil {
		s.Log.Error("could not store what sessions have used; it is tried again", "error", err)
	}
}

// recoverHistory makes the counts go on with what is stored.
func (s *Sessions) recoverHistory(ctx context.Context) error {
	seen, err := s.history.Counted(ctx)
	for id, cpu := range seen {
		if session := s.byID(id); session != nil {
			session.counted.mu.Lock()
			session.counted.cpu = cpu
			session.counted.mu.Unlock()
		}
	}
	return err
}

// sample counts what the session has used since the last sample. b is its sandbox, which may be about to end; nil: it
// has none, or is not to be asked.
func (s *Session) sample(ctx context.Context, b *pool.Booted) {
	if s.sessions.HistoryStore == nil {
		return
	}
	r := s.record()
	used := usage.Used{Disk: s.disk.Bytes()}
	var said *agent.Usage
	if b != nil && b.Agent != nil && s.counted.asking.TryLock() {
		defer s.counted.asking.Unlock()
		s.counted.mu.Lock()
		s.counted.asked = time.Now()
		s.counted.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
		defer cancel()
		if u, err := b.Agent.Usage(ctx); err == nil {
			said = &u
		}
	}
	s.counted.mu.Lock()
	defer s.counted.mu.Unlock()
	traffic := s.meter.Traffic()
	used.Sent, used.Received = grown(traffic.Up, s.counted.traffic.Up), grown(traffic.Down, s.counted.traffic.Down)
	s.counted.traffic = traffic
	if u := said; u != nil {
		since := s.counted.at
		if since.IsZero() {
			since = r.Created
		}
		// What a sandbox says is bounded by what it can have used.
		most := time.Duration(float64(time.Since(since)+sampleInterval) * max(1, b.Flavor.CPUs))
		cpu := max(u.CPU, 0)
		used.CPU = cpu
		if cpu >= s.counted.cpu { // else it is another sandbox, which began anew
			used.CPU -= s.counted.cpu
		}
		used.CPU = min(used.CPU, most)
		used.Memory = int64(min(u.MemoryBytes, uint64(b.Flavor.MemoryMB)<<20))
		used.Disk += int64(min(u.DiskBytes, 1<<50))
		s.counted.cpu, s.counted.at = cpu, time.Now()
		s.sessions.history.Saw(r.ID, cpu)
	}
	if b == nil && used.Sent == 0 && used.Received == 0 {
		return // it rests: it has nothing but its disk, as before
	}
	s.sessions.history.Add(usage.Key{Day: egress.Today(), Owner: r.Owner, Session: r.ID}, used)
}

// askedWithin reports whether the session's sandbox was asked what it uses within some time, or is being asked.
func (s *Session) askedWithin(d time.Duration) bool {
	s.counted.mu.Lock()
	defer s.counted.mu.Unlock()
	return time.Since(s.counted.asked) < d
}

// grown returns how much a count has grown, which may have been set to zero.
func grown(now, before uint64) int64 {
	if now >= before {
		now -= before
	}
	return int64(min(now, 1<<62))
}

// CountCall counts an operation that a client of a principal requested; session may be empty.
func (s *Sessions) CountCall(owner, session string) {
	s.history.Add(usage.Key{Day: egress.Today(), Owner: owner, Session: session}, usage.Used{Calls: 1})
}

// History returns what a principal has used on the last days, up to now; of all principals, without their sessions, if
// owner is empty.
func (s *Sessions) History(ctx context.Context, owner string, days int) (map[usage.Key]usage.Used, error) {
	if owner != "" {
		s.sampleEach(ctx, slices.DeleteFunc(s.all(), func(session *Session) bool {
			c := session.current()
			return c.rec.Owner != owner || c.booted == nil || session.askedWithin(readInterval)
		}))
	}
	return s.history.Read(ctx, owner, egress.Today()-int64(days)+1)
}
