package network

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sandlot/internal/agent/wire"
)

// TestSocketTable: sockets are found by their own address, whatever the version of IP, and none that has no owner.
func TestSocketTable(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(local, inode string) string {
		return "   0: " + local + " 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 " + inode +
			" 2 0000000000000000 20 4 30 10 -1\n"
	}
	// As a processor writes it whose numbers begin with the lowest byte, such as x86 and ARM.
	table := head + line("0100007F:1F90", "11") + line("0100007F:1F91", "0") + line("00000000:1F92", "13") +
		line("0000000000000000FFFF00000100007F:1F93", "14") + line("00000000000000000000000001000000:1F94", "15") +
		line("nonsense:1F95", "16") + "short\n"
	for address, want := range map[string]string{"127.0.0.1:8080": "11", "127.0.0.2:8080": "", "127.0.0.1:8081": "",
		"127.0.0.1:8082": "13", "127.0.0.1:8083": "14", "[::1]:8084": "15", "127.0.0.1:8085": ""} {
		if got := socketInode(table, netip.MustParseAddrPort(address), true); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	if got := socketInode(table, netip.MustParseAddrPort("127.0.0.1:8082"), false); got != "" {
		t.Errorf("a socket that listens at all addresses is taken for one that is connected: %q", got)
	}
}

// known lets a network say the process id of whom it finds.
func known(t *testing.T) func(*Config) {
	before := maxOpen
	maxOpen = 1 << 24
	t.Cleanup(func() { maxOpen = before })
	return func(c *Config) {
		c.Who = func(pid int) wire.Who { return wire.Who{PID: uint32(pid), Name: "found"} }
		c.As = func(f func() error) error { return f() }
	}
}

// shell runs a script of bash, and returns its process.
func shell(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	c := exec.Command("bash", "-c", script)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	return c
}

// TestTellsWho: the host is told which program made a connection that it refuses, before the program knows, and nothing
// of one that it allows.
func TestTellsWho(t *testing.T) {
	n, b, proxy := begin(t, hello, known(t))
	host, port, err := net.SplitHostPort(proxy)
	if err != nil {
		t.Fatal(err)
	}
	c := shell(t, fmt.Sprintf(`exec 3<>/dev/tcp/%s/%s
printf 'CONNECT evil.test:9 HTTP/1.1\r\nHost: x\r\n\r\n' >&3
read -r -t 60 line <&3 && [[ $line == *403* ]]`, host, port))
	if err := c.Wait(); err != nil {
		t.Fatalf("the program: %v", err)
	}
	b.mu.Lock()
	told := b.told
	b.mu.Unlock()
	if len(told) != 1 || told[0].Pid != uint32(c.Process.Pid) || told[0].Name != "found" {
		t.Errorf("told %v, want process %d", told, c.Process.Pid)
	}
	out, err := n.host.connect(t.Context(), wire.NetRequest{Kind: wire.NetConnect, Name: "good.test", Port: 1},
		func() wire.Who { t.Error("the program of an allowed connection is looked for"); return wire.Who{} })
	if err != nil {
		t.Fatal(err)
	}
	out.Close()
	if b.mu.Lock(); len(b.told) != 1 {
		t.Errorf("told %v", b.told)
	}
	b.mu.Unlock()
}

// TestAsker: who looks up a refused name is known by the socket of the query, and stays known for the connections that
// follow.
func TestAsker(t *testing.T) {
	n, _, _ := begin(t, nil, known(t))
	udp, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback})
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	c := shell(t, fmt.Sprintf("exec 3<>/dev/udp/127.0.0.1/%d; printf x >&3; read -r -t 60 <&3",
		udp.LocalAddr().(*net.UDPAddr).Port))
	udp.SetReadDeadline(time.Now().Add(60 * time.Second))
	_, from, err := udp.ReadFrom(make([]byte, 10))
	if err != nil {
		t.Fatal(err)
	}
	who := func() wire.Who { return n.whose("udp", from) }
	if n.answer(t.Context(), query("evil.test.", dnsmessage.TypeA), who) == nil {
		t.Fatal("no answer")
	}
	if got := n.names.asker("evil.test"); got.PID != uint32(c.Process.Pid) {
		t.Errorf("%+v, want process %d", got, c.Process.Pid)
	}
	for i := range 3 * refusedNames {
		n.names.setAsker(fmt.Sprint(i), wire.Who{PID: 1})
	}
	if len(n.names.askers) > 2*refusedNames {
		t.Errorf("%d askers are kept", len(n.names.askers))
	}
}
