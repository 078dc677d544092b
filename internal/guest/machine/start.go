package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// baseFolders are the folders that programs and this package expect in a root file system, with their modes.
var baseFolders = []struct {
	path string
	mode uint32
}{{"proc", 0o755}, {"sys", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"run", 0o755}, {"var", 0o755}, {"var/lib", 0o755},
	{"tmp", 0o1777}, {"var/tmp", 0o1777}, {"root", 0o700}, {"home", 0o755}, {"workspace", 0o755},
	{"var/lib/sandlot", 0o755}, {wire.SocketDir[1:], 0o755}, {filepath.Dir(wire.AgentPath)[1:], 0o755}}

// start makes this process, which has new namespaces, the agent.
func start(from io.Reader) error {
	if os.Getpid() != 1 {
		return errors.New("this is not the first process of a namespace")
	}
	var c wire.Machine
	if err := json.NewDecoder(from).Decode(&c); err != nil {
		return err
	}
	unix.Umask(0o022)
	if err := enterRoot(c); err != nil {
		return err
	}
	if err := writeFiles(c); err != nil {
		return err
	}
	if err := limitSelf(c); err != nil {
		return err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return err
	}
	null.Close()
	return unix.Exec(wire.AgentPath, []string{wire.AgentPath}, c.Env)
}

// enterRoot makes the overlay the root of this process, with all that is mounted in it. An image may have a link where
// a folder belongs: this process sees nothing but the image by then.
func enterRoot(c wire.Machine) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// The first file system cannot be put elsewhere (pivot_root): the new root is moved over it.
	if err := openOwn(c); err != nil {
		return err
	}
	if err := os.Chdir(rootDir); err != nil {
		return err
	}
	if err := unix.Mount(rootDir, "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, f := range baseFolders {
		if err := makeFolder("/"+f.path, f.mode); err != nil {
			return err
		}
	}
	for _, f := range c.Folders {
		if err := makeFolder("/"+f, 0o755); err != nil {
			return err
		}
	}
	if err := mountSystem(); err != nil {
		return err
	}
	return attachOwn(c)
}

// makeFolder makes a folder, in place of a file or a link that leads nowhere, and gives it its mode if it is new.
func makeFolder(path string, mode uint32) error {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		if mode == 0o1777 {
			return unix.Chmod(path, mode)
		}
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return errors.Join(os.MkdirAll(path, 0o755), unix.Chmod(path, mode))
}

// own are the mounts of the first process that the sandbox gets: they are detached copies, since the paths of an image
// lead elsewhere until it is the root.
var own struct {
	socket, agent int
	volumes       []int
}

func clone(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return fd, nil
}

func openOwn(c wire.Machine) (err error) {
	if own.socket, err = clone(wire.SocketDir); err != nil {
		return err
	}
	self, err := os.Readlink("/proc/1/exe") // of the first process: this one sees the old /proc
	if err != nil {
		return err
	}
	if own.agent, err = clone(self); err != nil {
		return err
	}
	for i := range c.Volumes {
		fd, err := clone(volumeDir(i))
		if err != nil {
			return err
		}
		own.volumes = append(own.volumes, fd)
	}
	return nil
}

// attachOwn puts these mounts into the root.
func attachOwn(c wire.Machine) error {
	if err := attach(own.socket, wire.SocketDir, true); err != nil {
		return err
	}
	if err := os.WriteFile(wire.AgentPath, nil, 0o755); err != nil {
		return err
	}
	if err := attach(own.agent, wire.AgentPath, true); err != nil {
		return err
	}
	for i, v := range c.Volumes {
		if err := makeFolder(v.Target, 0o755); err != nil {
			return err
		}
		if err := attach(own.volumes[i], v.Target, v.ReadOnly); err != nil {
			return err
		}
	}
	return nil
}

func attach(fd int, target string, readOnly bool) error {
	defer unix.Close(fd)
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NODEV | unix.MS_NOSUID)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", target, "", flags, "")
}

// devices are the devices of the sandbox.
var devices = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

// mountSystem mounts the kernel's file systems into the root. The disks and ports of the machine are not in its /dev.
func mountSystem() error {
	const plain = unix.MS_NOSUID | unix.MS_NOEXEC
	for _, m := range []struct {
		kind, target, data string
		flags              uintptr
	}{
		{"proc", "/proc", "", plain | unix.MS_NODEV}, {"sysfs", "/sys", "", plain | unix.MS_NODEV | unix.MS_RDONLY},
		{"tmpfs", "/dev", "mode=755,size=64k", plain},
		{"devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620", plain},
		{"tmpfs", "/dev/shm", "mode=1777,size=64m", plain | unix.MS_NODEV},
		{"mqueue", "/dev/mqueue", "", plain | unix.MS_NODEV},
	} {
		err := mkdirMount(m.kind, m.target, m.kind, m.flags, m.data)
		if err != nil && m.kind != "mqueue" {
			return err
		}
	}
	for _, d := range devices {
		path := "/dev/" + d.name
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return err
		}
		if err := unix.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(to, "/dev/"+name); err != nil {
			return err
		}
	}
	for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"} {
		err := unix.Mount(path, path, "", unix.MS_BIND, "")
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|plain|unix.MS_NODEV, "")
		}
		if err != nil {
			return fmt.Errorf("making %s read-only: %w", path, err)
		}
	}
	return nil
}

// writeFiles writes the sandbox's own files, in place of the image's.
func writeFiles(c wire.Machine) error {
	for path, text := range c.Files {
		path = "/" + path
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// maxFiles is how many files each program may have open.
const maxFiles = 65536

// limitSelf sets the limits and the capabilities that the agent and its programs have.
func limitSelf(c wire.Machine) error {
	limits := map[int]unix.Rlimit{unix.RLIMIT_CORE: {}, unix.RLIMIT_NOFILE: {Cur: 16384, Max: maxFiles}}
	if c.FileBytes > 0 {
		limits[unix.RLIMIT_FSIZE] = unix.Rlimit{Cur: c.FileBytes, Max: c.FileBytes}
	}
	for name, l := range limits {
		if err := unix.Setrlimit(name, &l); err != nil {
			return err
		}
	}
	var kept []int
	for bit := range unix.CAP_LAST_CAP + 1 {
		if c.Capabilities&(1<<bit) != 0 {
			kept = append(kept, bit)
		}
	}
	for bit := range unix.CAP_LAST_CAP + 1 {
		if slices.Contains(kept, bit) {
			continue
		}
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(bit), 0)
		if errno != 0 && errno != unix.EINVAL {
			return fmt.Errorf("dropping capability %d: %w", bit, errno)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
