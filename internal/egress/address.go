package egress

import (
	"net/netip"

	"sandlot/internal/ipv4in6"
)

// exception says which of the operator's exceptions allow addresses that are not public.
type exception int

const (
	containingRange exception = iota // a registry, or a private range that contains the address
	innerRange                       // a private range that contains the address and lies within the range of its class
	noException
)

// addrClass is a class of addresses that are not public.
type addrClass struct {
	prefix    netip.Prefix
	what      string // completes "its address 10.0.0.1 is …"
	exception exception
}

// specialRanges are the classes of addresses that are not public, from IANA's registries of special
// purposes (RFC 6890) and the documentation of the large clouds. The first one that
// contains an address applies. classOf adds all IPv6 addresses outside 2000::/3.
var specialRanges = []addrClass{
	{cidr("169.254.0.0/16"), "link-local (where clouds have their metadata)", innerRange},
	{cidr("168.63.129.16/32"), "a cloud's metadata service", innerRange},
	{cidr("100.100.100.200/32"), "a cloud's metadata service", innerRange},
	{cidr("192.0.0.192/32"), "a cloud's metadata service", innerRange},
	{cidr("fd00:ec2::/32"), "a cloud's metadata service", innerRange},
	{cidr("fd20:ce::254/128"), "a cloud's metadata service", innerRange},

	{cidr("0.0.0.0/8"), "this machine", noException},
	{cidr("224.0.0.0/4"), "multicast", noException},
	{cidr("255.255.255.255/32"), "broadcast", noException},
	{cidr("10.0.0.0/8"), "private", containingRange},
	{cidr("172.16.0.0/12"), "private", containingRange},
	{cidr("192.168.0.0/16"), "private", containingRange},
	{cidr("100.64.0.0/10"), "private to the provider", containingRange},
	{cidr("127.0.0.0/8"), "loopback", containingRange},
	{cidr("192.0.0.0/24"), "reserved", containingRange},
	{cidr("192.0.2.0/24"), "for documentation", containingRange},
	{cidr("192.88.99.0/24"), "reserved", containingRange},
	{cidr("198.18.0.0/15"), "for benchmarks", containingRange},
	{cidr("198.51.100.0/24"), "for documentation", containingRange},
	{cidr("203.0.113.0/24"), "for documentation", containingRange},
	{cidr("240.0.0.0/4"), "reserved", containingRange},

	{cidr("::/128"), "this machine", noException},
	{cidr("::1/128"), "loopback", containingRange},
	{cidr("::/96"), "an IPv4 address in an IPv6 one", noException},
	{cidr("::ffff:0:0/96"), "an IPv4 address in an IPv6 one", noException},   // mapped
	{cidr("::ffff:0:0:0/96"), "an IPv4 address in an IPv6 one", noException}, // translated
	{cidr("64:ff9b:1::/48"), "an IPv4 address in an IPv6 one", noException},
	{cidr("2001::/32"), "an IPv4 address in an IPv6 one", noException}, // Teredo
	{cidr("2002::/16"), "an IPv4 address in an IPv6 one", noException}, // 6to4
	{cidr("fe80::/10"), "link-local", noException},
	{cidr("ff00::/8"), "multicast", noException},
	{cidr("fc00::/7"), "private", containingRange},
	{cidr("2001::/23"), "reserved", containingRange},
	{cidr("2001:db8::/32"), "for documentation", containingRange},
	{cidr("3fff::/20"), "for documentation", containingRange},
}

var (
	unicast6 = cidr("2000::/3")
	nat64    = cidr("64:ff9b::/96")
)

func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// classOf returns the class of an address that is not public; special is false for a public
// one. a must not be an IPv4 address in IPv6 form.
func classOf(a netip.Addr) (k addrClass, special bool) {
	for _, k := range specialRanges {
		if k.prefix.Contains(a) {
			return k, true
		}
	}
	// NAT64 in a network without IPv4, and ISATAP: they are as public as the IPv4 address in them. If that one is not
	// public, no exception allows it in this form.
	for _, inner := range ipv4in6.Of(a) {
		if k, special := classOf(inner); special {
			k.exception = noException
			return k, true
		}
	}
	if a.Is4() || unicast6.Contains(a) || nat64.Contains(a) {
		return addrClass{}, false
	}
	return addrClass{cidr("::/0"), "reserved", containingRange}, true
}

// minNeighborBits is the shortest prefix length of an interface that counts as the machine's own
// network: a shorter one has more addresses than any real network.
const minNeighborBits = 8

// describeOwn returns "the server's own" if a is one of the machine's addresses own, "in the server's own
// network" if it is in the network of one of them, and else "".
func describeOwn(a netip.Addr, own []netip.Prefix) (what string) {
	for _, a := range append(ipv4in6.Of(a), a) {
		for _, p := range own {
			switch {
			case p.Addr() == a:
				return "the server's own"
			case p.Bits() >= minNeighborBits && p.Contains(a):
				what = "in the server's own network"
			}
		}
	}
	return what
}
