package machine

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

const (
	// hostPause is the pause between two looks whether the host has opened a port.
	hostPause = 20 * time.Millisecond
	// hostTimeout is how long the host may take to open the port of the link after it was announced.
	hostTimeout = 20 * time.Second
	// cutTimeout is how long the carrier may take to end after it was killed.
	cutTimeout = 10 * time.Second
)

// serve answers the host's calls, one after the other. The host may be gone at any byte, and another one comes.
func (m *machine) serve(control *os.File) {
	lines := bufio.NewReaderSize(control, wire.MaxMachineLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) { // no host has the port open
			time.Sleep(hostPause)
			continue
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			fmt.Fprintln(os.Stderr, "sandlot-agent init: the control port:", err)
			time.Sleep(time.Second)
			continue
		}
		var call wire.MachineCall
		if json.Unmarshal(line, &call) != nil {
			continue // what an earlier host has left
		}
		reply := wire.MachineReply{Number: call.Number}
		if err := m.do(call); err != nil {
			reply.Error = err.Error()
		}
		text, err := json.Marshal(reply)
		if err == nil {
			_, _ = control.Write(append(text, '\n'))
		}
		if call.Do == wire.MachineStop {
			m.off()
		}
	}
}

// do carries out one call.
func (m *machine) do(call wire.MachineCall) error {
	switch call.Do {
	case wire.MachineHello, wire.MachineStop:
		return nil
	case wire.MachineCut:
		return m.cut()
	case wire.MachineCarry:
		return m.carry()
	case wire.MachineExport:
		return export()
	case wire.MachineWoken:
		return m.woken(call)
	}
	return fmt.Errorf("the call %q is not known", call.Do)
}

// cut ends the carrier. What the kernel has of the port goes with it.
func (m *machine) cut() error {
	m.mu.Lock()
	pid, ended := m.carrier, m.ended
	m.mu.Unlock()
	if pid == 0 {
		return nil
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	select {
	case <-ended:
		return nil
	case <-time.After(cutTimeout):
		return errors.New("what carries the connections does not end")
	}
}

// carrierEnded notes the end of a process.
func (m *machine) carrierEnded(pid int, status syscall.WaitStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pid == m.carrier {
		fmt.Fprintf(os.Stderr, "sandlot-agent init: what carries the connections has ended: %#x\n", uint32(status))
		m.carrier = 0
		close(m.ended)
	}
}

// carry starts the carrier, as soon as the host has the port open, and makes the agent dial.
func (m *machine) carry() error {
	if m.agent == 0 {
		return errors.New("there is no sandbox")
	}
	if err := m.cut(); err != nil {
		return err
	}
	port, err := openPort(wire.LinkPort)
	if err != nil {
		return err
	}
	defer port.Close()
	if err := awaitHost(port); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// The Go runtime of the carrier would poll a standard input that does not block, and the carrier could not.
	fd := port.Fd()
	if err := unix.SetNonblock(int(fd), false); err != nil {
		return err
	}
	console, err := os.OpenFile("/dev/console", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer console.Close()
	m.carrier, err = syscall.ForkExec("/proc/self/exe",
		[]string{wire.AgentPath, wire.ConnectCommand, wire.SocketDir + "/" + wire.Socket},
		&syscall.ProcAttr{Dir: "/", Env: []string{}, Files: []uintptr{fd, fd, console.Fd()},
			Sys: &syscall.SysProcAttr{Setsid: true,
				Credential: &syscall.Credential{Uid: wire.ConnectUser, Gid: wire.ConnectUser}}})
	if err != nil {
		m.carrier = 0
		return err
	}
	m.ended = make(chan struct{})
	go m.wakeAgent()
	return nil
}

// wakeAgent makes the agent dial as soon as there is the socket of the new carrier.
func (m *machine) wakeAgent() {
	time.Sleep(hostPause)
	_ = unix.Kill(m.agent, wire.WakeSignal)
}

// awaitHost waits until the host has a port open.
func awaitHost(port *os.File) error {
	raw, err := port.SyscallConn()
	if err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < hostTimeout; time.Sleep(hostPause) {
		open := false
		err := raw.Control(func(fd uintptr) {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, perr := unix.Poll(p, 0)
			open = perr == nil && p[0].Revents&unix.POLLHUP == 0
		})
		if err != nil || open {
			return err
		}
	}
	return errors.New("the host has not opened the port of the link")
}

// woken does what a machine needs that has slept: its clock stands where it was, and its random numbers would be those of
// another machine that was made of the same state.
func (m *machine) woken(call wire.MachineCall) error {
	if err := m.cut(); err != nil {
		return err
	}
	if call.Now > 0 {
		now := unix.NsecToTimeval(call.Now)
		if err := unix.Settimeofday(&now); err != nil {
			return fmt.Errorf("setting the clock: %w", err)
		}
	}
	if len(call.Random) > 0 {
		if err := addRandom(call.Random); err != nil {
			return fmt.Errorf("the random numbers: %w", err)
		}
	}
	if call.Secret == "" {
		return nil
	}
	if secret, err := hex.DecodeString(call.Secret); err != nil || len(secret) != wire.SecretLen {
		return errors.New("the secret is broken")
	}
	// The agent reads it before it dials. The carrier removes it.
	return os.WriteFile(filepath.Join(wire.SocketDir, wire.SecretFile), []byte(call.Secret), 0o644)
}

// addRandom mixes bytes of the host into the kernel's random numbers, which it uses at once.
func addRandom(bytes []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	pool := make([]byte, 8+len(bytes))
	*(*int32)(unsafe.Pointer(&pool[0])) = int32(8 * len(bytes))
	*(*int32)(unsafe.Pointer(&pool[4])) = int32(len(bytes))
	copy(pool[8:], bytes)
	for _, c := range []struct{ request, arg uintptr }{{unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&pool[0]))},
		{unix.RNDRESEEDCRNG, 0}} {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), c.request, c.arg); errno != 0 {
			return errno
		}
	}
	return nil
}

// Run is what a program does that is started by one of the commands of this package; ok is false if it is none.
func Run(args []string) (code int, ok bool) {
	if len(args) != 1 {
		return 0, false
	}
	switch args[0] {
	case wire.InitCommand:
		return Init(), true
	case wire.MachineStartCommand:
		fmt.Fprintln(os.Stderr, "sandlot-agent "+strconv.Quote(args[0])+":", start(os.Stdin))
		return 1, true
	}
	return 0, false
}
