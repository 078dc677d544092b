// Package quota has what each principal may hold by the operator's settings: defaults for users and for
// services, and exceptions for some principals. The packages that own a resource ask for the limit and
// count; the package itself counts calls.
package quota

import (
	"sync"
	"sync/atomic"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// Limits are what one principal may hold; 0: as much as the server's other limits allow.
type Limits struct {
	Sessions int     `json:"sessions,omitempty"`  // live ones, without the home
	MemoryMB int     `json:"memory_mb,omitempty"` // of all live sandboxes together, by their flavors
	CPUs     float64 `json:"cpus,omitempty"`      // of all live sandboxes together, by their flavors
	DiskMB   int     `json:"disk_mb,omitempty"`   // of the workspaces of all sessions, stopped ones too
	// TrafficMBPerDay is what all sandboxes together may send and receive on one day (UTC).
	TrafficMBPerDay int `json:"traffic_mb_per_day,omitempty"`
	Connections     int `json:"connections,omitempty"`      // third-party servers
	Secrets         int `json:"secrets,omitempty"`          // stored ones
	Calls           int `json:"calls,omitempty"`            // calls of tools at once
	CallsPerMinute  int `json:"calls_per_minute,omitempty"` // calls of tools that begin in a minute
}

// Settings are the quotas of the settings. Principals has the whole limits of those with an exception, by id.
type Settings struct {
	Users, Services Limits
	Principals      map[string]Limits
}

// Quotas has the quotas in effect, and counts calls. A nil *Quotas limits nothing.
type Quotas struct {
	settings atomic.Pointer[Settings]
	services sync.Map // ids of the services that are known

	mu      sync.Mutex
	callers map[string]*caller // those that have a limit of calls, and call
	swept   time.Time          // when callers without calls were removed last
}

// caller counts the calls of one principal.
type caller struct {
	running int
	minute  time.Time // when the current minute began
	begun   int       // in the current minute
}

// New returns Quotas without limits.
func New() *Quotas {
	q := &Quotas{callers: map[string]*caller{}}
	q.settings.Store(&Settings{})
	return q
}

// Set puts settings into effect, for what is requested from now on.
func (q *Quotas) Set(s Settings) { q.settings.Store(&s) }

// AddService remembers that the principal with that id is a service. It is called before anything is done for it.
func (q *Quotas) AddService(id string) {
	if q == nil {
		return
	}
	if _, known := q.services.Load(id); !known {
		q.services.Store(id, true)
	}
}

// Of returns the limits of the principal with that id.
func (q *Quotas) Of(id string) Limits {
	if q == nil {
		return Limits{}
	}
	s := q.settings.Load()
	if l, ok := s.Principals[id]; ok {
		return l
	}
	if _, ok := q.services.Load(id); ok {
		return s.Services
	}
	return s.Users
}

// BeginCall counts a call of a tool until end is called. The error is a fault that names the quota.
func (q *Quotas) BeginCall(p auth.Principal) (end func(), err error) {
	if q == nil {
		return func() {}, nil
	}
	limits := q.Of(p.ID)
	if limits.Calls == 0 && limits.CallsPerMinute == 0 {
		return func() {}, nil
	}
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sweep(now)
	c := q.callers[p.ID]
	if c == nil {
		c = &caller{}
		q.callers[p.ID] = c
	}
	if now.Sub(c.minute) >= time.Minute {
		c.minute, c.begun = now, 0
	}
	if limits.Calls > 0 && c.running >= limits.Calls {
		return nil, Reached("calls", c.running, limits.Calls, "%d calls are running, and your quota is %d", c.running,
			limits.Calls).Advise("Wait for some of them to end, and call again")
	}
	if limits.CallsPerMinute > 0 && c.begun >= limits.CallsPerMinute {
		return nil, Reached("calls_per_minute", c.begun, limits.CallsPerMinute,
			"you made %d calls in this minute, and your quota is %d", c.begun, limits.CallsPerMinute).
			Advise("Call again in a minute")
	}
	c.running++
	c.begun++
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		c.running--
	}), nil
}

// Calls returns how many calls of a principal run, and how many have begun in this minute. Calls are counted for
// principals who have a quota of them.
func (q *Quotas) Calls(id string) (running, begun int) {
	if q == nil {
		return 0, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.callers[id]
	if c == nil {
		return 0, 0
	}
	if time.Since(c.minute) < time.Minute {
		begun = c.begun
	}
	return c.running, begun
}

// Use says how much of a quota is in use.
type Use struct {
	Name  string   `json:"name"`            // as in the settings
	Used  *float64 `json:"used,omitempty"`  // nil: it is counted only where there is a limit
	Limit float64  `json:"limit,omitempty"` // 0: none
}

// NewUse returns a Use.
func NewUse(name string, used, limit int) Use { return Use{name, new(float64(used)), float64(limit)} }

// sweep removes, once in a minute, the callers that count nothing. The caller holds q.mu.
func (q *Quotas) sweep(now time.Time) {
	if now.Sub(q.swept) < time.Minute {
		return
	}
	q.swept = now
	for id, c := range q.callers {
		if c.running == 0 && now.Sub(c.minute) >= time.Minute {
			delete(q.callers, id)
		}
	}
}

// Reached returns the fault for a quota that is reached.
func Reached(resource string, used, limit any, format string, args ...any) *fault.Error {
	return fault.Limit(resource, used, limit, format, args...).With("quota", true)
}
