package confine

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// numbers are the numbers of system calls in one ABI. 0: the ABI has no such call.
type numbers struct {
	arch                           uint32
	socket, socketpair, setsockopt uint32
	socketcall                     uint32 // all calls about sockets, with the arguments in memory
	clone, unshare, setns          uint32
	ioctl, personality             uint32
	vmsplice, remapFilePages       uint32
	refused                        []uint32 // whatever the arguments are
}

// Numbers of calls that are the same in all ABIs.
const (
	ioUringSetup    = 425
	ioUringEnter    = 426
	ioUringRegister = 427
	clone3          = 435
	memfdSecret     = 447
)

// enclosed are the ABIs of a processor that programs may use. Calls by all others are refused. The refused ones are
// add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, fanotify_init, open_by_handle_at, and, where there
// is one, modify_ldt.
var enclosed = map[string][]numbers{
	"amd64": {
		{arch: unix.AUDIT_ARCH_X86_64, socket: 41, socketpair: 53, setsockopt: 54, clone: 56, unshare: 272, setns: 308,
			ioctl: 16, personality: 135, vmsplice: 278, remapFilePages: 216,
			refused: []uint32{248, 249, 250, 321, 298, 323, 300, 304, 154}},
		{arch: unix.AUDIT_ARCH_I386, socket: 359, socketpair: 360, setsockopt: 366, socketcall: 102, clone: 120,
			unshare: 310, setns: 346, ioctl: 54, personality: 136, vmsplice: 316, remapFilePages: 257,
			refused: []uint32{286, 287, 288, 357, 336, 374, 338, 342, 123}},
	},
	"arm64": {
		{arch: unix.AUDIT_ARCH_AARCH64, socket: 198, socketpair: 199, setsockopt: 208, clone: 220, unshare: 97,
			setns: 268, ioctl: 29, personality: 92, vmsplice: 75, remapFilePages: 234,
			refused: []uint32{217, 218, 219, 280, 241, 282, 262, 265}},
		{arch: unix.AUDIT_ARCH_ARM, socket: 281, socketpair: 288, setsockopt: 294, socketcall: 102, clone: 120,
			unshare: 337, setns: 375, ioctl: 54, personality: 136, vmsplice: 343, remapFilePages: 253,
			refused: []uint32{309, 310, 311, 386, 364, 388, 367, 371}},
	},
}

// What programs may use is what gVisor's sandboxes have. A socket of another family or protocol can reach what no
// network namespace separates (AF_VSOCK, AF_QIPCRTR), and most make the kernel load a module. NETLINK_KOBJECT_UEVENT,
// which gVisor has of its own, would tell what the machine's devices do: the kernel sends that to all containers. The
// agent sets up the network by NETLINK_NETFILTER; programs have no capability for it.
var (
	internetTypes     = []uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW}
	internetProtocols = []uint32{0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6,
		unix.IPPROTO_RAW}
	netlinkProtocols = []uint32{unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER}
)

const (
	// newNamespaces are the flags of clone and unshare for namespaces. In clone the lowest byte is a signal.
	newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	// typeMask are the bits of a socket's type, beside flags.
	typeMask = 0xf

	and = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
)

// personalities are Linux's in 64 and 32 bits, each with the number 2.6 for the kernel, and the request for the
// present one. Others weaken the protection of a program's memory.
var personalities = []uint32{0, 8, 0x20000, 0x20008, 0xffffffff}

// terminalRequests put input into a terminal, or make the kernel load a module for one.
var terminalRequests = []uint32{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD}

// Enclose makes the kernel refuse, to all threads of this process and to what they start from now on, what a container
// has and gVisor's sandboxes have not: other sockets than those of the internet, of Unix and some of netlink, new
// namespaces, and calls that are mostly known for the faults of kernels. The daemon's own filter refuses much of it,
// but that depends on its version and its settings. This process must have no new privileges.
func Enclose() error {
	list := enclosed[runtime.GOARCH]
	if list == nil {
		return fmt.Errorf("there is no system call filter for %s", runtime.GOARCH)
	}
	return set(enclosing(list))
}

// enclosing returns the filter for these ABIs.
func enclosing(list []numbers) []unix.SockFilter {
	p := []unix.SockFilter{{Code: load, K: archOffset}}
	for _, n := range list {
		p = append(p, block(n.arch, n.rules())...)
	}
	return append(p, unix.SockFilter{Code: answer, K: noSuchCall})
}

func (n numbers) rules() []rule {
	rules := []rule{
		{n.socket, socketRule()}, {n.socketpair, socketRule()},
		{n.setsockopt, upperProtocolRule()},
		{n.clone, maskRule(newNamespaces)}, {n.unshare, maskRule(newNamespaces | unix.CLONE_NEWTIME)},
		{n.setns, always(notForYou)},
		{n.ioctl, append(in(1, terminalRequests, notForYou), always(retAllow)...)},
		{n.personality, append(in(0, personalities, retAllow), always(notForYou)...)},
		// Their arguments are in memory. Callers know older calls.
		{clone3, always(noSuchCall)}, {ioUringSetup, always(noSuchCall)},
		// gVisor has none of these. Some requests of the second one need no ring.
		{ioUringEnter, always(noSuchCall)}, {ioUringRegister, always(noSuchCall)}, {memfdSecret, always(noSuchCall)},
		{n.vmsplice, always(noSuchCall)}, {n.remapFilePages, always(noSuchCall)},
	}
	if n.socketcall != 0 { // its arguments are in memory, too; the callers of today know the single calls
		rules = append(rules, rule{n.socketcall, always(noSuchCall)})
	}
	for _, number := range n.refused {
		rules = append(rules, rule{number, always(notForYou)})
	}
	return rules
}

// socketRule is for socket and socketpair.
func socketRule() []unix.SockFilter {
	const (
		otherFamily   = retErrno | uint32(unix.EAFNOSUPPORT)
		otherType     = retErrno | uint32(unix.ESOCKTNOSUPPORT)
		otherProtocol = retErrno | uint32(unix.EPROTONOSUPPORT)
	)
	internet := append([]unix.SockFilter{{Code: load, K: argument(1)}, {Code: and, K: typeMask}},
		unlessOne(internetTypes, otherType)...)
	internet = append(internet, in(2, internetProtocols, retAllow)...)
	internet = append(internet, always(otherProtocol)...)
	netlink := append(in(2, netlinkProtocols, retAllow), always(otherProtocol)...)
	body := []unix.SockFilter{{Code: load, K: argument(0)},
		{Code: equal, K: unix.AF_UNIX, Jf: 1}, {Code: answer, K: retAllow},
		{Code: equal, K: unix.AF_NETLINK, Jf: uint8(len(netlink))}}
	body = append(body, netlink...)
	body = append(body, unix.SockFilter{Code: equal, K: unix.AF_INET, Jt: 1},
		unix.SockFilter{Code: equal, K: unix.AF_INET6, Jf: uint8(len(internet))})
	body = append(body, internet...)
	return append(body, always(otherFamily)...)
}

// upperProtocolRule is for setsockopt: no protocol above TCP in the kernel, such as that of TLS, which it would load a
// module for.
func upperProtocolRule() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: load, K: argument(1)}, {Code: equal, K: unix.IPPROTO_TCP, Jt: 1}, {Code: answer, K: retAllow},
		{Code: load, K: argument(2)}, {Code: equal, K: unix.TCP_ULP, Jf: 1},
		{Code: answer, K: retErrno | uint32(unix.ENOPROTOOPT)}, {Code: answer, K: retAllow}}
}

// maskRule refuses a first argument with one of the bits.
func maskRule(bits uint32) []unix.SockFilter {
	return []unix.SockFilter{{Code: load, K: argument(0)}, {Code: anyBit, K: bits, Jf: 1},
		{Code: answer, K: notForYou}, {Code: answer, K: retAllow}}
}

// in gives an answer if an argument is one of the values, and goes on otherwise.
func in(arg int, values []uint32, a uint32) []unix.SockFilter {
	p := []unix.SockFilter{{Code: load, K: argument(arg)}}
	for _, v := range values {
		p = append(p, unix.SockFilter{Code: equal, K: v, Jf: 1}, unix.SockFilter{Code: answer, K: a})
	}
	return p
}

// unlessOne gives an answer if the value is none of these, and goes on otherwise.
func unlessOne(values []uint32, a uint32) (p []unix.SockFilter) {
	for i, v := range values {
		p = append(p, unix.SockFilter{Code: equal, K: v, Jt: uint8(len(values) - i)})
	}
	return append(p, always(a)...)
}
