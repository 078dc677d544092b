package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/process"
)

// Connect is the command `sandlot-agent connect`, which a runtime starts in a sandbox whose agent's
// socket it cannot share with the host, as a user whom no program of the sandbox has. It listens at
// the socket, and carries each connection over its standard input and output.
func Connect(args []string) int {
	socket := wire.SocketDir + "/" + wire.Socket
	if len(args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: sandlot-agent connect [SOCKET]")
		return 2
	}
	if len(args) == 1 {
		socket = args[0]
	}
	// Programs of the sandbox may have the same user id: they must not read the memory.
	err := errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0),
		dropCapabilities())
	if err == nil {
		runtime.GOMAXPROCS(1)
		reserveThreads()
		displace()
		err = carry(context.Background(), socket, newStdio())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandlot-agent connect:", err)
		return 1
	}
	return 0
}

// stdio is the standard input and output as one stream.
type stdio struct{ in, out *os.File }

// newStdio returns the standard input and output so that Close ends a call of Read that waits.
func newStdio() stdio {
	for _, fd := range []int{0, 1} {
		_ = unix.SetNonblock(fd, true) // without it, Read waits on
	}
	return stdio{os.NewFile(0, "stdin"), os.NewFile(1, "stdout")}
}

func (s stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s stdio) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s stdio) Close() error                { return errors.Join(s.in.Close(), s.out.Close()) }

// displace ends earlier processes of this command. One whose daemon was killed does not see the end of its standard
// input, which the container's monitor holds open, and would keep the agent's link.
func displace() {
	own, err := process.Stat(os.Getpid())
	if err != nil || own[1] != "0" {
		return // the runtime has not started it: this is no sandbox
	}
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil || pid == os.Getpid() || !process.StartedFromOutside(pid) {
			continue
		}
		args, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		if err == nil && strings.HasPrefix(string(args), wire.AgentPath+"\x00"+wire.ConnectCommand+"\x00") {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// dropCapabilities gives up all capabilities of this process: it needs none.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&none[0])), 0)
	if errno != 0 {
		return fmt.Errorf("dropping capabilities: %w", errno)
	}
	return nil
}

// maxBridged bounds the connections that are carried at once.
const maxBridged = 8192

// carry carries the connections that arrive at the socket over a stream, until the stream or ctx
// ends.
func carry(ctx context.Context, socket string, stream io.ReadWriteCloser) error {
	l, err := listenAt(socket) // before the bridge: the host takes its first answer for a sign of that
	if err != nil {
		return err
	}
	defer l.Close()
	bridge, err := wire.NewBridge(stream, false)
	if err != nil {
		return err
	}
	var conns sync.WaitGroup
	defer conns.Wait()
	defer bridge.Close()
	stop := context.AfterFunc(ctx, func() { bridge.Close() })
	defer stop()
	conns.Go(func() { <-bridge.Done(); l.Close() })
	slots := make(chan struct{}, maxBridged)
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // such as too many open files
			time.Sleep(5 * time.Millisecond)
			continue
		}
		// The agent has read it, and starts no program before it is gone.
		err = os.Remove(filepath.Join(filepath.Dir(socket), wire.SecretFile))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			c.Close()
			return fmt.Errorf("removing the agent's secret: %w", err)
		}
		select {
		case slots <- struct{}{}:
		default:
			c.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-slots }()
			carried, err := bridge.Open()
			if err != nil {
				c.Close()
				return
			}
			wire.Splice(carried, c)
		})
	}
}

// listenAt listens at the agent's socket in place of an earlier process.
func listenAt(socket string) (*net.UnixListener, error) {
	// A name of its own first: the agent never dials a socket without a listener.
	temporary := filepath.Join(filepath.Dir(socket), fmt.Sprintf(".connect-%d", os.Getpid()))
	_ = os.Remove(temporary)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: temporary})
	if err != nil {
		return nil, fmt.Errorf("listening in the folder of the agent's socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	// Interpreters dial it, too, as the user of the sandbox.
	if err = os.Chmod(temporary, 0o666); err == nil {
		err = os.Rename(temporary, socket)
	}
	if err != nil {
		_ = os.Remove(temporary)
		l.Close()
		return nil, fmt.Errorf("making the agent's socket: %w", err)
	}
	return l, nil
}
