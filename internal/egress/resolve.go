package egress

import (
	"bufio"
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
	// An answer is kept just long enough for the look-up of a program and the
	// connection after it to be one question.
	resolveKept    = 5 * time.Second
	resolveMax     = 4096 // names
	resolveTimeout = 10 * time.Second
	// maxAddresses bounds how many addresses of one name are tried.
	maxAddresses = 8
)

var errNoName = errors.New("there is no such name")

// resolver asks for each name once at a time, and remembers the answer for a
// moment. It has no goroutine: the first who asks waits for all.
type resolver struct {
	ask func(context.Context, string) ([]netip.Addr, error)

	mu    sync.Mutex
	names map[string]*answer
}

type answer struct {
	done    chan struct{} // closed when the rest is set
	addrs   []netip.Addr
	err     error
	expires time.Time
}

// lookup returns the addresses of a name, IPv4 before IPv6, and errNoName when
// it has none.
func (r *resolver) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	for {
		a, mine := r.answer(name)
		if mine {
			r.resolve(ctx, name, a)
		}
		select {
		case <-a.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		// The caller that asked for all may have given up alone.
		if errors.Is(a.err, context.Canceled) && ctx.Err() == nil && !mine {
			continue
		}
		return a.addrs, a.err
	}
}

// answer returns the answer for name, and whether the caller has to get it.
func (r *resolver) answer(name string) (a *answer, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.names[name]; a != nil && (a.expires.IsZero() || time.Now().Before(a.expires)) {
		return a, false
	}
	if len(r.names) >= resolveMax {
		r.makeRoom()
	}
	a = &answer{done: make(chan struct{})}
	r.names[name] = a
	return a, true
}

// makeRoom removes expired answers, and then any, until a quarter is free, so that it does
// not run for each name.
func (r *resolver) makeRoom() {
	now := time.Now()
	for name, a := range r.names {
		if !a.expires.IsZero() && now.After(a.expires) {
			delete(r.names, name)
		}
	}
	for name := range r.names {
		if len(r.names) < resolveMax*3/4 {
			return
		}
		delete(r.names, name)
	}
}

func (r *resolver) resolve(ctx context.Context, name string, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err := r.ask(ctx, name)
	if ctx.Err() == context.Canceled {
		err = context.Canceled
	}
	addrs, err = sorted(addrs), asNoName(addrs, err)

	r.mu.Lock()
	defer r.mu.Unlock()
	a.addrs, a.err, a.expires = addrs, err, time.Now().Add(resolveKept)
	// A resolver that fails is asked again.
	if err != nil && !errors.Is(err, errNoName) && r.names[name] == a {
		delete(r.names, name)
	}
	close(a.done)
}

func asNoName(addrs []netip.Addr, err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound || err == nil && len(addrs) == 0 {
		return errNoName
	}
	return err
}

// sorted returns the addresses without their disguises, IPv4 first, each once.
func sorted(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); !slices.Contains(out, a) && len(out) < 64 {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return out
}

// ownKept is how long the machine's addresses are cached.
const ownKept = time.Second

// cacheAddresses returns a function that caches the machine's addresses for ownKept, and
// keeps the last ones when ask returns none.
func cacheAddresses(ask func() []netip.Prefix) func() []netip.Prefix {
	var (
		mu    sync.Mutex
		known []netip.Prefix
		asked time.Time
	)
	return func() []netip.Prefix {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); asked.IsZero() || now.Sub(asked) > ownKept {
			asked = now
			if a := ask(); len(a) > 0 {
				known = a
			}
		}
		return known
	}
}

// interfaceAddresses returns the addresses of all interfaces, of both families,
// and the IPv6 networks that routes say are beside it.
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
		out = append(out, onLink(io.LimitReader(f, maxRoutes))...)
	}
	return out
}

// maxRoutes bounds what is read of the table of routes, in bytes.
const maxRoutes = 1 << 20

// onLink reads /proc/net/ipv6_route, and returns the ranges that are reached
// without a router. An address that came by DHCPv6 has none of its own: its
// neighbours are known by the route alone.
func onLink(table io.Reader) (out []netip.Prefix) {
	const (
		destination, length, router, flags, device = 0, 1, 4, 8, 9

		up, gateway, reject = 0x1, 0x2, 0x200 // RTF_*
	)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
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
