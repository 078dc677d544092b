package usage

import (
	"context"
	"sync"
	"time"

	"sandlot/internal/auth"
)

// KeptDays is how many days of usage are stored.
const KeptDays = 90

// Key is whose usage of which day something is.
type Key struct {
	Day     int64 // since 1970-01-01, UTC
	Owner   string
	Session string // empty: of none, or of those beyond the number of sessions that are stored
}

// Used is what was used.
type Used struct {
	CPU            time.Duration
	Memory, Disk   int64 // the most, in bytes
	Sent, Received int64 // over the network, in bytes
	Calls          int64
}

// Plus returns what was used in all.
func (u Used) Plus(v Used) Used {
	return Used{u.CPU + v.CPU, max(u.Memory, v.Memory), max(u.Disk, v.Disk), u.Sent + v.Sent, u.Received + v.Received,
		u.Calls + v.Calls}
}

// HistoryStore stores what was used.
type HistoryStore interface {
	// AddUsage adds to what is stored, and stores of each session how much processor time of its sandbox is counted.
	AddUsage(ctx context.Context, used map[Key]Used, seen map[string]time.Duration) error
	// Usage returns the usage of a principal since a day; if owner is empty, that of all, which SumOfAll has summed up.
	Usage(ctx context.Context, owner string, since int64) (map[Key]Used, error)
	// RemoveUsage removes the usage of the days before one.
	RemoveUsage(ctx context.Context, before int64) error
	// CountedCPU returns how much processor time of the sandbox of each session is counted.
	CountedCPU(ctx context.Context) (map[string]time.Duration, error)
}

// How many keys a principal has for a day, and a service with its users, whom it may name at will. Beyond the first number
// sessions are counted for their owner, and beyond twice the second one users for their service.
const (
	MaxSessions  = 200
	MaxOfService = 1000
)

// service returns the service whose user an owner is, or else the owner.
func service(owner string) string {
	if of, isUser := auth.ServiceOf(owner); isUser {
		return of
	}
	return owner
}

// ofAll returns the key among those of all principals, which have no sessions and no users of services.
func (k Key) ofAll() Key { return Key{Day: k.Day, Owner: service(k.Owner)} }

// SumOfAll adds what was used to a sum of all principals.
func SumOfAll(sum map[Key]Used, k Key, u Used) {
	k = k.ofAll()
	sum[k] = sum[k].Plus(u)
}

// Keys are keys that are bounded in their number. The zero value has none.
type Keys struct {
	all map[Key]bool
	of  map[Key]int // how many an owner has on a day; of a service, with those of its users
}

// Add adds a key.
func (s *Keys) Add(k Key) {
	if s.all[k] {
		return
	}
	if s.all == nil {
		s.all, s.of = map[Key]bool{}, map[Key]int{}
	}
	s.all[k] = true
	s.of[Key{Day: k.Day, Owner: k.Owner}]++
	if all := k.ofAll(); all.Owner != k.Owner {
		s.of[all]++
	}
}

// Place returns the key under which what belongs to a key is counted, and adds it.
func (s *Keys) Place(k Key) Key {
	all := k.ofAll()
	isUser := all.Owner != k.Owner
	if !s.all[k] && (s.of[Key{Day: k.Day, Owner: k.Owner}] >= MaxSessions || isUser && s.of[all] >= MaxOfService) {
		k.Session = ""
	}
	if !s.all[k] && isUser && s.of[all] >= 2*MaxOfService {
		k = all
	}
	s.Add(k)
	return k
}

// History counts what sessions use by days. What is counted waits in memory until it is stored.
type History struct {
	store HistoryStore // nil: nothing is counted

	mu      sync.Mutex
	pending map[Key]Used
	keys    Keys                     // of pending
	seen    map[string]time.Duration // that changed
	removed int64                    // the day up to which older ones are removed
	storing sync.Mutex               // held while counts are stored, before mu
}

// NewHistory returns a History; without a store it counts nothing.
func NewHistory(s HistoryStore) *History {
	return &History{store: s, pending: map[Key]Used{}, seen: map[string]time.Duration{}}
}

// Add counts what a session has used on a day.
func (h *History) Add(k Key, u Used) {
	if h.store == nil || u == (Used{}) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(k, u)
}

// add is Add for a caller that holds mu.
func (h *History) add(k Key, u Used) {
	k = h.keys.Place(k)
	h.pending[k] = h.pending[k].Plus(u)
}

// Saw notes how much processor time of a session's sandbox is counted.
func (h *History) Saw(session string, cpu time.Duration) {
	if h.store == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[session] = cpu
}

// Counted returns how much processor time of the sandbox of each session is counted.
func (h *History) Counted(ctx context.Context) (map[string]time.Duration, error) {
	if h.store == nil {
		return nil, nil
	}
	return h.store.CountedCPU(ctx)
}

// Flush stores what is counted, and removes what is old. After an error it stays counted for the next time.
func (h *History) Flush(ctx context.Context, today int64) error {
	if h.store == nil {
		return nil
	}
	h.storing.Lock()
	defer h.storing.Unlock()
	h.mu.Lock()
	used, seen, removed := h.pending, h.seen, h.removed
	h.pending, h.keys, h.seen = map[Key]Used{}, Keys{}, map[string]time.Duration{}
	h.mu.Unlock()
	if len(used) > 0 || len(seen) > 0 {
		if err := h.store.AddUsage(ctx, used, seen); err != nil {
			h.mu.Lock()
			defer h.mu.Unlock()
			for k, u := range used {
				h.add(k, u)
			}
			for id, cpu := range seen {
				if _, newer := h.seen[id]; !newer {
					h.seen[id] = cpu
				}
			}
			return err
		}
	}
	if removed == today {
		return nil
	}
	if err := h.store.RemoveUsage(ctx, today-KeptDays+1); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removed = today
	return nil
}

// Read returns the usage of a principal since a day, also what is not stored yet. If owner is empty, it is that of all
// principals, without their sessions, and of services with their users.
func (h *History) Read(ctx context.Context, owner string, since int64) (map[Key]Used, error) {
	if h.store == nil {
		return map[Key]Used{}, nil
	}
	h.storing.Lock()
	defer h.storing.Unlock()
	all, err := h.store.Usage(ctx, owner, since)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, u := range h.pending {
		if k.Day < since || owner != "" && k.Owner != owner {
			continue
		}
		if owner == "" {
			SumOfAll(all, k, u)
			continue
		}
		all[k] = all[k].Plus(u)
	}
	return all, nil
}
