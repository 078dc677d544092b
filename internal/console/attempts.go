package console

import (
	"net/netip"
	"sync"
	"time"

	"sandlot/internal/fault"
)

const (
	// maxAttempts is how many attempts to log in fail from one address, before it waits attemptEvery for each more that
	// fails. One that succeeds never waits: else anyone would lock out all who share an address.
	maxAttempts  = 10
	attemptEvery = 6 * time.Second
	// maxAddresses bounds how many addresses are counted one by one. All others count as one.
	maxAddresses = 4096
)

// attempts bounds the attempts to log in of each address that fail.
type attempts struct {
	now  func() time.Time
	mu   sync.Mutex
	left map[netip.Prefix]*bucket
}

// bucket has the attempts that an address has left at a time.
type bucket struct {
	left int
	at   time.Time
}

// fill adds the attempts for the time that has passed.
func (b *bucket) fill(now time.Time) {
	n := int(now.Sub(b.at) / attemptEvery)
	b.left = min(b.left+n, maxAttempts)
	b.at = b.at.Add(time.Duration(n) * attemptEvery)
}

// network returns what counts as one address: an address of IPv4, and a network of one customer of IPv6.
func network(address string) netip.Prefix {
	a, err := netip.ParseAddr(address)
	if at, errPort := netip.ParseAddrPort(address); errPort == nil {
		a, err = at.Addr(), nil
	}
	if err != nil {
		return netip.Prefix{}
	}
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// take counts an attempt that has failed. It returns an error when the address has none left.
func (a *attempts) take(address string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	b := a.bucket(network(address))
	if b.left == 0 {
		return fault.Limit("login_attempts", maxAttempts, maxAttempts,
			"too many attempts to log in failed: try again in a minute")
	}
	b.left--
	return nil
}

// bucket returns the bucket of a network. The caller holds mu.
func (a *attempts) bucket(n netip.Prefix) *bucket {
	now := a.now()
	if a.left[n] == nil && len(a.left) >= maxAddresses {
		for other, b := range a.left {
			if b.fill(now); b.left == maxAttempts {
				delete(a.left, other)
			}
		}
		if len(a.left) >= maxAddresses {
			n = netip.Prefix{}
		}
	}
	b := a.left[n]
	if b == nil {
		b = &bucket{maxAttempts, now}
		a.left[n] = b
	}
	b.fill(now)
	return b
}
