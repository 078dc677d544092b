package egress

import "net/netip"

// open says which of the operator's exceptions allow addresses that are not public.
type open int

const (
	named  open = iota // a registry, or a private range that contains the address
	inside             // a private range that contains the address and lies within the range of its class
	never
)

// kind is a class of addresses that are not public.
type kind struct {
	prefix netip.Prefix
	what   string // completes "its address 10.0.0.1 is …"
	open   open
}

// kinds are the classes of addresses that are not public, from IANA's registries of special
// purposes (RFC 6890) and the documentation of the large clouds. The first one that
// contains an address applies. kindOf adds all IPv6 addresses outside 2000::/3.
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

// kindOf returns the class of an address that is not public; special is false for a public
// one. a must not be an IPv4 address in IPv6 form.
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
		// NAT64 in a network without IPv4: it is as public as the IPv4 address in it. If
		// that one is not public, no exception allows it in this form.
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

// minBits is the shortest prefix length of an interface that counts as the machine's own
// network: a shorter one has more addresses than any real network.
const minBits = 8

// near says whether a is one of the machine's addresses own ("the server's own"), or in one
// of their networks ("in the server's own network"); else it returns "".
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
