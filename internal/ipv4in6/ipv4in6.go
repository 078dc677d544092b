// Package ipv4in6 owns which IPv4 addresses an IPv6 address has in it: what is sent to such an address may arrive at the
// IPv4 one.
package ipv4in6

import "net/netip"

var (
	mapped     = netip.MustParsePrefix("::ffff:0:0/96")
	compatible = netip.MustParsePrefix("::/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 7915, once RFC 2765
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	teredo     = netip.MustParsePrefix("2001::/32")       // RFC 4380
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
)

// Of returns the IPv4 addresses in an IPv6 address, by its well-known prefixes, or, for ISATAP (RFC 5214), by the last 64
// bits. In a local prefix of NAT64 the place of the address is not known: Of returns all addresses that it may be. A
// NAT64 with a prefix of its own network is not known.
func Of(a netip.Addr) []netip.Addr {
	if !a.Is6() {
		return nil
	}
	a = a.WithZone("")
	b := a.As16()
	at := func(i, j, k, l int) netip.Addr { return netip.AddrFrom4([4]byte{b[i], b[j], b[k], b[l]}) }
	last := at(12, 13, 14, 15)
	switch {
	case mapped.Contains(a) || a.Is4In6(), translated.Contains(a), nat64.Contains(a):
		return []netip.Addr{last}
	case compatible.Contains(a):
		if a == netip.IPv6Unspecified() || a == netip.IPv6Loopback() {
			return nil
		}
		return []netip.Addr{last}
	case localNAT64.Contains(a): // of 96, 64, 56 and 48 bits
		return []netip.Addr{last, at(9, 10, 11, 12), at(7, 9, 10, 11), at(6, 7, 9, 10)}
	case teredo.Contains(a): // the server, and the client
		client := netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
		return []netip.Addr{at(4, 5, 6, 7), client}
	case sixToFour.Contains(a):
		return []netip.Addr{at(2, 3, 4, 5)}
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe:
		return []netip.Addr{last}
	}
	return nil
}
