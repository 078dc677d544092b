package ipv4in6

import (
	"net/netip"
	"slices"
	"testing"
)

// TestOf: the address 10.1.2.3 is found in each form, and none in addresses that have none.
func TestOf(t *testing.T) {
	want := netip.MustParseAddr("10.1.2.3")
	for _, text := range []string{"::ffff:10.1.2.3", "::10.1.2.3", "::ffff:0:10.1.2.3", "64:ff9b::10.1.2.3",
		"64:ff9b:1::10.1.2.3", "64:ff9b:1:ffff::10.1.2.3", "64:ff9b:1:0:a:102:300:0", "64:ff9b:1:a:1:203::",
		"64:ff9b:1:a01:2:300::", "2001:0:a01:203::1", "2001:0:1400:1::f5fe:fdfc", "2002:a01:203::1", "2002:a01:203:1:2:3:4:5",
		"fe80::5efe:10.1.2.3", "2a00:1:2:3:200:5efe:a01:203", "fe80::5efe:10.1.2.3%eth0"} {
		if got := Of(netip.MustParseAddr(text)); !slices.Contains(got, want) {
			t.Errorf("%s has %v", text, got)
		}
	}
	for _, text := range []string{"10.1.2.3", "::", "::1", "2a00::10.1.2.3", "2003:a01:203::1", "64:ff9b:2::10.1.2.3",
		"64:ff9c::10.1.2.3", "2001:1:a01:203::1", "2a00::1:5efe:10.1.2.3"} {
		if got := Of(netip.MustParseAddr(text)); got != nil {
			t.Errorf("%s has %v", text, got)
		}
	}
	if got := Of(netip.Addr{}); got != nil {
		t.Errorf("no address has %v", got)
	}
}
