// Package user owns the user of a sandbox: the one as whom its programs run, and its files are
// read and written. The agent itself stays root.
package user

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is the user of a sandbox. A nil User is the agent's own user, root: then there is nothing to
// change.
type User struct {
	UID, GID uint32
	Groups   []uint32 // further groups
	Name     string   // "": the user has none
	Home     string   // "": the user has none

	threads     chan struct{} // holds an element for each thread that is the user's now
	agentGroups []int
}

// maxThreads bounds the threads that are the user's at once.
const maxThreads = 16

// New returns the user with these ids. For the agent's own user it returns nil.
func New(uid, gid uint32, groups []uint32, name, home string) (*User, error) {
	if int(uid) == os.Geteuid() {
		return nil, nil
	}
	if uid > math.MaxInt32 || gid > math.MaxInt32 { // the largest number means "no change"
		return nil, fmt.Errorf("%d:%d is not a user", uid, gid)
	}
	own, err := unix.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("reading the agent's groups: %w", err)
	}
	return &User{UID: uid, GID: gid, Groups: groups, Name: name, Home: home,
		threads: make(chan struct{}, maxThreads), agentGroups: own}, nil
}

// Label returns the name of the user, or the id of one without a name.
func (u *User) Label() string {
	switch {
	case u == nil:
		return "root"
	case u.Name != "":
		return u.Name
	}
	return strconv.FormatUint(uint64(u.UID), 10)
}

// Credential returns what a program is started with to run as the user; nil: as the agent's user.
func (u *User) Credential() *syscall.Credential {
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// Do calls f. The system calls that f makes in its own goroutine are made with the user's rights:
// files that it makes belong to the user, and it opens only what the user may open. F must not
// call Do, wait for the host or a program, or start a goroutine that needs these rights.
//
// The ids belong to the thread: only its effective ids change, and with them the ids for files.
// The real and the saved ids stay root's, so that no program of the user may send signals to the
// thread. While the effective id is not 0 the thread has no effective capabilities.
func (u *User) Do(f func() error) (err error) {
	if u == nil {
		return f()
	}
	u.threads <- struct{}{}
	defer func() { <-u.threads }()
	runtime.LockOSThread()
	defer func() {
		restoreErr := u.restore()
		if restoreErr == nil {
			runtime.UnlockOSThread()
			return
		}
		// The thread stays locked, and ends with the goroutine: nothing else may run on it.
		err = errors.Join(err, restoreErr)
	}()
	if err := u.assume(); err != nil {
		return fmt.Errorf("acting as user %s: %w", u.Label(), err)
	}
	return f()
}

// noChange is the id that leaves an id as it is.
const noChange = ^uintptr(0)

// assume gives this thread the user's effective ids and groups.
func (u *User) assume() error {
	groups := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		groups[i] = int(g)
	}
	if err := setGroups(groups); err != nil {
		return err
	}
	if err := setIDs(unix.SYS_SETRESGID, uintptr(u.GID)); err != nil {
		return err
	}
	return setIDs(unix.SYS_SETRESUID, uintptr(u.UID))
}

// restore gives this thread the agent's effective ids and groups again.
func (u *User) restore() error {
	if err := setIDs(unix.SYS_SETRESUID, 0); err != nil {
		return err
	}
	if err := setIDs(unix.SYS_SETRESGID, 0); err != nil {
		return err
	}
	return setGroups(u.agentGroups)
}

// setIDs sets the effective id of this thread alone; the functions of syscall and unix set the
// ids of all threads.
func setIDs(call, effective uintptr) error {
	if _, _, errno := unix.RawSyscall(call, noChange, effective, noChange); errno != 0 {
		return errno
	}
	return nil
}
