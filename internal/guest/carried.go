package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// readEnvironment replaces this process's environment, but for wire.EnvSocket, by that of the file that wire.EnvFile
// names, if it names one.
func readEnvironment() error {
	path, socket := os.Getenv(wire.EnvFile), os.Getenv(wire.EnvSocket)
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("the agent's environment: %w", err)
	}
	os.Clearenv()
	for kv := range strings.SplitSeq(string(text), "\x00") {
		if name, value, ok := strings.Cut(kv, "="); ok {
			err = errors.Join(err, os.Setenv(name, value))
		}
	}
	return errors.Join(err, os.Setenv(wire.EnvSocket, socket))
}

// carrierOf returns what dials an address of wire.VsockAddress or wire.BridgeAddress; nil: it is a path.
func carrierOf(address string) (func(context.Context) (io.ReadWriteCloser, error), error) {
	if path, ok := strings.CutPrefix(address, wire.BridgeAddress); ok {
		return func(ctx context.Context) (io.ReadWriteCloser, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}, nil
	}
	text, ok := strings.CutPrefix(address, wire.VsockAddress)
	if !ok {
		return nil, nil
	}
	port, err := strconv.ParseUint(text, 10, 32)
	if err != nil || port == 0 || port == unix.VMADDR_PORT_ANY {
		return nil, fmt.Errorf("%q is not a port of AF_VSOCK", text)
	}
	return func(context.Context) (io.ReadWriteCloser, error) { return kernelVsock.dial(uint32(port)) }, nil
}

// vsock is what dialing over AF_VSOCK asks of the kernel. No test dials: on a machine that is a virtual one, the host
// that would answer is its hypervisor.
type vsock struct {
	socket  func(domain, kind, protocol int) (fd int, err error)
	connect func(fd int, to unix.Sockaddr) error
}

var kernelVsock = vsock{unix.Socket, unix.Connect}

// dial connects to a port of the virtual machine's host. The kernel bounds the wait by two seconds.
func (v vsock) dial(port uint32) (*os.File, error) {
	fd, err := v.socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the kernel has no AF_VSOCK: %w", err)
	}
	to := &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: port}
	for err = v.connect(fd, to); errors.Is(err, unix.EINTR); {
		err = v.connect(fd, to)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that Close ends a call of Read that waits
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("dialing port %d of the virtual machine's host: %w", port, err)
	}
	return os.NewFile(uintptr(fd), "vsock"), nil
}

// carried is the stream to the host that carries the agent's connections. The zero value has none yet.
type carried struct {
	mu     sync.Mutex
	bridge *wire.Bridge
}

// open opens a connection over the stream, or over a new one if there is none, or that one has ended.
func (c *carried) open(ctx context.Context, dial func(context.Context) (io.ReadWriteCloser, error)) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bridge != nil {
		if conn, err := c.bridge.Open(); err == nil {
			return conn, nil
		}
		c.bridge.Close()
		c.bridge = nil
	}
	stream, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	if c.bridge, err = wire.NewBridge(stream, false); err != nil {
		stream.Close()
		return nil, err
	}
	conn, err := c.bridge.Open()
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// close ends the stream.
func (c *carried) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bridge != nil {
		c.bridge.Close()
	}
}
