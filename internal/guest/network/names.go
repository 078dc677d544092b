package network

import (
	"net/netip"
	"sync"

	"sandlot/internal/agent/wire"
)

// names gives each name an address that stands for it. When no address is left, the name that
// got its address first loses it.
type names struct {
	mu      sync.Mutex
	allowed addressRing         // names that the policy allows
	refused addressRing         // names that it refuses
	askers  map[string]wire.Who // who has looked up a refused name last, by the name
}

// Names that the policy allows get addresses of allowedNet, connections to which are redirected
// to this package. Names that it refuses get addresses of refusedNet, where nothing listens: the
// kernel refuses a connection at once, as a host does whose port is closed. AllowedNet looks public, as programs with a
// guard against addresses of their own network connect to no other; nobody announces it on the internet.
var (
	allowedNet = netip.MustParsePrefix("28.18.0.0/16")
	refusedNet = netip.MustParsePrefix("198.19.0.0/16")
)

const (
	allowedNames = 16384
	refusedNames = 32  // few, as each needs a watcher with a raw socket
	firstIndex   = 256 // the first addresses of a net are not used
)

// addressRing hands out the addresses of a net in circles.
type addressRing struct {
	base    netip.Prefix
	size    int
	next    int            // the index of the next address to hand out
	byName  map[string]int // the indexes of names' addresses
	byIndex []string
}

func newNames() *names {
	return &names{allowed: newAddressRing(allowedNet, allowedNames), refused: newAddressRing(refusedNet, refusedNames),
		askers: map[string]wire.Who{}}
}

func newAddressRing(base netip.Prefix, size int) addressRing {
	return addressRing{base: base, size: size, byName: map[string]int{}}
}

// address returns the address of a name; one that has none gets one.
func (n *names) address(name string, allowed bool) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if allowed {
		return n.allowed.address(name)
	}
	return n.refused.address(name)
}

// setAsker records who has looked up a refused name, and asker returns them: the kernel refuses the connections that
// follow before anybody can see whose they are.
func (n *names) setAsker(name string, who wire.Who) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.askers) >= 2*refusedNames { // some of them have no address any more
		clear(n.askers)
	}
	n.askers[name] = who
}

func (n *names) asker(name string) wire.Who {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.askers[name]
}

// name returns the name that an address stands for, or "".
func (n *names) name(a netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.allowed.name(a); s != "" {
		return s
	}
	return n.refused.name(a)
}

// addressAt returns the address with an index.
func (r *addressRing) addressAt(i int) netip.Addr {
	b := r.base.Addr().As4()
	i += firstIndex
	b[2], b[3] = byte(i>>8), byte(i)
	return netip.AddrFrom4(b)
}

func (r *addressRing) address(name string) netip.Addr {
	if i, ok := r.byName[name]; ok {
		return r.addressAt(i)
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
	return r.addressAt(i)
}

func (r *addressRing) name(a netip.Addr) string {
	if !r.base.Contains(a) {
		return ""
	}
	b := a.As4()
	i := int(b[2])<<8 + int(b[3]) - firstIndex
	if i < 0 || i >= len(r.byIndex) {
		return ""
	}
	return r.byIndex[i]
}
