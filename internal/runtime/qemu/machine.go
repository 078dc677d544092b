//go:build linux && !mac

package qemu

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/proc"
)

// machine is what QEMU is started with. It opens no file by path but its own firmware: all others are descriptors.
type machine struct {
	dir               string // of the sandbox
	kernel, initramfs string
	kind              string // pc-q35-7.2
	accel             string
	memory            int64 // MiB
	cpus              int
	disks             []disk
}

// disk is a disk of a machine.
type disk struct {
	serial   string
	file     *os.File
	readOnly bool
}

// Names in a sandbox's folder. The descriptor of lockFile is the first that QEMU inherits: whose process has it is
// the sandbox's.
const (
	lockFile    = "lock"
	logFile     = "qemu.log"
	controlSock = "control.sock"
	linkSock    = "link.sock"
	exportSock  = "export.sock"
	monitorSock = "monitor.sock"
	bootFile    = "boot"
	scratchFile = "scratch"
)

const lockFD = 3

// start starts QEMU, in a session of its own: it outlives the server.
func (m *machine) start(r *Runtime) (cmd *exec.Cmd, err error) {
	path, err := r.program()
	if err != nil {
		return nil, err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	inherit := func(f *os.File, err error) (string, error) {
		if err != nil {
			return "", err
		}
		files = append(files, f)
		return strconv.Itoa(lockFD + len(files) - 1), nil
	}
	if _, err := inherit(os.OpenFile(filepath.Join(m.dir, lockFile), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(files[0].Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("the folder of a sandbox is in use: %w", err)
	}
	args := m.arguments()
	for _, s := range []struct{ name, options string }{
		{controlSock, "control"}, {linkSock, "link"}, {exportSock, "export"}, {monitorSock, "monitor"}} {
		fd, err := inherit(listen(m.dir, s.name))
		if err != nil {
			return nil, err
		}
		args = append(args, "-chardev", "socket,id="+s.options+",fd="+fd+",server=on,wait=off")
	}
	args = append(args, "-mon", "chardev=monitor,mode=control")
	for i, p := range []struct{ chardev, name string }{{"control", wire.ControlPort}, {"link", wire.LinkPort},
		{"export", wire.ExportPort}} {
		args = append(args, "-device", fmt.Sprintf("virtserialport,nr=%d,chardev=%s,name=%s", i+1, p.chardev, p.name))
	}
	for _, f := range []struct{ option, path string }{{"-kernel", m.kernel}, {"-initrd", m.initramfs}} {
		fd, err := inherit(os.Open(f.path))
		if err != nil {
			return nil, err
		}
		args = append(args, f.option, "/proc/self/fd/"+fd)
	}
	for _, d := range m.disks {
		fd, err := inherit(dup(d.file))
		if err != nil {
			return nil, err
		}
		args = append(args, "-add-fd", "fd="+fd+",set="+fd)
		if !d.readOnly { // QEMU opens a disk for reading first
			reading, err := inherit(os.Open(fmt.Sprintf("/proc/self/fd/%d", d.file.Fd())))
			if err != nil {
				return nil, err
			}
			args = append(args, "-add-fd", "fd="+reading+",set="+fd)
		}
		options := "if=none,id=" + d.serial + ",file=/dev/fdset/" + fd + ",format=raw,werror=report,rerror=report"
		if d.readOnly {
			options += ",readonly=on,file.locking=off"
		} else {
			options += ",discard=unmap,detect-zeroes=unmap,cache=writeback"
		}
		args = append(args, "-drive", options, "-device", "virtio-blk-pci,drive="+d.serial+",serial="+d.serial)
	}
	log, err := os.OpenFile(filepath.Join(m.dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd = exec.Command(path, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		m.confine(cmd.SysProcAttr)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting QEMU: %w", err)
	}
	return cmd, nil
}

// arguments returns what does not depend on descriptors.
func (m *machine) arguments() []string {
	cpu := "host"
	accel := m.accel
	if accel == emulated {
		cpu, accel = "max", "tcg,thread=single"
	}
	return []string{"-name", "sandlot-" + filepath.Base(m.dir), "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-machine", m.kind + ",usb=off,vmport=off,dump-guest-core=off", "-accel", accel, "-cpu", cpu,
		"-m", strconv.FormatInt(m.memory, 10), "-smp", strconv.Itoa(m.cpus), "-rtc", "base=utc",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-append", "console=ttyS0 loglevel=4 panic=-1 random.trust_cpu=on rdinit=" + initProgram + " -- " + wire.InitCommand,
		// What the kernel says stays in a ring: a sandbox may make it say much.
		"-chardev", "ringbuf,id=console,size=65536", "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-device", "virtio-rng-pci"}
}

// Ids of the users that QEMU has if the server is root. Each machine has another one: who gets out of a machine is a user
// without rights, a file, or another machine's process.
const firstUser, users = 1_900_000_000, 100_000_000

// confine gives QEMU a user of its own, and no network.
func (m *machine) confine(attr *syscall.SysProcAttr) {
	h := fnv.New32a()
	h.Write([]byte(m.dir))
	id := uint32(firstUser + h.Sum32()%users)
	attr.Credential = &syscall.Credential{Uid: id, Gid: id}
	if st, err := os.Stat("/dev/kvm"); err == nil && m.accel == hardware {
		if gid := st.Sys().(*syscall.Stat_t).Gid; gid != 0 {
			attr.Credential.Groups = []uint32{gid}
		}
	}
	attr.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWIPC
}

// complaint returns what QEMU has said, to end a sentence.
func (m *machine) complaint() string {
	text, err := os.ReadFile(filepath.Join(m.dir, logFile))
	if err != nil || len(text) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(string(text[max(0, len(text)-maxComplaint):]))
}

// maxComplaint bounds what an error has of QEMU's words, in bytes.
const maxComplaint = 1000

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// socketAddress returns the address of a socket in a folder, whose path may be too long for one, until done is called.
func socketAddress(dir, name string) (address string, done func(), err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), func() { unix.Close(fd) }, nil
}

// listen opens a socket in a sandbox's folder, and returns it as QEMU inherits it.
func listen(dir, name string) (*os.File, error) {
	if err := removeFile(filepath.Join(dir, name)); err != nil {
		return nil, err
	}
	address, done, err := socketAddress(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: address})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

// dial connects to a socket in a sandbox's folder.
func dial(dir, name string) (*net.UnixConn, error) {
	address, done, err := socketAddress(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: address})
}

// findProcess returns the process that has the lock of a sandbox's folder; 0: none has it.
func findProcess(dir string) int {
	lock := filepath.Join(dir, lockFile)
	for _, pid := range proc.PIDs() {
		if to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, lockFD)); err == nil && to == lock &&
			proc.State(pid) != 'Z' {
			return pid
		}
	}
	return 0
}

// isLocked reports whether a process has the lock of a sandbox's folder.
func isLocked(dir string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return true, nil
	}
	return false, err
}

func kill(pid int) {
	if pid > 1 {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}
