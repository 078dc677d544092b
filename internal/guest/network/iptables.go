package network

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
	var matches []byte
	if r.port != 0 {
		matches = matchUDPPort(r.port)
	}
	target := verdict(accepted)
	if r.redirectTo != 0 {
		target = redirectTo(r.redirectTo)
	}
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
	return appendTarget(append(e, matches...), target)
}

// appendTarget appends the target to a struct ipt_entry with its matches.
func appendTarget(e, target []byte) []byte {
	native.PutUint16(e[88:], uint16(len(e)))
	native.PutUint16(e[90:], uint16(len(e)+len(target)))
	return append(e, target...)
}

// setIPTables replaces the table nat. The chain OUTPUT gets the rules, and at its end accepts; each other chain
// accepts all.
func setIPTables(output []rule) error {
	acceptAll := []rule{{}}
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
	chain(hookOutput, append(output, rule{}))
	chain(hookPostrouting, acceptAll)
	entries.Write(appendTarget(make([]byte, entryLen), target("ERROR", append([]byte("ERROR"), make([]byte, 27)...))))
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
