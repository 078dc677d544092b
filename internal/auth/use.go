package auth

import (
	"sync"
	"time"
)

// useInterval is how long the time of a token's last use may be older in the store than in memory. So
// each token causes at most one write in that time, however often it is used.
const useInterval = time.Minute

// tokenUses remembers when each token was last used, until it is stored.
type tokenUses struct {
	mu   sync.Mutex
	uses map[string]*tokenUse // by the token's id
}

type tokenUse struct {
	last   time.Time
	stored time.Time // the value of last that is in the store; zero: none of this server's
}

// record remembers that a token was used. It stores nothing: each request calls it.
func (u *tokenUses) record(token string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	use := u.uses[token]
	if use == nil {
		if u.uses == nil {
			u.uses = map[string]*tokenUse{}
		}
		use = &tokenUse{}
		u.uses[token] = use
	}
	use.last = now
}

// changed returns the uses that are to be stored: those that are at least interval later than what is
// stored.
func (u *tokenUses) changed(interval time.Duration) map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := map[string]time.Time{}
	for id, use := range u.uses {
		if use.last.After(use.stored) && use.last.Sub(use.stored) >= interval {
			changed[id] = use.last
		}
	}
	return changed
}

// setStored records that uses are in the store, and forgets the tokens that do not exist any more.
func (u *tokenUses) setStored(uses map[string]time.Time, exists func(token string) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, last := range uses {
		u.uses[id].stored = last
	}
	for id := range u.uses {
		if !exists(id) {
			delete(u.uses, id)
		}
	}
}
