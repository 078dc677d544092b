package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// localNets are all of IPv4 but 0.0.0.0/8 and what is local already, as addresses of the loopback interface with
// their prefixes. Linux makes no route for a prefix that begins with 0, so 0.0.0.0/1 takes seven of them.
var localNets = []string{"198.18.0.1/15", "1.0.0.1/8", "2.0.0.1/7", "4.0.0.1/6", "8.0.0.1/5", "16.0.0.1/4",
	"32.0.0.1/3", "64.0.0.1/2", "128.0.0.1/1"}

// redirect makes every IPv4 address a local one, and redirects to this process all TCP
// connections that do not go to loopback, and the DNS queries to any name server. It needs
// CAP_NET_ADMIN and CAP_NET_RAW.
func redirect(port uint16) error {
	if err := addAddresses(); err != nil {
		return err
	}
	if err := setTable(rules(port)); err != nil {
		return fmt.Errorf("setting the nat table: %w", err)
	}
	return nil
}

func addAddresses() error {
	for _, p := range localNets {
		if err := addAddress(netip.MustParsePrefix(p)); err != nil {
			return fmt.Errorf("adding %s to the loopback interface: %w", p, err)
		}
	}
	return nil
}

var (
	native      = binary.NativeEndian
	loopbackNet = netip.MustParsePrefix("127.0.0.0/8")
)

// addAddress adds an address to interface 1, which is lo, with rtnetlink(7).
func addAddress(p netip.Prefix) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	a := p.Addr().As4()
	body := []byte{unix.AF_INET, byte(p.Bits()), 0, 0}
	body = native.AppendUint32(body, 1)
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		body = native.AppendUint16(body, 8)
		body = native.AppendUint16(body, kind)
		body = append(body, a[:]...)
	}
	m := native.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	m = native.AppendUint16(m, unix.RTM_NEWADDR)
	m = native.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	m = append(m, make([]byte, 8)...) // sequence and port
	if err := unix.Sendto(s, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, buf, 0)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || native.Uint16(buf[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel sent an invalid answer")
	}
	if code := int32(native.Uint32(buf[unix.NLMSG_HDRLEN:])); code != 0 && syscall.Errno(-code) != unix.EEXIST {
		return syscall.Errno(-code)
	}
	return nil
}

// The nat table is set as the iptables program sets it, with IPT_SO_SET_REPLACE. See
// linux/netfilter_ipv4/ip_tables.h and linux/netfilter/x_tables.h.
const (
	soSetReplace = 64 // IPT_SO_SET_REPLACE

	hookPrerouting  = 0
	hookInput       = 1
	hookOutput      = 3
	hookPostrouting = 4
	hooks           = 5

	invertDestination = 0x10 // IPT_INV_DSTIP
	portGiven         = 2    // NF_NAT_RANGE_PROTO_SPECIFIED
	accepted          = 1    // NF_ACCEPT

	entryLen  = 112 // struct ipt_entry
	targetLen = 32  // struct xt_entry_target
)

// rule is one entry of a table.
type rule struct {
	protocol    uint8
	destination netip.Prefix // invalid: any destination
	inverted    bool         // the rule is for every destination but that one
	matches     []byte       // of struct xt_entry_match
	target      []byte       // a struct xt_entry_target
}

// rules returns the rule of all chains but OUTPUT, and those of OUTPUT.
func rules(port uint16) (acceptAll, output []rule) {
	accept := rule{target: verdict(accepted)}
	return []rule{accept}, []rule{
		{protocol: unix.IPPROTO_TCP, destination: refusedNet, target: verdict(accepted)},
		{protocol: unix.IPPROTO_TCP, destination: loopbackNet, inverted: true, target: redirectTo(port)},
		{protocol: unix.IPPROTO_UDP, destination: loopbackNet, inverted: true, matches: matchUDPPort(dnsPort),
			target: redirectTo(dnsPort)},
		accept,
	}
}

// target returns a struct xt_entry_target with its data.
func target(name string, body []byte) []byte {
	t := native.AppendUint16(nil, uint16(targetLen+len(body)))
	t = append(t, name...)
	t = append(t, make([]byte, targetLen-len(t))...)
	return append(t, body...)
}

// verdict returns the target that ends the chain with a verdict.
func verdict(v int32) []byte {
	return target("", append(native.AppendUint32(nil, uint32(-v-1)), 0, 0, 0, 0))
}

// redirectTo returns the target that redirects to a port of this machine.
func redirectTo(p uint16) []byte {
	body := native.AppendUint32(nil, 1)
	body = native.AppendUint32(body, portGiven)
	body = append(body, make([]byte, 8)...) // addresses
	body = binary.BigEndian.AppendUint16(body, p)
	body = binary.BigEndian.AppendUint16(body, p)
	return target("REDIRECT", append(body, 0, 0, 0, 0))
}

// matchUDPPort returns a struct xt_entry_match with a struct xt_udp: packets to that port.
func matchUDPPort(p uint16) []byte {
	body := []byte{0, 0, 0xff, 0xff} // from any port
	body = native.AppendUint16(body, p)
	body = native.AppendUint16(body, p)
	return target("udp", append(body, make([]byte, 8)...)) // both structs have the same header
}

// entry returns the rule as a struct ipt_entry with its matches and target.
func (r rule) entry() []byte {
	e := make([]byte, entryLen)
	if r.destination.IsValid() {
		a := r.destination.Addr().As4()
		copy(e[4:], a[:])
		binary.BigEndian.PutUint32(e[12:], ^uint32(0)<<(32-r.destination.Bits()))
	}
	native.PutUint16(e[80:], uint16(r.protocol))
	if r.inverted {
		e[83] = invertDestination
	}
	native.PutUint16(e[88:], uint16(entryLen+len(r.matches)))
	native.PutUint16(e[90:], uint16(entryLen+len(r.matches)+len(r.target)))
	return append(append(e, r.matches...), r.target...)
}

// setTable replaces the table nat. The chain OUTPUT gets the rules output; each other chain
// gets the rules acceptAll.
func setTable(acceptAll, output []rule) error {
	var entries bytes.Buffer
	var hookEntries, underflows [hooks]uint32
	count := 0
	chain := func(hook int, rules []rule) {
		hookEntries[hook] = uint32(entries.Len())
		for _, r := range rules {
			underflows[hook] = uint32(entries.Len())
			entries.Write(r.entry())
			count++
		}
	}
	chain(hookPrerouting, acceptAll)
	chain(hookInput, acceptAll)
	chain(hookOutput, output)
	chain(hookPostrouting, acceptAll)
	last := rule{target: target("ERROR", append([]byte("ERROR"), make([]byte, 27)...))}
	entries.Write(last.entry())
	count++

	m := append([]byte("nat"), make([]byte, 29)...)
	m = native.AppendUint32(m, 1<<hookPrerouting|1<<hookInput|1<<hookOutput|1<<hookPostrouting)
	m = native.AppendUint32(m, uint32(count))
	m = native.AppendUint32(m, uint32(entries.Len()))
	for _, list := range [][hooks]uint32{hookEntries, underflows} {
		for _, offset := range list {
			m = native.AppendUint32(m, offset)
		}
	}
	m = native.AppendUint32(m, 5) // how many counters of the replaced table the kernel may write
	counters := make([]byte, 5*16)
	m = native.AppendUint64(m, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	m = append(m, entries.Bytes()...)

	s, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(s), unix.IPPROTO_IP, soSetReplace,
		uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), 0)
	runtime.KeepAlive(counters)
	if errno != 0 {
		return errno
	}
	return nil
}
