package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// localNets are all of IPv4 but 0.0.0.0/8 and what is local already, as addresses of the loopback interface with
// their prefixes. Linux makes no route for a prefix that begins with 0, so 0.0.0.0/1 takes seven of them.
var localNets = []string{"198.18.0.1/15", "1.0.0.1/8", "2.0.0.1/7", "4.0.0.1/6", "8.0.0.1/5", "16.0.0.1/4",
	"32.0.0.1/3", "64.0.0.1/2", "128.0.0.1/1"}

// Access is how the programs of a sandbox reach the network.
type Access string

// With IPTables and NFTables, the names of what redirects connections in the kernel, programs need no settings. With
// Proxy, for kernels that have neither, the variables of Environment name the proxy.
const (
	IPTables Access = "iptables"
	NFTables Access = "nftables"
	Proxy    Access = "proxy"
)

// only is the one Access that the kernel is taken to have. Tests set it when they build the agent.
var only string

// redirect makes every IPv4 address a local one, and redirects to this process all TCP
// connections that do not go to loopback, and the DNS queries to any name server. It needs
// CAP_NET_ADMIN, and for iptables CAP_NET_RAW. It returns what the kernel can do; with Proxy it is an
// error, too, that says why, and no address is local but those of loopback.
func redirect(port uint16) (Access, error) {
	var all error
	for _, try := range []struct {
		access Access
		set    func([]rule) error
	}{{IPTables, setIPTables}, {NFTables, setNFTables}} { // gVisor has only the first
		var err error = unix.ENOENT // as of a kernel without the table
		if only == "" || only == string(try.access) {
			err = try.set(rules(port))
		}
		if err == nil {
			// Not before: without rules, a server in the sandbox would answer as any address.
			if err = addAddresses(); err == nil {
				return try.access, nil
			}
		}
		all = errors.Join(all, fmt.Errorf("redirecting by %s: %w", try.access, err))
	}
	return Proxy, all
}

func addAddresses() error {
	for _, p := range localNets {
		if err := addAddress(netip.MustParsePrefix(p)); err != nil {
			return fmt.Errorf("adding %s to the loopback interface: %w", p, err)
		}
	}
	return nil
}

var (
	native      = binary.NativeEndian
	loopbackNet = netip.MustParsePrefix("127.0.0.0/8")
)

// addAddress adds an address to interface 1, which is lo, with rtnetlink(7).
func addAddress(p netip.Prefix) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	a := p.Addr().As4()
	body := []byte{unix.AF_INET, byte(p.Bits()), 0, 0}
	body = native.AppendUint32(body, 1)
	for _, kind := range []uint16{unix.IFA_LOCAL, unix.IFA_ADDRESS} {
		body = native.AppendUint16(body, 8)
		body = native.AppendUint16(body, kind)
		body = append(body, a[:]...)
	}
	m := native.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	m = native.AppendUint16(m, unix.RTM_NEWADDR)
	m = native.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	m = append(m, make([]byte, 8)...) // sequence and port
	if err := unix.Sendto(s, append(m, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, buf, 0)
	if err != nil {
		return err
	}
	if err := netlinkResult(buf[:n]); err != unix.EEXIST {
		return err
	}
	return nil
}

// netlinkResult returns the error in an answer of the kernel to a request.
func netlinkResult(answer []byte) error {
	if len(answer) < unix.NLMSG_HDRLEN+4 || native.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel sent an invalid answer")
	}
	if code := int32(native.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}

// rule redirects or accepts some of the packets that programs send. The first rule that fits counts.
type rule struct {
	protocol    uint8
	destination netip.Prefix // of whole bytes
	inverted    bool         // the rule is for every destination but that one
	port        uint16       // the destination's, of UDP; 0: any
	redirectTo  uint16       // a port of this process; 0: accept
}

// rules returns the rules of redirect. A packet for which there is none is accepted.
func rules(port uint16) []rule {
	return []rule{
		{protocol: unix.IPPROTO_TCP, destination: refusedNet},
		{protocol: unix.IPPROTO_TCP, destination: loopbackNet, inverted: true, redirectTo: port},
		{protocol: unix.IPPROTO_UDP, destination: loopbackNet, inverted: true, port: dnsPort, redirectTo: dnsPort},
	}
}
