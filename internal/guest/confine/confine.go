// Package confine owns the system call filters of the agent and all that it starts, where they run on the host's
// kernel. By one of them (PlainFiles) nobody makes a set-user-ID or set-group-ID file, which a user of the host could
// run in a folder that is shared, nor a device file. (For most of these nobody in the sandbox has the capability.) By
// the other one (Enclose) nobody uses what no namespace of a container separates, such as AF_VSOCK.
package confine

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call is a system call that sets the mode of a file. The numbers are of its arguments.
type call struct {
	number uint32
	mode   int
	flags  int  // those of open; none: it has none
	device bool // it makes device files
}

// abi is a way to call the kernel.
type abi struct {
	arch    uint32
	calls   []call
	refused []uint32 // calls that a filter cannot look into; their callers know older ones
}

// none marks a call without the flags of open.
const none = -1

// newCalls are openat2 and io_uring_setup, which have the same numbers everywhere.
var newCalls = []uint32{437, 425}

// abis are a processor's ABIs, the first one its own. Calls by all others are refused.
var abis = map[string][]abi{
	"amd64": {{unix.AUDIT_ARCH_X86_64, []call{
		{90, 1, none, false}, {91, 1, none, false}, // chmod, fchmod
		{268, 2, none, false}, {452, 2, none, false}, // fchmodat, fchmodat2
		{133, 1, none, true}, {259, 2, none, true}, {85, 1, none, false}, // mknod, mknodat, creat
		{2, 2, 1, false}, {257, 3, 2, false}, // open, openat
	}, newCalls}, {unix.AUDIT_ARCH_I386, []call{
		{15, 1, none, false}, {94, 1, none, false}, {306, 2, none, false}, {452, 2, none, false},
		{14, 1, none, true}, {297, 2, none, true}, {8, 1, none, false},
		{5, 2, 1, false}, {295, 3, 2, false},
	}, newCalls}},
	"arm64": {{unix.AUDIT_ARCH_AARCH64, []call{
		{52, 1, none, false}, {53, 2, none, false}, {452, 2, none, false}, // fchmod, fchmodat, fchmodat2
		{33, 2, none, true}, {56, 3, 2, false}, // mknodat, openat
	}, newCalls}},
}

const (
	// setID are the bits that nobody sets.
	setID = unix.S_ISUID | unix.S_ISGID
	// device is set in the modes of character and block devices, and in no other that mknod takes.
	device = unix.S_IFCHR
	// creating are the flags with which open takes a mode: O_CREAT, and that of O_TMPFILE alone.
	creating = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
	// x32 marks the calls of another ABI of x86-64.
	x32 = 0x40000000

	// Offsets in struct seccomp_data, on little-endian machines.
	numberOffset, archOffset, argsOffset = 0, 4, 16

	load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	atMost = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	anyBit = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	answer = unix.BPF_RET | unix.BPF_K
	jump   = unix.BPF_JMP | unix.BPF_JA

	retAllow    = 0x7fff0000 // SECCOMP_RET_ALLOW
	retErrno    = 0x00050000 // SECCOMP_RET_ERRNO
	setFilter   = 1          // SECCOMP_SET_MODE_FILTER
	allThreads  = 1          // SECCOMP_FILTER_FLAG_TSYNC
	noSuchCall  = retErrno | uint32(unix.ENOSYS)
	notForYou   = retErrno | uint32(unix.EPERM)
	longestJump = 255
)

// PlainFiles makes the kernel refuse set-user-ID and set-group-ID bits, and device files, to all threads of this
// process, and to what they start from now on. This process must have no new privileges.
func PlainFiles() error {
	list := abis[runtime.GOARCH]
	if list == nil {
		return fmt.Errorf("there is no system call filter for %s", runtime.GOARCH)
	}
	return set(program(list))
}

// set adds a filter to all threads.
func set(filter []unix.SockFilter) error {
	p := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&p)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("setting the system call filter: %w", errno)
	}
	if thread != 0 { // then no thread has it
		return fmt.Errorf("setting the system call filter: thread %d has another one", thread)
	}
	return nil
}

// program returns the filter for these ABIs.
func program(list []abi) []unix.SockFilter {
	p := []unix.SockFilter{{Code: load, K: archOffset}}
	for _, a := range list {
		p = append(p, block(a.arch, a.rules())...)
	}
	return append(p, unix.SockFilter{Code: answer, K: noSuchCall})
}

// rule is what a filter does with a system call. The instructions end with an answer.
type rule struct {
	number uint32
	body   []unix.SockFilter
}

// block returns the instructions for the calls of an ABI. They end with an answer, so what follows is for other ABIs.
func block(arch uint32, rules []rule) []unix.SockFilter {
	p := []unix.SockFilter{{Code: load, K: numberOffset}, {Code: atMost, K: x32, Jf: 1}, {Code: answer, K: noSuchCall}}
	for _, r := range rules {
		if len(r.body) > longestJump {
			panic("confine: the instructions for a system call are too many")
		}
		p = append(p, unix.SockFilter{Code: equal, K: r.number, Jf: uint8(len(r.body))})
		p = append(p, r.body...)
	}
	p = append(p, unix.SockFilter{Code: answer, K: retAllow})
	return append([]unix.SockFilter{{Code: equal, K: arch, Jt: 1}, {Code: jump, K: uint32(len(p))}}, p...)
}

// rules returns those for plain files.
func (a abi) rules() (rules []rule) {
	for _, number := range a.refused {
		rules = append(rules, rule{number, always(noSuchCall)})
	}
	for _, c := range a.calls {
		var body []unix.SockFilter
		if c.flags != none {
			body = append(body, unix.SockFilter{Code: load, K: argument(c.flags)},
				unix.SockFilter{Code: anyBit, K: creating, Jt: 1}, unix.SockFilter{Code: answer, K: retAllow})
		}
		refused := uint32(setID)
		if c.device {
			refused |= device
		}
		body = append(body, unix.SockFilter{Code: load, K: argument(c.mode)},
			unix.SockFilter{Code: anyBit, K: refused, Jf: 1}, unix.SockFilter{Code: answer, K: notForYou},
			unix.SockFilter{Code: answer, K: retAllow})
		rules = append(rules, rule{c.number, body})
	}
	return rules
}

// always is the body of a rule that gives one answer.
func always(a uint32) []unix.SockFilter { return []unix.SockFilter{{Code: answer, K: a}} }

// argument returns the offset of the lower half of an argument.
func argument(n int) uint32 { return argsOffset + 8*uint32(n) }
