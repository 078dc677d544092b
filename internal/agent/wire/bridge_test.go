package wire

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
)

// bridges returns the two ends of a bridge, and the bytes that the end in the sandbox sends.
func bridges(t *testing.T) (host, inside *Bridge) {
	t.Helper()
	a, b := net.Pipe()
	host, err := NewBridge(a, true)
	if err != nil {
		t.Fatal(err)
	}
	if inside, err = NewBridge(b, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close(); inside.Close() })
	return host, inside
}

func TestBridge(t *testing.T) {
	host, inside := bridges(t)
	data := make([]byte, 3<<20+5)
	rand.Read(data)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			c, err := host.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			all.Go(func() { // sends back what it gets, and ends after that
				defer c.Close()
				n, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
				if err != nil || n != int64(len(data)) {
					t.Errorf("%d bytes, %v", n, err)
				}
				if err := c.CloseWrite(); err != nil {
					t.Error(err)
				}
			})
		})
		all.Go(func() {
			c, err := inside.Open()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			all.Go(func() {
				if _, err := c.Write(data); err != nil {
					t.Error(err)
				}
				if err := c.CloseWrite(); err != nil {
					t.Error(err)
				}
				if _, err := c.Write([]byte("more")); err == nil {
					t.Error("written after the end")
				}
			})
			got, err := io.ReadAll(c)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	all.Wait()
}

// A connection that is closed in the middle is reset, and not ended.
func TestBridgeReset(t *testing.T) {
	host, inside := bridges(t)
	c, err := inside.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("begun")); err != nil {
		t.Fatal(err)
	}
	peer, err := host.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	got, err := io.ReadAll(peer)
	if string(got) != "begun" || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%q, %v", got, err)
	}
}

// The host takes no chunk that is too large from the sandbox.
func TestBridgeHostile(t *testing.T) {
	host, inside := bridges(t)
	if _, err := inside.Open(); err != nil {
		t.Fatal(err)
	}
	for _, text := range [][]byte{{0, 1, 0, 1}, {255, 255, 255, 255}} {
		c, err := inside.Open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Stream.Write(append(text, 'x')); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		peer, err := host.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			continue
		}
		peer.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := peer.Read(make([]byte, 10)); !errors.Is(err, ErrMessage) {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}

// Splice ends both connections when both directions have ended.
func TestSplice(t *testing.T) {
	host, inside := bridges(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var all sync.WaitGroup
	all.Go(func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		out, err := inside.Open()
		if err != nil {
			t.Error(err)
			return
		}
		Splice(out, c.(*net.TCPConn))
	})
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	peer, err := host.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(peer); err != nil || string(got) != "question" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := peer.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	peer.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "answer" {
		t.Errorf("%q, %v", got, err)
	}
	all.Wait()
}

// The host holds nothing of connections that it has no room to accept.
func TestBridgeBacklog(t *testing.T) {
	left, right := net.Pipe()
	host, err := NewBridge(left, true)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	hostile := HostMuxConfig()
	hostile.AcceptBacklog = 1000
	mux, err := yamux.Client(right, hostile)
	if err != nil {
		t.Fatal(err)
	}
	defer mux.Close()
	for range 10 * backlog {
		s, err := mux.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.Write([]byte("x")) // the host may have reset it
	}
	if _, err := mux.Ping(); err != nil { // the host has read all that is before it
		t.Fatal(err)
	}
	if n := host.mux.NumStreams(); n > backlog {
		t.Errorf("the host holds %d connections", n)
	}
}
