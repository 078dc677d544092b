package app

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/filelock"
	"sandlot/internal/proc"
	"sandlot/internal/secret"
)

// SocketPath returns the path of the socket on which the server of a state folder accepts commands of the
// folder's owner.
func SocketPath(stateDir string) string { return filepath.Join(stateDir, "api.sock") }

// ErrRunning is wrapped in New's error if the state folder has a running server.
var ErrRunning = errors.New("a server is running")

// lockStateFolder creates the state folder of the settings and locks it, since a folder has only one server. It
// resolves symbolic links in s.StateDir.
func lockStateFolder(s *config.Server) (lock *os.File, err error) {
	unusable := func(dir, what string, err error) error {
		return fault.Wrap(fault.Configuration, err, "the state folder %s %s: %v; name another with --state-dir", dir,
			what, err)
	}
	if err := os.MkdirAll(s.StateDir, 0o700); err != nil {
		return nil, unusable(s.StateDir, "cannot be made", err)
	}
	resolved, err := filepath.EvalSymlinks(s.StateDir)
	if err != nil {
		return nil, err
	}
	s.StateDir = resolved
	if err := makePrivate(resolved); err != nil {
		return nil, unusable(resolved, "is not yours", err)
	}
	lock, err = filelock.Open(filepath.Join(resolved, "lock"), 0o600)
	if err != nil {
		return nil, unusable(resolved, "cannot be written", err)
	}
	if err := waitForLock(lock); err != nil {
		lock.Close()
		return nil, fault.Wrap(fault.Configuration, ErrRunning,
			"another server uses the state folder %s; stop it, or name another folder with --state-dir", resolved)
	}
	if err := writeLockOwner(lock); err != nil {
		lock.Close()
		return nil, unusable(resolved, "cannot be written", err)
	}
	return lock, nil
}

// writeLockOwner writes the id and the start time of this process into the lock file.
func writeLockOwner(lock *os.File) error {
	started, err := proc.StartTicks(os.Getpid())
	if err != nil {
		return err
	}
	text := fmt.Appendf(nil, "%d %d\n", os.Getpid(), started)
	// Another server that waits finds this process or the one before, and never an empty file.
	if _, err := lock.WriteAt(text, 0); err != nil {
		return err
	}
	return lock.Truncate(int64(len(text)))
}

// lockTimeout is how long waitForLock waits until the kernel has closed the files of a killed server: that
// takes a while, as each of its sandboxes reacts.
const lockTimeout = 20 * time.Second

// settling is for how long a process must not be ending before it counts as running: between the moment when the kernel
// begins to end it and the moment when it says so, it says nothing.
const settling = 50 * time.Millisecond

// waitForLock locks the lock file of a state folder. If another process has the lock, it waits only if
// that process is ending.
func waitForLock(lock *os.File) error {
	ending := time.Now()
	for start := ending; ; time.Sleep(5 * time.Millisecond) {
		locked, err := filelock.Try(lock, true)
		if locked || err != nil {
			return err
		}
		text := make([]byte, 100)
		n, _ := lock.ReadAt(text, 0)
		var pid int
		var started uint64
		if _, err := fmt.Fscan(bytes.NewReader(text[:n]), &pid, &started); err == nil && proc.IsEnding(pid, started) {
			ending = time.Now()
		}
		if time.Since(ending) > settling || time.Since(start) > lockTimeout {
			return ErrRunning
		}
	}
}

// stateKey returns the key of the state folder, and creates it if it does not exist.
func stateKey(stateDir string) ([]byte, error) {
	path := filepath.Join(stateDir, "key")
	b, err := os.ReadFile(path)
	if err == nil && len(b) == 32 {
		return b, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	b = secret.Bytes(32)
	return b, atomicfile.WriteThrough(path, b)
}

// listenOwner opens the socket in the state folder, to which only the folder's owner can connect. The
// caller has locked the folder, so no other server uses the socket.
func listenOwner(stateDir string) (net.Listener, error) {
	path := SocketPath(stateDir)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// The socket is created in a new private folder and moved after chmod, so that nobody else can ever
	// connect. A change of the umask would affect the whole process.
	dir, err := os.MkdirTemp(stateDir, ".s")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	tempPath := bindPath(dir, path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tempPath, Net: "unix"})
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err,
			"cannot listen on %s: %v (a state folder's path may have at most 90 characters)", path, err)
	}
	l.SetUnlinkOnClose(false) // it is renamed below
	if err := publish(tempPath, path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return ownerSocket{l, path}, nil
}

// ownerSocket is a listener whose socket file is removed by Close.
type ownerSocket struct {
	*net.UnixListener
	path string
}

// Close implements net.Listener.
func (s ownerSocket) Close() error {
	err := os.Remove(s.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(s.UnixListener.Close(), err)
}
