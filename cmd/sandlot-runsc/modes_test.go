package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
)

// auditArch has the kernel's numbers of processors.
var auditArch = map[string]uint32{"amd64": linux.AUDIT_ARCH_X86_64, "arm64": linux.AUDIT_ARCH_AARCH64}

// What the filter refuses, and nothing else.
func TestPlainFiles(t *testing.T) {
	program, keeping := filterProgram(t, false), filterProgram(t, true)
	const create, refuse, allow = unix.O_CREAT | unix.O_EXCL | unix.O_RDWR, uint32(linux.SECCOMP_RET_ERRNO) |
		uint32(unix.EPERM), uint32(linux.SECCOMP_RET_ALLOW)
	for _, c := range []struct {
		name string
		nr   uintptr
		args [6]uint64
		want uint32
	}{
		{"fchmod", unix.SYS_FCHMOD, [6]uint64{3, 0o755}, allow},
		{"fchmod, sticky", unix.SYS_FCHMOD, [6]uint64{3, 0o1777}, allow},
		{"fchmod, set-user-ID", unix.SYS_FCHMOD, [6]uint64{3, 0o4755}, refuse},
		{"fchmod, set-group-ID", unix.SYS_FCHMOD, [6]uint64{3, 0o2755}, refuse},
		{"fchmod, all", unix.SYS_FCHMOD, [6]uint64{3, 0o7777}, refuse},
		{"fchmod, high bits beside", unix.SYS_FCHMOD, [6]uint64{3, 1<<32 | 0o4000}, refuse},
		{"fchmodat", unix.SYS_FCHMODAT, [6]uint64{3, 0o4755, 0o644}, allow},
		{"fchmodat, set-user-ID", unix.SYS_FCHMODAT, [6]uint64{3, 0, 0o4644}, refuse},
		{"fchmodat2, set-user-ID", unix.SYS_FCHMODAT2, [6]uint64{3, 0, 0o4644}, refuse},
		{"openat, create", unix.SYS_OPENAT, [6]uint64{3, 0, create, 0o644}, allow},
		{"openat, create, set-user-ID", unix.SYS_OPENAT, [6]uint64{3, 0, create, 0o4755}, refuse},
		{"openat, create, set-group-ID", unix.SYS_OPENAT, [6]uint64{3, 0, create, 0o2755}, refuse},
		{"openat, no name, set-user-ID", unix.SYS_OPENAT, [6]uint64{3, 0, unix.O_TMPFILE | unix.O_RDWR, 0o4755},
			refuse},
		{"openat, mode unused", unix.SYS_OPENAT, [6]uint64{3, 0, unix.O_RDONLY | unix.O_DIRECTORY, 0xffffffff}, allow},
		{"mknodat, file", unix.SYS_MKNODAT, [6]uint64{3, 0, unix.S_IFREG | 0o644}, allow},
		{"mknodat, fifo", unix.SYS_MKNODAT, [6]uint64{3, 0, unix.S_IFIFO | 0o644}, allow},
		{"mknodat, file, set-user-ID", unix.SYS_MKNODAT, [6]uint64{3, 0, unix.S_IFREG | 0o4755}, refuse},
		{"mknodat, block device", unix.SYS_MKNODAT, [6]uint64{3, 0, unix.S_IFBLK | 0o644, 8 << 8}, refuse},
		{"mknodat, character device", unix.SYS_MKNODAT, [6]uint64{3, 0, unix.S_IFCHR | 0o644, 1 << 8}, refuse},
		{"mkdirat", unix.SYS_MKDIRAT, [6]uint64{3, 0, 0o755}, allow},
		{"write", unix.SYS_WRITE, [6]uint64{0o4000, 0o4000, 0o4000, 0o4000}, allow},
	} {
		if got := answer(t, keeping, c.nr, c.args); got != c.want {
			t.Errorf("where owners stay, %s: %#x, want %#x", c.name, got, c.want)
		}
		if got := answer(t, program, c.nr, c.args); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, got, c.want)
		}
	}
	// A call that changes an owner does nothing and succeeds, or it is the kernel's.
	for _, nr := range ownerCalls {
		args := [6]uint64{3, 0, 1000, 1000}
		if got := answer(t, keeping, nr, args); got != uint32(linux.SECCOMP_RET_ERRNO) {
			t.Errorf("where owners stay, the call %d: %#x", nr, got)
		}
		if got := answer(t, program, nr, args); got != allow {
			t.Errorf("the call %d: %#x", nr, got)
		}
	}
}

func filterProgram(t *testing.T, keepOwners bool) bpf.Program {
	t.Helper()
	instructions, err := specialModesFilter(keepOwners)
	if err != nil {
		t.Fatal(err)
	}
	program, err := bpf.Compile(instructions, false)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// answer returns what a filter answers to a system call.
func answer(t *testing.T, program bpf.Program, nr uintptr, args [6]uint64) uint32 {
	t.Helper()
	data := make([]byte, 64) // struct seccomp_data
	binary.NativeEndian.PutUint32(data, uint32(nr))
	binary.NativeEndian.PutUint32(data[4:], auditArch[runtime.GOARCH])
	for i, a := range args {
		binary.NativeEndian.PutUint64(data[16+8*i:], a)
	}
	got, err := bpf.Exec[bpf.NativeEndian](program, data)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestReadBundle reads what both of gVisor's commands name, each in its own form.
func TestReadBundle(t *testing.T) {
	dir := t.TempDir()
	text := `{"annotations":{"dev.sandlot.cpus":"3"},"process":{"capabilities":{"bounding":["CAP_CHOWN"]}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"runsc", "boot", "--bundle=" + dir, "id"}, {"runsc", "gofer", "--bundle", dir}} {
		b := readBundle(args)
		if b.Annotations[annotationCPUs] != "3" || !slices.Contains(b.Process.Capabilities.Bounding, "CAP_CHOWN") {
			t.Errorf("%q: %+v", args, b)
		}
	}
	for _, args := range [][]string{{"runsc", "boot", "id"}, {"runsc", "gofer", "--bundle"},
		{"runsc", "boot", "--bundle=" + dir + "/none"}} {
		if b := readBundle(args); len(b.Annotations) != 0 {
			t.Errorf("%q: %+v", args, b)
		}
	}
}

func TestWith(t *testing.T) {
	got := setFlag([]string{"runsc", "boot", "--cpu-num", "2", "id"}, "--cpu-num", "4")
	got = setFlag(got, "--total-memory", "1")
	want := []string{"runsc", "boot", "--cpu-num", "4", "--total-memory", "1", "id"}
	for i := range want {
		if len(got) != len(want) || got[i] != want[i] {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}
