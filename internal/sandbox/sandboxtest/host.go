package sandboxtest

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
)

// listen opens a Unix socket of the host in a folder that the sandbox sees, and counts the connections to
// it.
func listen(t *testing.T, dir, name string) (reached func() int) {
	t.Helper()
	count := make(chan struct{}, 100)
	path := filepath.Join(dir, name)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			count <- struct{}{}
			c.Write([]byte("reached"))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	c, err := net.Dial("unix", path) // the host itself can connect
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-count
	return func() int { return len(count) }
}

// sockets tests that a sandbox can connect to no Unix socket of the host but the agent's own, wherever the
// socket is and by whatever name.
func sockets(t *testing.T, b *Bench) {
	reached := []func() int{listen(t, b.Workspace, "host.sock"), listen(t, b.ReadOnly, "host.sock"),
		listen(t, b.ReadOnly, "agent.sock")}
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram",
		Name: filepath.Join(b.Workspace, "datagram.sock")})
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	if err := syscall.Mkfifo(filepath.Join(b.Workspace, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	b.want(t,
		`cd /workspace && ln -s /data/host.sock link && ln host.sock hard && mkdir sub && mv host.sock sub/agent.sock; echo $?`, "0")
	// The sandbox can neither rename the agent's own socket nor link to it.
	b.want(t, `ln /run/sandlot/agent.sock /workspace/own 2>/dev/null || echo refused`, "refused")
	b.want(t, `mv /run/sandlot/agent.sock /workspace/own 2>/dev/null || echo refused`, "refused")
	got := b.sh(t, `timeout 15 python3 -c '
import os, socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    for path in ("/workspace/sub/agent.sock", "/workspace/hard", "/workspace/link", "/data/host.sock", "/data/agent.sock", "/data/../workspace/hard",
                 "/proc/self/root/data/host.sock", "/proc/self/cwd/hard", "/workspace/datagram.sock"):
        os.chdir("/workspace")
        s = socket.socket(socket.AF_UNIX, kind); s.settimeout(3)
        try: s.connect(path); s.send(b"x"); print(path, kind, "connected")
        except OSError: pass
for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
    try: os.open("/workspace/sub/agent.sock", flags); print("opened")
    except OSError: pass
# What it makes itself works as ever.
a, c = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
a.bind("/tmp/mine"); a.listen(); c.connect("/tmp/mine"); print("own")
'`)
	if got != "own" {
		t.Errorf("from the sandbox: %s", got)
	}
	for i, n := range reached {
		if n() != 0 {
			t.Errorf("socket %d of the host was reached", i)
		}
	}
	if got := b.sh(t, `exec 3<>/workspace/pipe && echo in >&3 && head -1 <&3`); strings.Contains(got, "Permission") {
		t.Logf("pipes of the host are refused: %s", got)
	}
}

// plainFiles tests that the files that a sandbox makes on the host have no set-user-ID and set-group-ID
// bits, are no devices, and have the server's owner.
func plainFiles(t *testing.T, b *Bench) {
	had := filepath.Join(b.Workspace, "had")
	uid, gid := HostUser(t, b.runtime, b.subject.Template.User)
	if err := errors.Join(os.WriteFile(had, []byte("#!/bin/sh\n"), 0o755), os.Chown(had, uid, gid),
		os.Chmod(had, 0o755|fs.ModeSetuid|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	got := b.sh(t, `cd /workspace && timeout 15 python3 -c '
import os, stat
def tried(what, f):
    try: f(); print(what, "is done")
    except PermissionError: pass
open("f", "w").close(); os.mkdir("d")
for bits in (0o4755, 0o2755, 0o6755, 0o4000):
    try: os.chmod("f", bits)
    except PermissionError: pass # or it has no effect
    if os.stat("f").st_mode & 0o6000: print("chmod %o is done" % bits)
    tried("open %o" % bits, lambda: os.close(os.open("new%o" % bits, os.O_CREAT | os.O_EXCL | os.O_WRONLY, bits)))
    tried("mknod %o" % bits, lambda: os.mknod("node%o" % bits, stat.S_IFREG | bits))
tried("block", lambda: os.mknod("block", stat.S_IFBLK | 0o666, os.makedev(8, 0)))
tried("char", lambda: os.mknod("char", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
tried("whiteout", lambda: os.mknod("whiteout", stat.S_IFCHR | 0o666, 0))
try: os.setxattr("f", "security.capability", bytes.fromhex("0100000280000000000000008000000000000000")); print("capability is done")
except OSError: pass
for path in "f", "d": # it fails, or has no effect on the host
    try: os.chown(path, 1000, 1000)
    except PermissionError: pass
with open("had", "a") as f: f.write("more")
os.chmod("f", 0o1755); os.chmod("f", 0o640); os.mkdir("d/e", 0o2755)
'; tar -cf t.tar f d && mkdir x && tar -xf t.tar -C x && git init -q r; ls -l x/f | cut -c1-10; echo alive`)
	if got != "-rw-r-----\nalive" {
		t.Errorf("from the sandbox: %s", got)
	}
	files := 0
	err := filepath.WalkDir(b.Workspace, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		i, err := e.Info()
		if err != nil {
			return err
		}
		if bad := i.Mode() & (fs.ModeSetuid | fs.ModeSetgid | fs.ModeDevice); bad != 0 {
			t.Errorf("%s is %v on the host", path, i.Mode())
		}
		if owner := i.Sys().(*syscall.Stat_t).Uid; owner != uint32(uid) {
			t.Errorf("%s belongs to %d", path, owner)
		}
		return nil
	})
	if err != nil || files < 4 {
		t.Errorf("%d files, %v", files, err)
	}
}

// OtherSockets is a shell line that prints which sockets a program gets that no sandbox has, and at last "no others".
// It binds one of AF_VSOCK, whose ports all sandboxes of a machine would share, and connects none: it would reach the
// hypervisor.
const OtherSockets = `python3 -c '
import socket
needed = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
tries = [(f, k, 0) for f in range(64) if f not in needed for k in (1, 2, 3, 4, 5, 6, 10)]
tries += [(f, k, p) for f in (socket.AF_INET, socket.AF_INET6) for k, p in ((1, 132), (5, 132), (1, 262), (6, 33), (2, 136), (1, 256), (10, 0))]
tries += [(socket.AF_NETLINK, 3, p) for p in (4, 6, 8, 9, 10, 11, 16, 18, 19, 21)]
for f, k, p in tries:
    try: s = socket.socket(f, k, p)
    except OSError: pass
    else:
        print("a socket", f, k, p)
        if f == 40: s.bind((0xffffffff, 45555)); print("is bound")
    try: socket.socketpair(f, k, p); print("a pair", f, k, p)
    except OSError: pass
for f in needed: socket.socket(f, 2).close()
socket.socketpair(); print("no others")
'`

// enclosed tests that a program gets no sockets but those of the internet, of Unix and some of netlink, and on the
// host's kernel no namespaces.
func enclosed(t *testing.T, b *Bench) {
	b.want(t, OtherSockets, "no others")
	if !b.subject.SharedKernel {
		return
	}
	b.want(t, `python3 -c '
import ctypes, fcntl, os, pty, socket
try: socket.socket(socket.AF_NETLINK, 3, 15); print("events of the machine")
except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    if libc.unshare(flag) == 0: print("a namespace %x" % flag)
    pid = libc.syscall(56 if os.uname().machine == "x86_64" else 220, flag | 17, 0, 0, 0, 0) if flag > 0x80 else -1
    if pid == 0: os._exit(0)
    if pid > 0: os.waitpid(pid, 0); print("a process in a namespace %x" % flag)
if libc.personality(0x0400000) >= 0: print("memory is executable")
_, end = pty.openpty()
for request in (0x5412, 0x5423):
    try: fcntl.ioctl(end, request, b"\0\0\0\0"); print("ioctl %x" % request)
    except OSError: pass
print("enclosed")
'`, "enclosed")
}

// machine tests that a sandbox sees as many processors and as much memory as its limits allow.
func machine(t *testing.T, b *Bench) {
	l := b.Box.Spec().Limits
	b.want(t, "awk '/^MemTotal/ {print $2}' /proc/meminfo", fmt.Sprint(l.MemoryBytes>>10))
	cpus := fmt.Sprint(min(max(2, int(l.CPUs)), runtime.NumCPU()))
	b.want(t, "env -u OMP_NUM_THREADS nproc; getconf _NPROCESSORS_ONLN; grep -c ^processor /proc/cpuinfo",
		strings.Join([]string{cpus, cpus, cpus}, "\n"))
	if l.CPUs > 0 { // what programs that ask nproc are to start
		b.want(t, "nproc", fmt.Sprint(min(int(math.Ceil(l.CPUs)), runtime.NumCPU())))
	}
	b.want(t, `python3 -c 'import os; print(os.cpu_count(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))'`,
		fmt.Sprintf("%s %d", cpus, l.MemoryBytes))
	b.want(t, `node -e 'const os = require("os"); console.log(os.cpus().length, os.totalmem())'`,
		fmt.Sprintf("%s %d", cpus, l.MemoryBytes))
}

// hostFiles runs sockets, plainFiles, machine and descriptors in one sandbox.
func hostFiles(t *testing.T, b *Bench) {
	if !b.subject.SharedKernel {
		t.Run("sockets", func(t *testing.T) { sockets(t, b) })
		t.Run("machine", func(t *testing.T) { machine(t, b) })
	}
	t.Run("plain", func(t *testing.T) { plainFiles(t, b) })
	t.Run("enclosed", func(t *testing.T) { enclosed(t, b) })
	t.Run("descriptors", func(t *testing.T) { descriptors(t, b) })
	t.Run("tools", func(t *testing.T) { toolTree(t, b) })
}

// toolTree tests that programs find the tool tree at its place, however it gets there, and that where the runtime
// shares it, not even root can change it.
func toolTree(t *testing.T, b *Bench) {
	update := func(complete bool, removed []string, files ...agent.ToolFile) {
		t.Helper()
		if err := b.UpdateTools(t.Context(), files, removed, complete); err != nil {
			t.Fatal(err)
		}
	}
	update(true, nil)
	b.want(t, "ls -d /run/mcp 2>/dev/null || echo none", "none")
	update(true, nil, agent.ToolFile{Path: "README.md", Data: []byte("one ")},
		agent.ToolFile{Path: "a/t.md", Data: []byte("two")}, agent.ToolFile{Path: "mcp", Link: wire.AgentPath})
	const all = "cd /run/mcp/ && cat README.md a/t.md && echo && readlink mcp && find -L . | sort && " +
		"test -S socket && echo socket"
	const want = "one two\n" + wire.AgentPath + "\n.\n./README.md\n./a\n./a/t.md\n./mcp\n./socket\nsocket"
	b.want(t, all, want)
	b.want(t, `python3 -c '
import socket
s = socket.socket(socket.AF_UNIX); s.connect("/run/mcp/socket"); print("connected")'`, "connected")
	if b.Box.ChangeTools(func(string) error { return nil }) == nil {
		b.sh(t, `cd /run/mcp/; for dir in . /run/sandlot/mcp; do echo x > $dir/README.md; echo x >> $dir/a/t.md
			rm -rf $dir/a $dir/README.md; mkdir $dir/x; ln -s `+b.Canary+` $dir/y; mv $dir/a $dir/b; chmod 777 $dir/a
			mount -o remount,rw $dir; mount -o remount,rw /run/sandlot; touch -d 1970-01-01 $dir/README.md; done 2>&1`)
		b.want(t, all, want)
		if dir := ""; b.Box.ChangeTools(func(d string) error { dir = d; return nil }) != nil {
			t.Error("the folder is gone")
		} else if data, err := os.ReadFile(filepath.Join(dir, "a/t.md")); err != nil || string(data) != "two" {
			t.Errorf("on the host: %q, %v", data, err)
		}
	}
	update(false, []string{"a/t.md"}, agent.ToolFile{Path: "README.md", Data: []byte("three")})
	b.want(t, "cat /run/mcp/README.md; ls /run/mcp/", "threeREADME.md\nmcp\nsocket")
}

// descriptors tests that a sandbox that opens as many files as it can gets an error at the limit, and keeps
// running.
func descriptors(t *testing.T, b *Bench) {
	got := b.sh(t, `mkdir /workspace/many && cd /workspace/many && timeout 40 python3 -c '
import os, resource
most = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
n = 0
try:
    while n < 40000: os.open("f%d" % n, os.O_CREAT | os.O_RDWR); n += 1
except OSError as e: print(e.errno in (23, 24), n > 1000)
'; rm -rf /workspace/many; echo alive`)
	if got != "True True\nalive" {
		t.Errorf("from the sandbox: %s", got)
	}
}
