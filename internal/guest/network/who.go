package network

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/agent/wire"
)

// whose returns the program whose socket has an address: the one that waits for an answer of this package. It looks
// through all processes, and so only for what was refused.
func (n *Network) whose(protocol string, from net.Addr) wire.Who {
	var address netip.AddrPort
	switch a := from.(type) {
	case *net.TCPAddr:
		address = a.AddrPort()
	case *net.UDPAddr:
		address = a.AddrPort()
	}
	if n.config.Who == nil || !address.IsValid() || !n.searches.Allow() {
		return wire.Who{}
	}
	address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
	n.finding.Lock()
	defer n.finding.Unlock()
	pid := socketOwner(protocol, address)
	if pid == 0 { // the kernel may show the user alone what the user's processes have open
		_ = n.config.As(func() error {
			pid = socketOwner(protocol, address)
			return nil
		})
	}
	return n.config.Who(pid)
}

// socketOwner returns the id of a process that has the socket of a protocol, tcp or udp, with an address of its own; 0:
// none is found.
func socketOwner(protocol string, address netip.AddrPort) int {
	for _, version := range []string{"", "6"} {
		table, err := os.ReadFile("/proc/net/" + protocol + version)
		if err != nil {
			continue
		}
		// A program may send from a socket for UDP that has no address.
		if inode := socketInode(string(table), address, protocol == "udp"); inode != "" {
			if pid := holder("socket:[" + inode + "]"); pid != 0 {
				return pid
			}
		}
	}
	return 0
}

// socketInode returns the inode of the socket with an address in a table of /proc/net; empty: it is not there.
func socketInode(table string, address netip.AddrPort, unbound bool) string {
	const local, inode = 1, 9 // the fields
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) <= inode || f[inode] == "0" {
			continue
		}
		a, ok := socketAddress(f[local])
		if ok && a.Port() == address.Port() && (a.Addr() == address.Addr() || unbound && a.Addr().IsUnspecified()) {
			return f[inode]
		}
	}
	return ""
}

// socketAddress parses an address of /proc/net, whose parts of four bytes are numbers of this processor.
func socketAddress(s string) (a netip.AddrPort, ok bool) {
	address, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(address)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(b)%4 != 0 {
		return a, false
	}
	for part := range slices.Chunk(b, 4) {
		native.PutUint32(part, binary.BigEndian.Uint32(part))
	}
	host, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(host.Unmap(), uint16(number)), ok
}

// maxOpen bounds how many open files holder looks at: programs may have any number of them. Tests look at a whole
// machine's.
var maxOpen = 20_000

// holder returns the id of a process that has a file open, by what its link in /proc says; 0: none is found. Of several
// it is the newest.
func holder(link string) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	looked := 0
	for _, pid := range slices.Backward(pids) {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		open, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, f := range open {
			if looked++; looked > maxOpen {
				return 0
			}
			if to, err := os.Readlink(dir + "/" + f.Name()); err == nil && to == link {
				return pid
			}
		}
	}
	return 0
}
