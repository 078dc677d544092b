package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inNamespace is set in the process of TestAddresses that has a network namespace of its own.
const inNamespace = "SANDLOT_TEST_NAMESPACE"

// On Linux, too, all addresses are local, also those of a prefix that begins with 0.
func TestAddresses(t *testing.T) {
	if os.Getenv(inNamespace) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAddresses$", "-test.v")
		cmd.Env = append(os.Environ(), inNamespace+"=yes")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
				UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all are local") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	interfaces, err := net.Interfaces()
	if err != nil || len(interfaces) != 1 || interfaces[0].Name != "lo" {
		t.Fatalf("this is no namespace of its own: %v, %v", interfaces, err) // nothing is sent there
	}
	if err := errors.Join(startLoopback(), addAddresses(), addAddresses()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for first := 1; first < 224; first++ {
		c, err := net.DialTimeout("tcp4", fmt.Sprintf("%d.34.56.78:%d", first, port), 5*time.Second)
		if err != nil {
			t.Errorf("%d: %v", first, err)
			continue
		}
		c.Close()
	}
	t.Log("all are local")
}

// startLoopback makes the interface lo of a new namespace work.
func startLoopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}
