package dockertest

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/image/imagetest"
)

// Gateway is the address of the machine's end of the bridge of a daemon of StartNetworked.
const Gateway = "172.17.0.1"

// StartNetworked starts a Docker daemon in a network namespace of its own. Its containers have the daemon's usual
// bridge there, so that they can publish ports, and reach nothing but each other and what listens by Daemon.Listen.
// It makes no rule of the firewall: the daemon's proxy carries published ports.
func StartNetworked(t testing.TB) *Daemon {
	t.Helper()
	imagetest.Install(t, "dockerd", "docker.io")
	return startAs(t, unix.CLONE_NEWNET, func(dir string) []string {
		return append(dockerdIn(dir), "--bip", Gateway+"/16", "--iptables=false", "--ip6tables=false",
			"--ip-forward=false", "--ip-masq=false")
	})
}

// inNetwork calls a function in the network namespace of the daemon.
func (d *Daemon) inNetwork(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine, and no other gets its namespace
		namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", d.cmd.Process.Pid))
		if err != nil {
			done <- err
			return
		}
		defer namespace.Close()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("entering the daemon's network: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

// Dial connects to an address (an IP and a port) in the daemon's network.
func (d *Daemon) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = d.inNetwork(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen listens on a free port of an address in the daemon's network.
func (d *Daemon) Listen(t testing.TB, host string) (listener net.Listener) {
	t.Helper()
	err := d.inNetwork(func() (err error) {
		listener, err = net.Listen("tcp4", net.JoinHostPort(host, "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// LoopbackUp makes the loopback addresses of this thread's network usable.
func LoopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}
