package guest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// TestVsockAddress: addresses name a port, and nothing else is dialed over AF_VSOCK.
func TestVsockAddress(t *testing.T) {
	for _, bad := range []string{"vsock:", "vsock:0", "vsock:-1", "vsock:5000 ", "vsock:4294967295", "vsock:4294967296",
		"vsock:2:5000", "vsock:/run/x"} {
		if dial, err := carrierOf(bad); err == nil || dial != nil {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, path := range []string{"", "/run/sandlot/agent.sock", "vsock", "/vsock:5000"} {
		if dial, err := carrierOf(path); err != nil || dial != nil {
			t.Errorf("%q is a path: %v", path, err)
		}
	}
}

// TestVsockDial: the agent dials the port at the host of its virtual machine. The test answers the system calls: what
// would answer them here is the hypervisor of the machine that runs the test.
func TestVsockDial(t *testing.T) {
	var asked []any
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	peer := os.NewFile(uintptr(pair[1]), "peer")
	defer peer.Close()
	interrupted := false
	answered := vsock{
		socket: func(domain, kind, protocol int) (int, error) {
			asked = append(asked, domain, kind, protocol)
			return pair[0], nil
		},
		connect: func(fd int, to unix.Sockaddr) error {
			asked = append(asked, fd, *to.(*unix.SockaddrVM))
			if !interrupted {
				interrupted = true
				return unix.EINTR
			}
			return nil
		},
	}
	before := kernelVsock
	kernelVsock = answered
	defer func() { kernelVsock = before }()
	dial, err := carrierOf("vsock:5000")
	if err != nil || dial == nil {
		t.Fatal(err)
	}
	stream, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := unix.SockaddrVM{CID: 2, Port: 5000}
	want := []any{40, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0, pair[0], at, pair[0], at} // 40: AF_VSOCK
	if !slices.Equal(asked, want) {
		t.Errorf("the kernel was asked %v, want %v", asked, want)
	}
	if _, err := peer.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if n, err := stream.Read(make([]byte, 5)); n != 1 || err != nil {
		t.Errorf("reading: %d, %v", n, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Read(make([]byte, 5))
		ended <- err
	}()
	stream.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("a read that waited: %v", err)
	}
	refused := vsock{socket: func(int, int, int) (int, error) { return -1, syscall.EAFNOSUPPORT }}
	if _, err := refused.dial(1); !errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Errorf("without AF_VSOCK: %v", err)
	}
}

// TestCarried: all connections of an agent are carried over one stream to the host, and over a new one when that ends.
func TestCarried(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "host.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial, err := carrierOf(wire.BridgeAddress + socket)
	if err != nil {
		t.Fatal(err)
	}
	secret := make([]byte, wire.SecretLen)
	a := New(Config{Socket: filepath.Join(t.TempDir(), "none"), Carry: dial, Secret: secret,
		Env: []string{"PATH=/usr/bin:/bin"}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for range 2 {
		stream, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		bridge, err := wire.NewBridge(stream, true)
		if err != nil {
			t.Fatal(err)
		}
		admit := func(want wire.Purpose) net.Conn {
			t.Helper()
			c, err := bridge.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(20 * time.Second))
			if purpose, err := wire.Admit(c, secret, nil); err != nil || purpose != want {
				t.Fatalf("a connection for %v: %v", purpose, err)
			}
			return c
		}
		// A client that is done closes its link, and the next one gets another over the same stream.
		link, err := yamux.Client(wire.Coalesce(admit(wire.ForLink)), wire.HostMuxConfig())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := link.Ping(); err != nil {
			t.Error(err)
		}
		link.Close()
		admit(wire.ForLink)
		dialed := make(chan error, 1)
		go func() {
			c, err := a.dialNet(ctx)
			if err == nil {
				_, ok := c.(interface{ CloseWrite() error })
				if !ok {
					err = errors.New("it has no half close")
				}
				c.Close()
			}
			dialed <- err
		}()
		admit(wire.ForNetwork)
		if err := <-dialed; err != nil {
			t.Error(err)
		}
		if _, err := a.dialDirect(make([]byte, wire.SecretLen)); err == nil {
			t.Error("there is a direct connection")
		}
		bridge.Close()
	}
}

// TestEnvironmentFile: the file is the whole environment, but for the address of the host.
func TestEnvironmentFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "environment")
	if err := os.WriteFile(path, []byte("A=1\x00B=two\nlines\x00"+wire.EnvCapable+"=1\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := os.Environ()
	defer func() {
		os.Clearenv()
		for _, kv := range all {
			for i := range kv {
				if i > 0 && kv[i] == '=' {
					os.Setenv(kv[:i], kv[i+1:])
					break
				}
			}
		}
	}()
	os.Setenv("MSB_OWN", "x")
	os.Setenv(wire.EnvSocket, "vsock:5000")
	os.Setenv(wire.EnvFile, path)
	if err := readEnvironment(); err != nil {
		t.Fatal(err)
	}
	got := os.Environ()
	slices.Sort(got)
	if want := []string{"A=1", "B=two\nlines", wire.EnvCapable + "=1", wire.EnvSocket + "=vsock:5000"}; !slices.Equal(got, want) {
		t.Errorf("the environment is %q", got)
	}
	os.Setenv(wire.EnvFile, path+"-missing")
	if err := readEnvironment(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}
