package confine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
)

// callOf is a system call as the kernel shows it to a filter.
type callOf struct {
	arch, number uint32
	args         [6]uint64
}

// answerTo runs a filter.
func answerTo(t *testing.T, filter bpf.Program, c callOf) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.NativeEndian.PutUint32(data[numberOffset:], c.number)
	binary.NativeEndian.PutUint32(data[archOffset:], c.arch)
	for i, a := range c.args {
		binary.NativeEndian.PutUint64(data[argsOffset+8*i:], a)
	}
	got, err := bpf.Exec[bpf.NativeEndian](filter, data)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func compiled(t *testing.T, filter []unix.SockFilter) bpf.Program {
	t.Helper()
	var list []bpf.Instruction
	for _, i := range filter {
		list = append(list, bpf.Instruction{OpCode: i.Code, JumpIfTrue: i.Jt, JumpIfFalse: i.Jf, K: i.K})
	}
	p, err := bpf.Compile(list, false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// refusal returns the answer that fails a call with an error.
func refusal(e unix.Errno) uint32 { return retErrno | uint32(e) }

// maxFamily is more than any kernel's AF_MAX.
const maxFamily = 64

// TestEnclosedSockets: of all families in all ABIs, the four that are needed can be used, and of these the protocols
// that gVisor has, but for the one by which the kernel tells all containers what the machine's devices do.
func TestEnclosedSockets(t *testing.T) {
	families := []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	for processor, list := range enclosed {
		filter := compiled(t, enclosing(list))
		for _, n := range list {
			for _, number := range []uint32{n.socket, n.socketpair} {
				try := func(want uint32, args ...uint64) {
					t.Helper()
					c := callOf{arch: n.arch, number: number}
					copy(c.args[:], args)
					if got := answerTo(t, filter, c); got != want {
						t.Errorf("%s, ABI %x, call %d%v: %x, not %x", processor, n.arch, number, args, got, want)
					}
				}
				for family := range uint64(maxFamily) {
					want := refusal(unix.EAFNOSUPPORT)
					if slices.Contains(families, family) {
						want = retAllow
					}
					try(want, family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)
					try(want, family|1<<32, unix.SOCK_DGRAM) // the kernel does not look at the upper half
				}
				try(refusal(unix.EAFNOSUPPORT), 0xffffffff, unix.SOCK_STREAM)
				for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
					for kind := range uint64(typeMask + 1) {
						want := refusal(unix.ESOCKTNOSUPPORT)
						if kind >= unix.SOCK_STREAM && kind <= unix.SOCK_RAW {
							want = retAllow
						}
						try(want, family, kind|unix.SOCK_NONBLOCK)
					}
					for protocol := range uint64(300) {
						want := refusal(unix.EPROTONOSUPPORT)
						switch protocol {
						case 0, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6,
							unix.IPPROTO_RAW:
							want = retAllow
						}
						try(want, family, unix.SOCK_STREAM, protocol)
					}
				}
				for protocol := range uint64(32) {
					want := refusal(unix.EPROTONOSUPPORT)
					switch protocol {
					case unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER:
						want = retAllow
					}
					try(want, unix.AF_NETLINK, unix.SOCK_RAW, protocol)
				}
			}
		}
	}
}

// TestEnclosedCalls: what else the filter refuses in each ABI, and what goes on.
func TestEnclosedCalls(t *testing.T) {
	for processor, list := range enclosed {
		filter := compiled(t, enclosing(list))
		try := func(want, arch, number uint32, args ...uint64) {
			t.Helper()
			c := callOf{arch: arch, number: number}
			copy(c.args[:], args)
			if got := answerTo(t, filter, c); got != want {
				t.Errorf("%s, ABI %x, call %d%v: %x, not %x", processor, arch, number, args, got, want)
			}
		}
		eperm, enosys := refusal(unix.EPERM), refusal(unix.ENOSYS)
		for _, n := range list {
			for _, flag := range []uint64{unix.CLONE_NEWNS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWUTS, unix.CLONE_NEWIPC,
				unix.CLONE_NEWUSER, unix.CLONE_NEWPID, unix.CLONE_NEWNET} {
				try(eperm, n.arch, n.clone, flag|uint64(unix.SIGCHLD))
				try(eperm, n.arch, n.unshare, flag|unix.CLONE_FS)
			}
			try(eperm, n.arch, n.unshare, unix.CLONE_NEWTIME)
			try(retAllow, n.arch, n.unshare, unix.CLONE_FILES|unix.CLONE_FS)
			try(retAllow, n.arch, n.clone, unix.CLONE_VM|unix.CLONE_VFORK|unix.CLONE_PIDFD|uint64(unix.SIGCHLD))
			try(retAllow, n.arch, n.clone, unix.CLONE_VM|unix.CLONE_FS|unix.CLONE_FILES|unix.CLONE_SIGHAND|
				unix.CLONE_THREAD|unix.CLONE_SYSVSEM|unix.CLONE_SETTLS|unix.CLONE_PARENT_SETTID|
				unix.CLONE_CHILD_CLEARTID)
			try(enosys, n.arch, clone3)
			for _, number := range []uint32{ioUringSetup, ioUringEnter, ioUringRegister, memfdSecret,
				n.vmsplice, n.remapFilePages} {
				try(enosys, n.arch, number)
			}
			try(eperm, n.arch, n.setns)
			for _, request := range []uint64{unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD} {
				try(eperm, n.arch, n.ioctl, 0, request)
			}
			for _, request := range []uint64{unix.TCGETS, unix.TIOCSWINSZ, unix.TIOCSCTTY, unix.TIOCGPTN} {
				try(retAllow, n.arch, n.ioctl, 0, request)
			}
			try(retAllow, n.arch, n.personality, 0xffffffff)
			try(retAllow, n.arch, n.personality, 0)
			try(eperm, n.arch, n.personality, 0x0400000) // READ_IMPLIES_EXEC
			try(eperm, n.arch, n.personality, 0x0040000) // ADDR_NO_RANDOMIZE
			try(refusal(unix.ENOPROTOOPT), n.arch, n.setsockopt, 3, unix.IPPROTO_TCP, unix.TCP_ULP)
			try(retAllow, n.arch, n.setsockopt, 3, unix.IPPROTO_TCP, unix.TCP_NODELAY)
			try(retAllow, n.arch, n.setsockopt, 3, unix.SOL_SOCKET, unix.TCP_ULP)
			for _, number := range n.refused {
				try(eperm, n.arch, number)
			}
			if n.socketcall != 0 {
				for call := range uint64(21) {
					try(enosys, n.arch, n.socketcall, call)
				}
			}
			try(enosys, n.arch, x32|n.socket, unix.AF_UNIX, unix.SOCK_STREAM)
			try(retAllow, n.arch, 3)
		}
		for other, numbers := range enclosed {
			if other != processor {
				try(enosys, numbers[0].arch, numbers[0].socket, unix.AF_UNIX, unix.SOCK_STREAM)
			}
		}
	}
}

// TestEnclose tries the filter, in a process of its own: which sockets the kernel makes, and that programs go on.
// Nothing is sent, and no socket is bound.
func TestEnclose(t *testing.T) {
	if os.Getenv("SANDLOT_TEST_ENCLOSED") != "" {
		enclosedProcess(t)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestEnclose$", "-test.v")
	cmd.Env = append(os.Environ(), "SANDLOT_TEST_ENCLOSED=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all tried") {
		t.Errorf("%v\n%s", err, out)
	}
}

func enclosedProcess(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(PlainFiles(), Enclose()); err != nil {
		t.Fatal(err)
	}
	for family := range maxFamily {
		s, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		_, pairErr := unix.Socketpair(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		switch family {
		case unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK:
			if err != nil && family != unix.AF_INET6 { // a kernel may lack it
				t.Errorf("family %d: %v", family, err)
			}
		default:
			if !errors.Is(err, unix.EAFNOSUPPORT) || !errors.Is(pairErr, unix.EAFNOSUPPORT) {
				t.Errorf("family %d: %v, a pair: %v", family, err, pairErr)
			}
		}
		if err == nil {
			unix.Close(s)
		}
	}
	for name, try := range map[string]func() error{
		"unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"setns":   func() error { return unix.Setns(-1, unix.CLONE_NEWUSER) },
		"keyctl":  func() error { _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); return err },
		"bpf":     func() error { return calling(unix.SYS_BPF, 0) },
		"perf":    func() error { return calling(unix.SYS_PERF_EVENT_OPEN, 0) },
		"faults":  func() error { return calling(unix.SYS_USERFAULTFD, 0) },
		"memory":  func() error { return calling(unix.SYS_PERSONALITY, 0x0400000) },
		"input": func() error {
			b := byte('x')
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&b)))
			return errno
		},
	} {
		if err := try(); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, number := range map[string]uintptr{"pipes": unix.SYS_VMSPLICE, "mapped files": unix.SYS_REMAP_FILE_PAGES,
		"secret memory": unix.SYS_MEMFD_SECRET, "rings": unix.SYS_IO_URING_REGISTER} {
		if err := calling(number, ^uintptr(0)); !errors.Is(err, unix.ENOSYS) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out, err := exec.Command("sh", "-c", "(echo x | cat) && echo $?").CombinedOutput(); string(out) != "x\n0\n" {
		t.Errorf("what is to work: %v %s", err, out)
	}
	fmt.Println("all tried")
}

// calling makes a system call with one argument.
func calling(number, arg uintptr) error {
	_, _, errno := unix.Syscall(number, arg, 0, 0)
	return errno
}
