package network

import (
	"net/netip"
	"sync"
)

// names gives each name an address, and finds the name again by it. The names
// that were used longest ago give theirs up.
type names struct {
	mu   sync.Mutex
	good ring
	bad  ring
}

// Addresses of names that may be reached come from goodNet, and the rule leads
// them to this package. Those of names that may not be reached come from badNet:
// nothing listens there, so that a program is refused at once, as by a host
// whose port is closed.
var (
	goodNet = netip.MustParsePrefix("198.18.0.0/16")
	badNet  = netip.MustParsePrefix("198.19.0.0/16")
)

const (
	goodNames = 16384
	badNames  = 32  // each that was used has a socket that sees who is refused
	first     = 256 // addresses of a net that are not used
)

type ring struct {
	base    netip.Prefix
	size    int
	next    int
	byName  map[string]int
	byIndex []string
}

func newNames() *names {
	return &names{good: newRing(goodNet, goodNames), bad: newRing(badNet, badNames)}
}

func newRing(base netip.Prefix, size int) ring {
	return ring{base: base, size: size, byName: map[string]int{}}
}

// address returns the name's address.
func (n *names) address(name string, reachable bool) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if reachable {
		return n.good.address(name)
	}
	return n.bad.address(name)
}

// name returns the name whose address that is, or "".
func (n *names) name(a netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.good.name(a); s != "" {
		return s
	}
	return n.bad.name(a)
}

func (r *ring) at(i int) netip.Addr {
	b := r.base.Addr().As4()
	i += first
	b[2], b[3] = byte(i>>8), byte(i)
	return netip.AddrFrom4(b)
}

func (r *ring) address(name string) netip.Addr {
	if i, ok := r.byName[name]; ok {
		return r.at(i)
	}
	i := r.next
	r.next = (r.next + 1) % r.size
	if i < len(r.byIndex) {
		delete(r.byName, r.byIndex[i])
		r.byIndex[i] = name
	} else {
		r.byIndex = append(r.byIndex, name)
	}
	r.byName[name] = i
	return r.at(i)
}

func (r *ring) name(a netip.Addr) string {
	if !r.base.Contains(a) {
		return ""
	}
	b := a.As4()
	i := int(b[2])<<8 + int(b[3]) - first
	if i < 0 || i >= len(r.byIndex) {
		return ""
	}
	return r.byIndex[i]
}
