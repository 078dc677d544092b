package egress

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// answerTTL is just long enough that a program's look-up of a name, and its connection
	// after that, need only one query.
	answerTTL      = 5 * time.Second
	maxAnswers     = 4096 // cached names
	resolveTimeout = 10 * time.Second
	// maxAddresses bounds how many addresses of one name are tried.
	maxAddresses = 8
)

var errNoName = errors.New("there is no such name")

// resolver resolves names and caches the answers for a moment. Concurrent look-ups of one
// name share one query, which the first of the callers makes.
type resolver struct {
	lookupIP func(context.Context, string) ([]netip.Addr, error)

	mu    sync.Mutex
	names map[string]*entry
}

type entry struct {
	done    chan struct{} // closed when the rest is set
	addrs   []netip.Addr
	err     error
	expires time.Time
}

// lookup returns the addresses of a name, IPv4 before IPv6, and errNoName when
// it has none.
func (r *resolver) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	for {
		a, first := r.entry(name)
		if first {
			r.resolve(ctx, name, a)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// The caller that made the query may have been cancelled; this one was not.
		if errors.Is(a.err, context.Canceled) && ctx.Err() == nil && !first {
			continue
		}
		return a.addrs, a.err
	}
}

// entry returns the cache entry for name. first means that it is new, and that the caller
// must resolve the name.
func (r *resolver) entry(name string) (a *entry, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.names[name]; a != nil && (a.expires.IsZero() || time.Now().Before(a.expires)) {
		return a, false
	}
	if len(r.names) >= maxAnswers {
		r.evict()
	}
	a = &entry{done: make(chan struct{})}
	r.names[name] = a
	return a, true
}

// evict removes expired answers, and then any others until a quarter of the cache is
// free, so that it does not run again for the next name.
func (r *resolver) evict() {
	now := time.Now()
	for name, a := range r.names {
		if !a.expires.IsZero() && now.After(a.expires) {
			delete(r.names, name)
		}
	}
	for name := range r.names {
		if len(r.names) < maxAnswers*3/4 {
			return
		}
		delete(r.names, name)
	}
}

func (r *resolver) resolve(ctx context.Context, name string, a *entry) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := r.lookupIP(ctx, name)
	if ctx.Err() == context.Canceled {
		err = context.Canceled
	}
	addrs, err = normalize(addrs), noNameError(addrs, err)

	r.mu.Lock()
	defer r.mu.Unlock()
	a.addrs, a.err, a.expires = addrs, err, time.Now().Add(answerTTL)
	// The next look-up queries again after an error.
	if err != nil && !errors.Is(err, errNoName) && r.names[name] == a {
		delete(r.names, name)
	}
	close(a.done)
}

// noNameError returns errNoName for a name that does not exist or has no address, and else err.
func noNameError(addrs []netip.Addr, err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound || err == nil && len(addrs) == 0 {
		return errNoName
	}
	return err
}

// normalize returns the addresses without zones and as IPv4 where they are IPv4 in IPv6 form,
// IPv4 first, each once.
func normalize(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); !slices.Contains(out, a) && len(out) < 64 {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return out
}

// ownTTL is how long the machine's addresses are cached.
const ownTTL = time.Second

// cacheAddresses returns a function that calls ask, which returns the machine's addresses,
// at most once in ownTTL, and returns the last addresses when ask returns none.
func cacheAddresses(ask func() []netip.Prefix) func() []netip.Prefix {
	var (
		mu    sync.Mutex
		known []netip.Prefix
		asked time.Time
	)
	return func() []netip.Prefix {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); asked.IsZero() || now.Sub(asked) > ownTTL {
			asked = now
			if a := ask(); len(a) > 0 {
				known = a
			}
		}
		return known
	}
}

// interfaceAddresses returns the IPv4 and IPv6 addresses of all interfaces with their
// networks, and the IPv6 networks that have an on-link route.
func interfaceAddresses() []netip.Prefix {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().Is4In6() {
			out = append(out, p)
		}
	}
	if f, err := os.Open("/proc/net/ipv6_route"); err == nil {
		defer f.Close()
		table, _ := io.ReadAll(io.LimitReader(f, maxRoutes)) // what can be read of it
		out = append(out, onLink(string(table))...)
	}
	return out
}

// maxRoutes bounds what is read of the table of routes, in bytes.
const maxRoutes = 1 << 20

// onLink parses /proc/net/ipv6_route, and returns the networks that are reached without a
// router. An address from DHCPv6 comes without its network, so its neighbours are known
// only by such a route.
//
// Neighbours are refused like private addresses: with IPv6, machines of a home or an office have public
// addresses, and often no more protection than private ones. With a public IPv4 address that includes other
// customers' hosts in the provider's range. Networks of the same site behind a router are not known.
func onLink(table string) (out []netip.Prefix) {
	const (
		destination, length, router, flags, device = 0, 1, 4, 8, 9

		up, gateway, reject = 0x1, 0x2, 0x200 // RTF_*
	)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) <= device || f[device] == "lo" || strings.Trim(f[router], "0") != "" {
			continue
		}
		a, err := hex.DecodeString(f[destination])
		bits, err2 := strconv.ParseUint(f[length], 16, 8)
		kind, err3 := strconv.ParseUint(f[flags], 16, 32)
		addr, ok := netip.AddrFromSlice(a)
		if err != nil || err2 != nil || err3 != nil || !ok || kind&(up|gateway|reject) != up {
			continue
		}
		if p := netip.PrefixFrom(addr, int(bits)); p.IsValid() && unicast6.Contains(addr) {
			out = append(out, p)
		}
	}
	return out
}
