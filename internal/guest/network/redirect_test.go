package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// inNamespace is set in the process of a test that has a network namespace of its own.
const inNamespace = "SANDLOT_TEST_NAMESPACE"

// ownNamespace reports whether this process has a network namespace of its own. In one that has none it runs the test
// again, in such a process.
func ownNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inNamespace) == "" {
		attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
				UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
		}
		again(t, attr, "own")
		return false
	}
	interfaces, err := net.Interfaces()
	if err != nil || len(interfaces) != 1 || interfaces[0].Name != "lo" {
		t.Fatalf("this is no namespace of its own: %v, %v", interfaces, err) // nothing is sent there
	}
	return true
}

// again runs the test in another process, which has to pass.
func again(t *testing.T, attr *syscall.SysProcAttr, variable string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v",
		"-test.timeout=1m")
	cmd.Env = append(os.Environ(), inNamespace+"="+variable)
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

// On Linux, too, all addresses are local, also those of a prefix that begins with 0.
func TestAddresses(t *testing.T) {
	if !ownNamespace(t) {
		return
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
}

// TestRedirect: what programs send arrives with its destination, by either kind of rules, and a program without
// privileges cannot change them.
func TestRedirect(t *testing.T) {
	for _, access := range []Access{IPTables, NFTables} {
		t.Run(string(access), func(t *testing.T) {
			switch {
			case !ownNamespace(t):
			case os.Getenv(inNamespace) == "unprivileged":
				changeRules(t)
			default:
				testRedirect(t, access)
			}
		})
	}
}

// changeRules tries to change the rules without privileges.
func changeRules(t *testing.T) {
	for name, err := range map[string]error{"iptables": setIPTables(nil), "nftables": setNFTables(nil),
		"addresses": addAddress(netip.MustParsePrefix("203.0.113.1/24"))} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("without privileges, %s: %v", name, err)
		}
	}
}

func testRedirect(t *testing.T, access Access) {
	if err := startLoopback(); err != nil {
		t.Fatal(err)
	}
	n, b, own := begin(t, func(c *net.UnixConn) { io.Copy(c, c) })
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: loopback})
	if err != nil {
		t.Fatal(err)
	}
	n.listeners = append(n.listeners, l)
	t.Cleanup(func() {
		for _, l := range n.listeners {
			l.Close()
		}
		for _, w := range n.watchers {
			w.socket.Close()
		}
	})
	n.serve(t.Context(), l, n.serveRedirected)
	n.port.Store(uint32(l.Addr().(*net.TCPAddr).Port))
	if err := n.serveDNS(t.Context()); err != nil {
		t.Fatal(err)
	}
	only = string(access)
	if err := n.Redirect(); err != nil || n.Access() != access || n.Environment() != nil {
		t.Fatalf("%v, and it is %s with %q", err, n.Access(), n.Environment())
	}
	again(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}, "unprivileged")
	isRedirected(t, b, own)
	if access == NFTables { // again, and without rules
		if err := errors.Join(n.Redirect(), setNFTables(nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := net.DialTimeout("tcp4", "93.184.216.34:80", 5*time.Second); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("without rules: %v", err)
		}
	}
}

// isRedirected connects to an address, a name server, names, and loopback, where the server own listens.
func isRedirected(t *testing.T, b *broker, own string) {
	t.Helper()
	dial := func(network, address string) net.Conn {
		c, err := net.DialTimeout(network, address, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(5 * time.Second))
		return c
	}
	for _, address := range []string{"93.184.216.34:80", "10.1.2.3:65535", "203.0.113.9:1"} {
		c, err := net.DialTimeout("tcp4", address, 5*time.Second)
		if err == nil { // or the reset comes before
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if !errors.Is(err, unix.ECONNRESET) || b.last() != address {
			t.Errorf("%s: %v, and the broker was asked for %s", address, err, b.last())
		}
	}
	for name, want := range map[string]string{"good.test.": "28.18.1.0", "evil.test.": "198.19.1.0"} {
		server := dial("udp4", "8.8.8.8:53")
		server.Write(query(name, dnsmessage.TypeA))
		answer := make([]byte, maxQuery)
		k, err := server.Read(answer)
		var m dnsmessage.Message
		if err = errors.Join(err, m.Unpack(answer[:k])); err != nil || len(m.Answers) != 1 {
			t.Fatalf("%s: %v, %+v", name, err, m)
		}
		if a := m.Answers[0].Body.(*dnsmessage.AResource).A; netip.AddrFrom4(a).String() != want {
			t.Errorf("%s is at %v", name, a)
		}
	}
	named := dial("tcp4", "28.18.1.0:8443")
	got := make([]byte, 4)
	named.Write([]byte("ping"))
	if _, err := io.ReadFull(named, got); err != nil || string(got) != "ping" || b.last() != "good.test:8443" {
		t.Errorf("%v: %q, and the broker was asked for %s", err, got, b.last())
	}
	if _, err := net.DialTimeout("tcp4", "198.19.1.0:80", 5*time.Second); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a refused name: %v", err)
	}
	dial("tcp4", own).Write([]byte("CONNECT good.test:99 HTTP/1.1\r\n\r\n")) // the proxy of begin, on loopback
	for range 500 {
		if b.last() == "good.test:99" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("on loopback: the broker was asked for %s", b.last())
}

// TestEnvironment: programs are told of the proxy where nothing is redirected, and one that does not use it reaches
// nothing: a server in the sandbox does not answer as another address.
func TestEnvironment(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	if err := startLoopback(); err != nil {
		t.Fatal(err)
	}
	n, _, _ := begin(t, nil)
	only = string(Proxy)
	if err := n.Redirect(); err == nil || n.Access() != Proxy {
		t.Fatalf("access by %s, %v", n.Access(), err)
	}
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]error{"127.0.0.1": nil, "10.0.0.5": unix.ENETUNREACH} {
		c, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", address, l.Addr().(*net.TCPAddr).Port), 5*time.Second)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", address, err)
		}
		if err == nil {
			c.Close()
		}
	}
	env := n.Environment()
	if env["https_proxy"] != "http://127.0.0.1:3128" || env["HTTPS_PROXY"] != env["https_proxy"] ||
		env["no_proxy"] != env["NO_PROXY"] || !strings.Contains(env["NO_PROXY"], "localhost") || len(env) != 9 {
		t.Errorf("%q", env)
	}
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
