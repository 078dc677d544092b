package wire

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
)

// pair returns two connected Unix sockets, as between a host and its agent.
func pair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// mux speaks yamux over both ends.
func mux(t *testing.T, a, b net.Conn) (*yamux.Session, *yamux.Session) {
	t.Helper()
	host, err := yamux.Client(Coalesce(a), HostMuxConfig())
	if err != nil {
		t.Fatal(err)
	}
	guest, err := yamux.Server(Coalesce(b), HostMuxConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close(); guest.Close() })
	return host, guest
}

// echo answers every stream with what comes.
func echo(s *yamux.Session) {
	for {
		c, err := s.AcceptStream()
		if err != nil {
			return
		}
		go func() {
			io.Copy(c, c)
			c.Close()
		}()
	}
}

// through sends data in parts of that size and reads the echo.
func through(s *yamux.Session, data []byte, part int) error {
	c, err := s.OpenStream()
	if err != nil {
		return err
	}
	go func() {
		for rest := data; len(rest) > 0; {
			n := min(part, len(rest))
			if _, err := c.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
		c.Close()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if len(got) != len(data) || sha256.Sum256(got) != sha256.Sum256(data) {
		return fmt.Errorf("%d bytes came back as other %d bytes", len(data), len(got))
	}
	return nil
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	r.Read(b)
	return b
}

func TestWholeBothWays(t *testing.T) {
	pipes := map[string]func(*testing.T) (net.Conn, net.Conn){
		"socketpair": pair,
		"pipe":       func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() },
	}
	for name, make := range pipes {
		t.Run(name, func(t *testing.T) {
			a, b := make(t)
			host, guest := mux(t, a, b)
			go echo(host)
			go echo(guest)
			// A part of 12 bytes is as long as a header.
			for _, size := range []struct{ all, part int }{{1, 1}, {12, 12}, {144, 12}, {5000, 1}, {100_000, 1000},
				{1 << 20, 1 << 20}, {6 << 20, 300_000}} {
				for way, from := range map[string]*yamux.Session{"host": host, "guest": guest} {
					if err := through(from, random(size.all), size.part); err != nil {
						t.Errorf("%d bytes in parts of %d from the %s: %v", size.all, size.part, way, err)
					}
				}
			}
		})
	}
}

func TestWholeWithManyStreams(t *testing.T) {
	a, b := pair(t)
	host, guest := mux(t, a, b)
	go echo(host)
	go echo(guest)
	var work sync.WaitGroup
	for i := range 24 {
		from := host
		if i%2 == 1 {
			from = guest
		}
		work.Go(func() {
			for j := range 6 {
				if err := through(from, random(1+i*977+j*31), 1+i*13); err != nil {
					t.Errorf("stream %d.%d: %v", i, j, err)
				}
			}
		})
	}
	work.Wait()
}

// counted counts writes, and fails from one on.
type counted struct {
	net.Conn
	writes [][]byte
	broken error
	short  int
}

func (c *counted) Write(p []byte) (int, error) {
	if c.broken != nil {
		return min(c.short, len(p)), c.broken
	}
	c.writes = append(c.writes, bytes.Clone(p))
	return len(p), nil
}

func header(kind byte, length byte) []byte {
	return []byte{0, kind, 0, 0, 0, 0, 0, 1, 0, 0, 0, length}
}

func TestWholeJoinsHeaderAndBody(t *testing.T) {
	const data, window, ping = 0, 1, 2
	under := &counted{}
	w := Coalesce(under)
	body := bytes.Repeat([]byte("b"), 12) // looks like a header by its length
	large := bytes.Repeat([]byte("l"), 200_000)
	longHeader := append(header(data, 0)[:8], 0, 3, 0x0d, 0x40)
	for _, p := range [][]byte{header(window, 9), header(data, 12), body, header(data, 0), header(ping, 5), longHeader,
		large, header(data, 1), {'x'}} {
		if n, err := w.Write(p); n != len(p) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	want := [][]byte{header(window, 9), append(header(data, 12), body...), header(data, 0), header(ping, 5),
		append(longHeader, large...), append(header(data, 1), 'x')}
	if len(under.writes) != len(want) {
		t.Fatalf("%d writes, want %d", len(under.writes), len(want))
	}
	for i := range want {
		if !bytes.Equal(under.writes[i], want[i]) {
			t.Errorf("write %d has %d bytes, want %d", i, len(under.writes[i]), len(want[i]))
		}
	}
}

// A write that failed must not be counted as one that went through.
func TestWholeTellsOfAFailure(t *testing.T) {
	for _, short := range []int{0, 5, 12, 14} {
		under := &counted{broken: errors.New("broken"), short: short}
		w := Coalesce(under)
		if n, err := w.Write(header(0, 4)); n != 12 || err != nil {
			t.Fatalf("the header is held: %d, %v", n, err)
		}
		n, err := w.Write([]byte("body"))
		if !errors.Is(err, under.broken) || n != max(0, short-12) {
			t.Errorf("after %d bytes of both: %d, %v", short, n, err)
		}
	}
}
