package egress

import "net/netip"

// open says who can open addresses that are not public.
type open int

const (
	named  open = iota // a registry, or a private range that contains it
	inside             // a private range that lies within the range of that kind
	never
)

type kind struct {
	prefix netip.Prefix
	what   string // completes "its address 10.0.0.1 is …"
	open   open
}

// kinds are the addresses that are not public, from the registries of IANA for
// special purposes (RFC 6890) and from what the large clouds document; the
// first that contains an address says what it is. Of IPv6 everything outside
// 2000::/3 is added by kindOf.
var kinds = []kind{
	{at("169.254.0.0/16"), "link-local (where clouds have their metadata)", inside},
	{at("168.63.129.16/32"), "a cloud's metadata service", inside},
	{at("100.100.100.200/32"), "a cloud's metadata service", inside},
	{at("192.0.0.192/32"), "a cloud's metadata service", inside},
	{at("fd00:ec2::/32"), "a cloud's metadata service", inside},
	{at("fd20:ce::254/128"), "a cloud's metadata service", inside},

	{at("0.0.0.0/8"), "this machine", never},
	{at("224.0.0.0/4"), "multicast", never},
	{at("255.255.255.255/32"), "broadcast", never},
	{at("10.0.0.0/8"), "private", named},
	{at("172.16.0.0/12"), "private", named},
	{at("192.168.0.0/16"), "private", named},
	{at("100.64.0.0/10"), "private to the provider", named},
	{at("127.0.0.0/8"), "loopback", named},
	{at("192.0.0.0/24"), "reserved", named},
	{at("192.0.2.0/24"), "for documentation", named},
	{at("192.88.99.0/24"), "reserved", named},
	{at("198.18.0.0/15"), "for benchmarks", named},
	{at("198.51.100.0/24"), "for documentation", named},
	{at("203.0.113.0/24"), "for documentation", named},
	{at("240.0.0.0/4"), "reserved", named},

	{at("::/128"), "this machine", never},
	{at("::1/128"), "loopback", named},
	{at("::/96"), "an IPv4 address in an IPv6 one", never},
	{at("64:ff9b:1::/48"), "an IPv4 address in an IPv6 one", never},
	{at("2001::/32"), "an IPv4 address in an IPv6 one", never}, // Teredo
	{at("2002::/16"), "an IPv4 address in an IPv6 one", never}, // 6to4
	{at("fe80::/10"), "link-local", never},
	{at("ff00::/8"), "multicast", never},
	{at("fc00::/7"), "private", named},
	{at("2001::/23"), "reserved", named},
	{at("2001:db8::/32"), "for documentation", named},
	{at("3fff::/20"), "for documentation", named},
}

var (
	unicast6 = at("2000::/3")
	nat64    = at("64:ff9b::/96")
)

func at(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// kindOf says what a, which is not an IPv4 address in IPv6 form, is if it is
// not public.
func kindOf(a netip.Addr) (k kind, special bool) {
	for _, k := range kinds {
		if k.prefix.Contains(a) {
			return k, true
		}
	}
	switch {
	case a.Is4(), unicast6.Contains(a):
		return kind{}, false
	case nat64.Contains(a):
		// A public IPv4 address, as a network without IPv4 names it; what else
		// hides in there is nobody's to open.
		k, special = kindOf(embedded(a))
		k.open = never
		return k, special
	}
	return kind{at("::/0"), "reserved", named}, true
}

func embedded(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// minBits is how long a range of an interface is that means neighbours: a
// shorter one stands for more than any network has.
const minBits = 8

// near says what a is to the machine that own are the addresses and networks
// of: "the server's own", in "the server's own network", or nothing, empty.
func near(a netip.Addr, own []netip.Prefix) (what string) {
	if nat64.Contains(a) {
		a = embedded(a)
	}
	for _, p := range own {
		switch {
		case p.Addr() == a:
			return "the server's own"
		case p.Bits() >= minBits && p.Contains(a):
			what = "in the server's own network"
		}
	}
	return what
}
