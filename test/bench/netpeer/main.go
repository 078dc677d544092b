// Netpeer is the server and the client of the network benchmark. The client runs in a sandbox and on the host,
// takes the times itself, and prints them as JSON.
//
//	netpeer serve                        prints its port; see hold
//	netpeer connect HOST:PORT COUNT      times of connect, and of an echo after it
//	netpeer name HOST:PORT COUNT         times of look-up, connect and echo together
//	netpeer lookup HOST COUNT            times of look-ups
//	netpeer down|up HOST:PORT STREAMS MB time for so much in each of the streams
//	netpeer idle HOST:PORT COUNT         holds connections until the server ends them
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// found has the measurements that a client prints, in nanoseconds.
type found struct {
	Connect, Both, Took []time.Duration `json:",omitempty"`
}

const (
	warmUp  = 20
	pause   = 5 * time.Millisecond // between look-ups, whose rate the agent bounds
	piece   = 64 << 10
	patient = 2 * time.Minute // for all measurements of a client
)

// A connection begins with one of these, and for a stream the length.
const (
	opEcho = 'e' // the server sends the byte back
	opHold = 'h' // the same; the connection stays open until the server ends it
	opDown = 'd'
	opUp   = 'u' // the server sends a byte when it has received all
)

// pattern is the content of streams, repeated.
var pattern = func() []byte {
	b := make([]byte, piece)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "netpeer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "serve" {
		return serve()
	}
	if len(args) < 3 {
		return errors.New("too few arguments")
	}
	time.AfterFunc(patient, func() {
		fmt.Fprintln(os.Stderr, "netpeer: too slow")
		os.Exit(1)
	})
	var n []int
	for _, a := range args[2:] {
		k, err := strconv.Atoi(a)
		if err != nil {
			return err
		}
		n = append(n, k)
	}
	var f found
	var err error
	switch {
	case args[0] == "connect":
		err = f.connects(args[1], n[0])
	case args[0] == "name":
		err = f.repeat(n[0], func() error { return echoed(args[1]) })
	case args[0] == "lookup":
		err = f.repeat(n[0], func() error {
			_, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip4", args[1])
			return err
		})
	case (args[0] == "down" || args[0] == "up") && len(n) == 2:
		err = f.streams(args[0][0], args[1], n[0], uint64(n[1])<<20)
	case args[0] == "idle":
		err = idle(args[1], n[0])
	default:
		err = errors.New("unknown arguments")
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}

// repeat measures do.
func (f *found) repeat(n int, do func() error) error {
	for i := range warmUp + n {
		began := time.Now()
		if err := do(); err != nil {
			return err
		}
		if i >= warmUp {
			f.Took = append(f.Took, time.Since(began))
		}
		time.Sleep(pause)
	}
	return nil
}

// connects measures connections to an address; it looks the name up once, before.
func (f *found) connects(to string, n int) error {
	a, err := net.ResolveTCPAddr("tcp4", to)
	if err != nil {
		return err
	}
	for i := range warmUp + n {
		began := time.Now()
		c, err := net.DialTCP("tcp4", nil, a)
		if err != nil {
			return err
		}
		connected := time.Since(began)
		err = ask(c, opEcho)
		both := time.Since(began)
		c.Close()
		if err != nil {
			return err
		}
		if i >= warmUp {
			f.Connect, f.Both = append(f.Connect, connected), append(f.Both, both)
		}
	}
	return nil
}

func echoed(to string) error {
	c, err := net.Dial("tcp4", to)
	if err != nil {
		return err
	}
	defer c.Close()
	return ask(c, opEcho)
}

func ask(c net.Conn, op byte) error {
	b := []byte{op}
	if _, err := c.Write(b); err != nil {
		return err
	}
	b[0] = 0
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if b[0] != op {
		return fmt.Errorf("a wrong answer: %q", b)
	}
	return nil
}

// streams measures streams; it opens all connections before.
func (f *found) streams(op byte, to string, n int, size uint64) error {
	all := make([]net.Conn, n)
	for i := range all {
		c, err := net.Dial("tcp4", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := ask(c, opEcho); err != nil {
			return err
		}
		all[i] = c
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	began := time.Now()
	for i, c := range all {
		wg.Go(func() {
			if _, errs[i] = c.Write(binary.BigEndian.AppendUint64([]byte{op}, size)); errs[i] != nil {
				return
			}
			if op == opDown {
				errs[i] = take(c, size)
			} else if errs[i] = give(c, size); errs[i] == nil {
				_, errs[i] = io.ReadFull(c, make([]byte, 1))
			}
		})
	}
	wg.Wait()
	f.Took = append(f.Took, time.Since(began))
	return errors.Join(errs...)
}

func give(w io.Writer, size uint64) error {
	for ; size > 0; size -= min(size, piece) {
		if _, err := w.Write(pattern[:min(size, piece)]); err != nil {
			return err
		}
	}
	return nil
}

// take reads a stream and checks its content.
func take(r io.Reader, size uint64) error {
	b := make([]byte, piece)
	for at := uint64(0); at < size; {
		n, err := r.Read(b[:min(piece-at%piece, size-at)])
		if !bytes.Equal(b[:n], pattern[at%piece:][:n]) {
			return errors.New("a wrong answer: other bytes came")
		}
		if at += uint64(n); err != nil && at < size {
			return err
		}
	}
	return nil
}

func idle(to string, n int) error {
	all := make([]net.Conn, n)
	for i := range all {
		c, err := net.Dial("tcp4", to)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		defer c.Close()
		if err := ask(c, opHold); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		all[i] = c
	}
	for i, c := range all {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			return fmt.Errorf("connection %d did not last: %w", i, err)
		}
	}
	return nil
}

// holder has the idle connections.
type holder struct {
	mu   sync.Mutex
	held []net.Conn
}

// serve serves until the end of standard input. A line of input ends the idle connections.
func serve() error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	h := &holder{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				continue
			}
			go h.handle(c)
		}
	}()
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		h.mu.Lock()
		for _, c := range h.held {
			c.Close()
		}
		h.held = nil
		h.mu.Unlock()
	}
	return nil
}

func (h *holder) handle(c net.Conn) {
	for {
		var op [1]byte
		var size [8]byte
		if _, err := io.ReadFull(c, op[:]); err != nil {
			break
		}
		if op[0] == opHold {
			h.mu.Lock()
			h.held = append(h.held, c)
			h.mu.Unlock()
			c.Write(op[:])
			return
		}
		if op[0] == opEcho {
			if _, err := c.Write(op[:]); err != nil {
				break
			}
			continue
		}
		if _, err := io.ReadFull(c, size[:]); err != nil {
			break
		}
		n, err := binary.BigEndian.Uint64(size[:]), error(nil)
		if op[0] == opDown {
			err = give(c, n)
		} else if err = take(c, n); err == nil {
			_, err = c.Write(op[:])
		}
		if err != nil {
			break
		}
	}
	c.Close()
}
