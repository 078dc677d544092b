// Package machine is the first process of a virtual machine. It owns what is outside the agent's namespaces: the file
// systems, the ports to the host, and the process that carries the agent's connections.
//
// The agent takes a socket for the host's only if its owner comes from outside its PID namespace. So the first process
// stays outside, and the agent is the first process of a namespace of its own.
package machine

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// Places in the first file system.
const (
	lowerDir   = "/lower"
	scratchDir = "/scratch"
	upperDir   = scratchDir + "/upper"
	rootDir    = "/newroot"
	volumesDir = "/volumes"
	group      = "/cgroup/sandbox"
)

const (
	// deviceTimeout is how long the kernel may take to find a disk or a port. Emulated, that is slow.
	deviceTimeout = 30 * time.Second
	devicePause   = 5 * time.Millisecond
	// maxBoot bounds what the host says of the machine, in bytes.
	maxBoot = 256 << 20
)

// machine is the state of the first process.
type machine struct {
	config wire.Machine
	agent  int // its process

	mu      sync.Mutex
	carrier int           // the process that carries the agent's connections; 0: there is none
	ended   chan struct{} // closed when the carrier has ended
}

// Init is the command `sandlot-agent init`. It switches the machine off in place of returning, unless it is not the
// first process.
func Init() int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "sandlot-agent init: this is not the first process of a machine")
		return 2
	}
	runtime.GOMAXPROCS(1)
	m := new(machine)
	err := m.boot()
	if err == nil {
		err = m.reap()
	}
	fmt.Fprintln(os.Stderr, "sandlot-agent init:", err)
	m.off()
	return 1
}

// boot starts the agent, and then serves the host.
func (m *machine) boot() error {
	if err := mountOwn(); err != nil {
		return err
	}
	if err := loadModules(wire.ModulesFile); err != nil {
		return err
	}
	control, err := openPort(wire.ControlPort)
	if err != nil {
		return err
	}
	if disk, err := diskOf(wire.BootDisk, 0); err != nil || disk == "" { // a trial: there is no sandbox
		go m.serve(control)
		return err
	}
	if m.config, err = readBoot(); err != nil {
		return err
	}
	if err := m.mountSandbox(); err != nil {
		return err
	}
	if err := m.limit(); err != nil {
		return err
	}
	if err := m.startAgent(); err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	go m.serve(control)
	return nil
}

// mountOwn mounts the kernel's file systems for this process.
func mountOwn() error {
	for _, f := range [][3]string{{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"devtmpfs", "/dev", ""},
		{"tmpfs", "/run", "mode=755,size=1m"}, {"cgroup2", "/cgroup", ""}} {
		if err := mkdirMount(f[0], f[1], f[0], unix.MS_NOSUID, f[2]); err != nil {
			return err
		}
	}
	// What a sandbox wrote is on its disk soon: the machine may be killed.
	for name, value := range map[string]string{"vm/dirty_expire_centisecs": "100", "vm/dirty_writeback_centisecs": "50",
		"net/ipv4/ip_unprivileged_port_start": "0", "kernel/dmesg_restrict": "0", "kernel/sysrq": "0"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
			fmt.Fprintln(os.Stderr, "sandlot-agent init:", err)
		}
	}
	return errors.Join(unix.Sethostname([]byte("sandbox")), upLoopback())
}

func mkdirMount(source, target, kind string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", source, target, err)
	}
	return nil
}

// upLoopback switches the loopback interface on, the only one.
func upLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// loadModules loads the kernel modules that a file names. What the kernel has already, or cannot use here, is no
// fault: a file system or a disk that is missing for it is.
func loadModules(order string) error {
	text, err := os.ReadFile(order)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range strings.Lines(string(text)) {
		name = strings.TrimSpace(name)
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			fmt.Fprintln(os.Stderr, "sandlot-agent init: loading", name, err)
		}
		os.Remove(name) // its memory is of use to the sandbox
	}
	return nil
}

// diskOf returns the device of the disk with that serial number. If there is none within a time, it is empty.
func diskOf(serial string, limit time.Duration) (string, error) {
	for began := time.Now(); ; time.Sleep(devicePause) {
		files, err := filepath.Glob("/sys/block/vd*/serial")
		if err != nil {
			return "", err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil && strings.Trim(string(text), "\x00\n") == serial {
				return "/dev/" + filepath.Base(filepath.Dir(file)), nil
			}
		}
		if time.Since(began) >= limit {
			return "", nil
		}
	}
}

func mustDisk(serial string) (string, error) {
	disk, err := diskOf(serial, deviceTimeout)
	if err == nil && disk == "" {
		err = fmt.Errorf("the machine has no disk %s", serial)
	}
	return disk, err
}

// openPort opens a port to the host.
func openPort(name string) (*os.File, error) {
	var last error
	for began := time.Now(); time.Since(began) < deviceTimeout; time.Sleep(devicePause) {
		files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil || strings.TrimSpace(string(text)) != name {
				continue
			}
			f, err := os.OpenFile("/dev/"+filepath.Base(filepath.Dir(file)), os.O_RDWR|syscall.O_NONBLOCK, 0)
			if err == nil {
				return f, nil
			}
			last = err
		}
	}
	return nil, fmt.Errorf("the machine has no port %s: %w", name, last)
}

// readBoot reads what the host says of the machine.
func readBoot() (m wire.Machine, err error) {
	disk, err := mustDisk(wire.BootDisk)
	if err != nil {
		return m, err
	}
	f, err := os.Open(disk)
	if err != nil {
		return m, err
	}
	defer f.Close()
	var length uint64
	if err := binary.Read(f, binary.BigEndian, &length); err != nil || length > maxBoot {
		return m, fmt.Errorf("the disk %s says nothing of the machine: %w", wire.BootDisk, err)
	}
	err = json.NewDecoder(io.LimitReader(f, int64(length))).Decode(&m)
	return m, err
}

// mountSandbox mounts the root of the sandbox and its volumes, in this process's namespace.
func (m *machine) mountSandbox() error {
	root, err := mustDisk(wire.RootDisk)
	if err != nil {
		return err
	}
	scratch, err := mustDisk(wire.ScratchDisk)
	if err != nil {
		return err
	}
	const plain = unix.MS_NODEV | unix.MS_NOSUID
	if err := mkdirMount(root, lowerDir, "erofs", plain|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if err := mkdirMount(scratch, scratchDir, "ext4", plain|unix.MS_NOATIME, "discard"); err != nil {
		return err
	}
	for _, dir := range []string{upperDir, scratchDir + "/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	options := "lowerdir=" + lowerDir + ",upperdir=" + upperDir + ",workdir=" + scratchDir +
		"/work,redirect_dir=off,index=off,metacopy=off"
	if err := mkdirMount("overlay", rootDir, "overlay", plain, options); err != nil {
		return err
	}
	for i, v := range m.config.Volumes {
		disk, err := mustDisk(v.Disk)
		if err != nil {
			return err
		}
		dir, flags := volumeDir(i), uintptr(plain|unix.MS_NOATIME)
		data := "discard"
		if v.ReadOnly {
			flags, data = flags|unix.MS_RDONLY, ""
		}
		if err := mkdirMount(disk, dir, "ext4", flags, data); err != nil {
			return err
		}
		if !v.ReadOnly {
			os.Remove(dir + "/lost+found") // it is made again if it is needed
			if err := enlarge(disk, dir); err != nil {
				return fmt.Errorf("making the file system of a volume larger: %w", err)
			}
		}
	}
	// The carrier owns the folder of the agent's socket, which the agent sees read-only.
	if err := mkdirMount("tmpfs", wire.SocketDir, "tmpfs", plain|unix.MS_NOEXEC, "mode=755,size=1m"); err != nil {
		return err
	}
	return os.Chown(wire.SocketDir, wire.ConnectUser, wire.ConnectUser)
}

const (
	blockSize  = 4096       // of the volumes' file systems, in bytes
	resizeExt4 = 0x40086610 // EXT4_IOC_RESIZE_FS
)

// enlarge makes a mounted ext4 as large as its disk.
func enlarge(disk, dir string) error {
	d, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer d.Close()
	size, err := d.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	blocks := uint64(size) / blockSize
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), resizeExt4, uintptr(unsafe.Pointer(&blocks))); errno != 0 {
		return errno
	}
	return nil
}

func volumeDir(i int) string { return fmt.Sprintf("%s/%d", volumesDir, i) }

// limit makes the group of the sandbox's processes.
func (m *machine) limit() error {
	err := os.WriteFile("/cgroup/cgroup.subtree_control", []byte("+pids +memory"), 0)
	if err == nil {
		err = os.Mkdir(group, 0o755)
	}
	if err != nil {
		return fmt.Errorf("the limits of the sandbox: %w", err)
	}
	for name, value := range map[string]int64{"pids.max": m.config.Processes, "memory.max": m.config.Memory} {
		if value > 0 {
			err = errors.Join(err, os.WriteFile(group+"/"+name, []byte(fmt.Sprint(value)), 0))
		}
	}
	return err
}

// startAgent starts the agent in namespaces of its own.
func (m *machine) startAgent() error {
	cgroup, err := os.Open(group)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	console, err := os.OpenFile("/dev/console", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer console.Close()
	text, err := json.Marshal(m.config)
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	defer write.Close()
	m.agent, err = syscall.ForkExec("/proc/self/exe", []string{"sandlot-agent", wire.MachineStartCommand},
		&syscall.ProcAttr{Dir: "/", Env: []string{}, Files: []uintptr{read.Fd(), console.Fd(), console.Fd()},
			Sys: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(cgroup.Fd()),
				Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC}})
	if err != nil {
		return err
	}
	m.config.Files = nil
	_, err = write.Write(text)
	return err
}

// reap waits for the ends of all processes, until the agent has ended.
func (m *machine) reap() error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD: // a trial has no agent
			time.Sleep(10 * time.Millisecond)
		case err != nil:
			return err
		case pid == m.agent:
			return errors.New("the agent has ended")
		default:
			m.carrierEnded(pid, status)
		}
	}
}

// off ends all processes, writes everything to the disks, and switches the machine off.
func (m *machine) off() {
	_ = os.WriteFile(group+"/cgroup.kill", []byte("1"), 0)
	for range 200 { // what ends may still write
		text, err := os.ReadFile(group + "/cgroup.events")
		if err != nil || strings.Contains(string(text), "populated 0") {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	for i := range m.config.Volumes {
		if unix.Unmount(volumeDir(i), 0) != nil {
			_ = unix.Mount("", volumeDir(i), "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // the first process must not end
}
