package egress

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

var ownForTest = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("20.9.9.9/24"),
	netip.MustParsePrefix("2a00:9::9/64")}

// special are addresses that no name may lead to; each with the kind of opening
// that it has.
var special = map[string]exception{
	"0.0.0.0": noException, "0.1.2.3": noException, "10.0.0.1": containingRange, "10.255.255.255": containingRange,
	"100.64.0.1":      containingRange,
	"100.127.255.255": containingRange,
	"127.0.0.1":       containingRange, "127.255.255.254": containingRange, "169.254.169.254": innerRange,
	"169.254.0.1":     innerRange,
	"168.63.129.16":   innerRange,
	"100.100.100.200": innerRange, "192.0.0.192": innerRange, "fd00:ec2::254": innerRange, "fd20:ce::254": innerRange,
	"172.16.0.1": containingRange, "172.31.255.255": containingRange, "192.0.0.1": containingRange,
	"192.0.2.1": containingRange, "192.88.99.1": containingRange,
	"192.168.1.1": containingRange,
	"198.18.0.1":  containingRange, "198.19.255.255": containingRange, "198.51.100.1": containingRange,
	"203.0.113.1": containingRange,
	"224.0.0.1":   noException, "239.255.255.255": noException, "240.0.0.1": containingRange,
	"255.255.255.255": noException,
	"::":              noException, "::1": containingRange, "::7f00:1": noException, "::10.0.0.1": noException,
	"fe80::1": noException, "febf::1": noException,
	"fec0::1": containingRange, "fc00::1": containingRange, "fdff::1": containingRange,
	"ff02::1": noException, "100::1": containingRange, "2001::1": noException, "2001:0:1::1": noException,
	"2001:2::1": containingRange, "2001:10::1": containingRange,
	"2001:20::1":  containingRange,
	"2001:db8::1": containingRange, "3fff::1": containingRange, "2002:7f00:1::": noException,
	"2002:1400:1::": noException, "4000::1": containingRange,
	"1fff::1":         containingRange,
	"64:ff9b::7f00:1": noException, "64:ff9b::10.0.0.1": noException, "64:ff9b::169.254.169.254": noException,
	"64:ff9b:1::20.0.0.1": noException, "5f00::1": containingRange, "::ffff:0:10.0.0.1": noException,
	"::ffff:0:20.0.0.1": noException, "2a00::5efe:10.0.0.1": noException, "2a00::200:5efe:169.254.169.254": noException,
	"2002:a00:1::": noException, "64:ff9b:1::10.0.0.1": noException, "64:ff9b:1:a00:0:100::": noException,
	"::ffff:10.0.0.1": noException, "64:ff9b::127.0.0.1": noException, "64:ff9b::192.168.1.1": noException,
	"64:ff9b::100.64.0.1": noException, "64:ff9b::0.0.0.0": noException,
}

var public = []string{"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.0.0.1", "128.0.0.1",
	"169.253.1.1",
	"172.15.0.1", "172.32.0.1", "192.0.1.1", "192.167.0.1", "192.169.0.1", "198.17.0.1", "198.20.0.1",
	"223.255.255.255",
	"2a00::1", "2001:200::1", "2003::1", "3ffe::1", "64:ff9b::20.0.0.1", "2a00::5efe:20.0.0.1"}

// reason is the text of a refusal, or empty.
func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestSpecialAddresses(t *testing.T) {
	p := &Policy{Mode: Public, Allow: rules(t, "named.example", "0.0.0.0/0", "::/0"),
		Registries: rules(t, "registry.example:443"),
		Private: []Private{{rules(t, "private.example")[0], netip.MustParsePrefix("0.0.0.0/0")},
			{rules(t, "private.example")[0], netip.MustParsePrefix("::/0")}}}
	for s, o := range special {
		a := addr(s)
		for _, name := range []string{"", "any.example", "named.example"} {
			if why := reason(p.check(Target{name, a, 443}, ownForTest)); why == "" {
				t.Errorf("%q at %s is allowed", name, s)
			}
		}
		if got := reason(p.check(Target{"registry.example", a, 443}, ownForTest)) == ""; got != (o == containingRange) {
			t.Errorf("a registry at %s: allowed is %v", s, got)
		}
		if reason(p.check(Target{"registry.example", a, 80}, ownForTest)) == "" {
			t.Errorf("a registry at %s is allowed on another port", s)
		}
		if got := reason(p.check(Target{"private.example", a, 443}, ownForTest)) == ""; got != (o == containingRange) {
			t.Errorf("a private host at %s: allowed is %v", s, got)
		}
	}
	for _, s := range public {
		for _, name := range []string{"", "any.example"} {
			if why := reason(p.check(Target{name, addr(s), 443}, ownForTest)); why != "" {
				t.Errorf("%q at %s: %s", name, s, why)
			}
		}
	}
}

func TestExactPrivateRange(t *testing.T) {
	host := rules(t, "meta.example")[0]
	for cidr, want := range map[string]bool{"169.254.169.254/32": true, "169.254.0.0/16": true, "169.0.0.0/8": false,
		"168.0.0.0/7": false, "0.0.0.0/0": false} {
		p := &Policy{Mode: Allowlist, Private: []Private{{host, netip.MustParsePrefix(cidr)}}}
		if got := reason(p.check(Target{"meta.example", addr("169.254.169.254"), 80}, ownForTest)) == ""; got != want {
			t.Errorf("%s opens metadata: %v", cidr, got)
		}
		if reason(p.check(Target{"", addr("169.254.169.254"), 80}, ownForTest)) == "" {
			t.Errorf("%s opens metadata by address", cidr)
		}
	}
}

func TestOwnAddresses(t *testing.T) {
	p := &Policy{Mode: Public, Allow: rules(t, "a.example")}
	for _, s := range []string{"20.9.9.9", "2a00:9::9", "64:ff9b::20.9.9.9"} {
		if why := reason(p.check(Target{"a.example", addr(s), 443}, ownForTest)); !strings.Contains(why, "own") {
			t.Errorf("%s: %q", s, why)
		}
	}
	// Neighbours, of both families; not who has a like address.
	for _, s := range []string{"20.9.9.1", "20.9.9.255", "2a00:9::1", "2a00:9::ffff:ffff:ffff:ffff",
		"64:ff9b::20.9.9.1", "2a00:1::5efe:20.9.9.1"} {
		if why := reason(p.check(Target{"a.example", addr(s), 443}, ownForTest)); !strings.Contains(why,
			"in the server's own network") {
			t.Errorf("%s: %q", s, why)
		}
	}
	for _, s := range []string{"20.9.8.1", "2a00:9:0:1::1"} {
		if why := reason(p.check(Target{"a.example", addr(s), 443}, ownForTest)); why != "" {
			t.Errorf("%s: %q", s, why)
		}
	}
	// A range that is as good as everything says nothing about neighbours.
	wide := []netip.Prefix{netip.MustParsePrefix("20.9.9.9/1"), netip.MustParsePrefix("2a00:9::9/3")}
	if reason(p.check(Target{"a.example", addr("20.9.9.9"), 443}, wide)) == "" ||
		reason(p.check(Target{"a.example", addr("20.9.9.1"), 443}, wide)) != "" ||
		reason(p.check(Target{"a.example", addr("2a00:9::1"), 443}, wide)) != "" {
		t.Error("a wide range counts, or its own address does not")
	}
	if reason(p.check(Target{"a.example", addr("20.0.0.1"), 443}, nil)) == "" {
		t.Error("allowed although the server's addresses are not known")
	}
	for _, s := range []string{"20.9.9.9/32", "2a00:9::1/128"} {
		n := netip.MustParsePrefix(s)
		p.Private = []Private{{rules(t, "a.example")[0], n}}
		if why := reason(p.check(Target{"a.example", n.Addr(), 443}, ownForTest)); why != "" {
			t.Errorf("the operator's exception: %s", why)
		}
	}
}

// A machine, in a network namespace of its own, gets addresses and networks, and
// loses them.
func TestOwnAddressesChange(t *testing.T) {
	const inside = "SANDLOT_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOwnAddressesChange$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) || strings.Contains(string(out), "--- SKIP") {
			t.Skipf("no network namespace can be made here: %v %s", err, out)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	ip := func(args string) {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) || strings.Contains(string(out), "Operation not supported") ||
			strings.Contains(string(out), "Unknown device type") {
			t.Skip(string(out), err)
		}
		if err != nil {
			t.Fatalf("ip %s: %v %s", args, err, out)
		}
	}
	is := func(a, want string) {
		t.Helper()
		if got := describeOwn(addr(a), interfaceAddresses()); got != want {
			t.Errorf("%s is %q, want %q", a, got, want)
		}
	}
	const own, beside = "the server's own", "in the server's own network"
	ip("link add d0 type veth peer name d1")
	ip("link set d1 up")
	ip("link set d0 up")
	is("2a00:9::9", "")
	ip("-6 addr add 2a00:9::9/64 dev d0 nodad")
	ip("-6 addr add 2a00:10::9/128 dev d0 nodad") // as by DHCPv6
	ip("-6 route add 2a00:10::/64 dev d0")
	ip("-6 route add 2a00:11::/64 via 2a00:9::1")
	ip("addr add 20.9.9.9/24 dev d0")
	for a, want := range map[string]string{"2a00:9::9": own, "2a00:9::1": beside, "2a00:10::9": own,
		"2a00:10::1": beside, "2a00:11::1": "", "20.9.9.9": own, "20.9.9.1": beside, "20.9.8.1": ""} {
		is(a, want)
	}
	ip("link del d0")
	is("2a00:9::9", "")
	is("20.9.9.1", "")
}

func TestOnLink(t *testing.T) {
	const zero = "00000000000000000000000000000000"
	table := "2a000009000000000000000000000000 40 " + zero + " 00 " + zero +
		" 00000100 00000001 00000000 00000001     eth0\n" +
		// by a router
		"2a000010000000000000000000000000 40 " + zero +
		" 00 fe800000000000000000000000000001 00000100 00000001 00000000 00000003     eth0\n" +
		// unreachable
		"2a000011000000000000000000000000 40 " + zero + " 00 " + zero +
		" 00000100 00000001 00000000 00000201     eth0\n" +
		"2a000012000000000000000000000000 40 " + zero + " 00 " + zero +
		" 00000100 00000001 00000000 00000001       lo\n" +
		"fe800000000000000000000000000000 40 " + zero + " 00 " + zero +
		" 00000100 00000001 00000000 00000001     eth0\n" +
		zero + " 00 " + zero + " 00 " + zero + " ffffffff 00000001 00000000 00200200       lo\n" +
		"nonsense\n2a00 zz " + zero + " 00 " + zero + " 0 0 0 1 eth0\n"
	got := onLink(table)
	if len(got) != 1 || got[0] != netip.MustParsePrefix("2a00:9::/64") {
		t.Errorf("%v", got)
	}
}

func TestNames(t *testing.T) {
	lists := Policy{Allow: rules(t, "a.example:443", "*.b.example", "20.0.0.7:22", "20.1.0.0/16"),
		Registries: rules(t, "localhost:4873", "r.example:8081"),
		Private:    []Private{{rules(t, "m.example")[0], netip.MustParsePrefix("10.0.0.0/8")}}}
	for _, c := range []struct {
		host              string
		port              uint16
		allowlist, public bool
	}{
		{"a.example", 443, true, true},
		{"a.example", 0, true, true},
		{"a.example", 80, false, true},
		{"x.b.example", 1, true, true},
		{"b.example", 1, false, true},
		{"m.example", 5432, true, true},
		{"r.example", 8081, true, true},
		{"r.example", 80, false, true},
		{"other.example", 443, false, true},
		{"localhost", 4873, true, true},
		{"localhost", 80, false, false},
		{"a.localhost", 80, false, false},
		{"localhost.localdomain", 80, false, false},
		{"ip6-localhost", 80, false, false},
		{"ip6-loopback", 80, false, false},
		{"printer.local", 80, false, true},
		{"metadata.google.internal", 80, false, true},
		{"20.0.0.7", 22, true, true},
		{"20.0.0.7", 23, false, true},
		{"20.1.2.3", 23, true, true},
		{"20.2.0.0", 23, false, true},
	} {
		name, a, err := parseHost(c.host)
		if err != nil {
			t.Fatal(err)
		}
		for mode, want := range map[Mode]bool{None: false, Open: false, "": false, "typo": false,
			Allowlist: c.allowlist, Public: c.public} {
			p := lists
			p.Mode = mode
			if why := reason(p.checkName(Target{name, a, c.port})); (why == "") != want {
				t.Errorf("%s:%d with %q: %q", c.host, c.port, mode, why)
			}
		}
		var nobody *Policy
		if reason(nobody.checkName(Target{name, a, c.port})) == "" {
			t.Errorf("%s: no policy allows it", c.host)
		}
	}
}

func TestOddHosts(t *testing.T) {
	for _, s := range []string{"127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0X7F.1",
		"0x7f.0x0.0x0.0x1", "0177.0.0.1", "127.0.0.01",
		"127.0.0.1.", "0", "0x", "1.2.3.4.5", "a.b.0x7f", "fe80::1%eth0", "::1%1", "[::1]", "a b", "a\nb", "a\x00b",
		"ａ.example", "١٢٧.0.0.1", "a/b", "a:80", "@", "*", "*.example.com", ".", "", "-"} {
		name, a, err := parseHost(s)
		if s == "127.0.0.1." { // a name of the DNS that is an address: judged as one
			if err != nil || a != addr("127.0.0.1") {
				t.Errorf("%q: %q %v %v", s, name, a, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%q is a host: %q %v", s, name, a)
		}
	}
	for s, want := range map[string]string{"::ffff:127.0.0.1": "127.0.0.1", "::FFFF:7f00:1": "127.0.0.1",
		"1.2.3.4": "1.2.3.4", "0:0::1": "::1"} {
		if name, a, err := parseHost(s); err != nil || name != "" || a != addr(want) {
			t.Errorf("%q: %q %v %v", s, name, a, err)
		}
	}
	if name, _, err := parseHost("WWW.Example.COM."); err != nil || name != "www.example.com" {
		t.Errorf("%q %v", name, err)
	}
}

func TestParseMode(t *testing.T) {
	for _, s := range []string{"none", "allowlist", "public", "open"} {
		if m, err := ParseMode(s); err != nil || string(m) != s {
			t.Errorf("%s: %q %v", s, m, err)
		}
	}
	if m, err := ParseMode("PUBLIC"); err == nil || m != None {
		t.Errorf("PUBLIC: %q %v", m, err)
	}
}
