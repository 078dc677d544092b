package interp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
)

// host is the other side of a driver's connection.
type host struct {
	net.Conn
	r    *bufio.Reader
	last int64
	t    *testing.T
}

// openDirect makes the driver dial a host, and gets it ready.
func openDirect(t *testing.T, l *lang) *host {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed := make(chan net.Conn, 1)
	go func() {
		defer close(dialed)
		c, err := listener.Accept()
		if err == nil {
			_, err = wire.Admit(c, make([]byte, wire.SecretLen), func(wire.Ticket) bool { return true })
		}
		if err == nil {
			dialed <- c
		}
	}()
	if err := l.OpenDirect(t.Context(), socket, make([]byte, wire.SecretLen)); err != nil {
		t.Fatal(err)
	}
	h := &host{Conn: <-dialed, t: t}
	h.r = bufio.NewReader(h)
	t.Cleanup(func() { h.Close() })
	h.SetDeadline(time.Now().Add(30 * time.Second))
	io.WriteString(h, "0 -1 0\n")
	if line, err := h.r.ReadString('\n'); err != nil || line != "0 0 0\n" {
		t.Fatalf("the driver says %q, %v", line, err)
	}
	return h
}

// run sends a cell, and returns the driver's answer.
func (h *host) run(code string) (reply wire.Reply, out string) {
	h.t.Helper()
	h.last++
	fmt.Fprintf(h, "%d %d 1000\n%s", h.last, len(code), code)
	var size, stdout, stderr int
	line, err := h.r.ReadString('\n')
	if n, _ := fmt.Sscanf(line, "%d %d %d\n", &size, &stdout, &stderr); err != nil || n != 3 {
		h.t.Fatalf("%.100q: the driver says %q, %v", code, line, err)
	}
	data := make([]byte, size+stdout+stderr)
	if _, err := io.ReadFull(h.r, data); err != nil || json.Unmarshal(data[:size], &reply) != nil ||
		reply.ID != h.last {
		h.t.Fatalf("%.100q: the driver says %.200q, %v", code, data, err)
	}
	return reply, string(data[size : size+stdout])
}

// On the direct way, too, a signal that is heard late stops no later cell.
func TestDirectHearsASignalLate(t *testing.T) {
	l := python(t)
	h := openDirect(t, l)
	if r, out := h.run("import time\nprint('a')\nkept = 1\nkept"); !r.OK || out != "a\n" || *r.Result != "1" {
		t.Fatalf("got %+v, %q", r, out)
	}
	l.process.signalsSent++
	l.shared.SetSignalsSent(l.process.signalsSent)
	late := time.AfterFunc(30*time.Millisecond, func() { l.Signal(unix.SIGINT) })
	defer late.Stop()
	if r, _ := h.run("time.sleep(0.1); kept"); !r.OK || *r.Result != "1" {
		t.Errorf("got %+v", r)
	}
	if r, _ := h.run("kept"); !r.OK {
		t.Errorf("after that: %+v", r)
	}
}

// What a cell takes out of modules is not missing when a later one is handed over to the agent.
func TestHandedOverAfterHostileCells(t *testing.T) {
	l := python(t)
	l.run("import time; time.sleep = time.monotonic = None")
	h := openDirect(t, l)
	io.WriteString(h, "1 13 10\nprint('a'*99)")
	if line, err := h.r.ReadString('\n'); err != nil || line != "0 0 0\n" {
		t.Fatalf("the driver says %q, %v", line, err)
	}
	h.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := h.r.ReadByte(); !os.IsTimeout(err) {
		t.Errorf("the driver does not wait for the agent: %v", err)
	}
}

// A request for a cell that is over supervises no other one.
func TestALateRequestSupervisesNothing(t *testing.T) {
	l := python(t)
	h := openDirect(t, l)
	for range 2 {
		h.run("x = 1")
	}
	done := make(chan wire.Reply)
	go func() {
		r, _ := h.run("import time\ntime.sleep(0.3)\n'mine'")
		done <- r
	}()
	for l.shared.Idle() {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for _, stop := range []bool{false, true} {
		r, taken, err := l.Supervise(ctx, 1, time.Now(), stop, Cell{Stdout: new(safe), Stderr: new(safe)})
		if r != nil || taken || err != nil {
			t.Errorf("it was taken: %+v, %v", r, err)
		}
	}
	if r := <-done; !r.OK || r.Result == nil || !strings.Contains(*r.Result, "mine") {
		t.Errorf("the cell that ran: %+v", r)
	}
}
