package process

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ends returns a program's output at both its ends.
func ends(t *testing.T) (host, program net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var both [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		if both[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { both[i].Close() })
	}
	return both[0], both[1]
}

// pumped runs a pump until its end, which must come.
func pumped(t *testing.T, to io.Writer, from net.Conn) {
	t.Helper()
	over := make(chan struct{})
	go func() { defer close(over); copyOutput(to, from) }()
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
}

// What a program said before its end is taken, however late.
func TestPumpTakesTheRest(t *testing.T) {
	host, program := ends(t)
	said := bytes.Repeat([]byte("0123456789"), 10_000)
	if _, err := program.Write(said); err != nil {
		t.Fatal(err)
	}
	host.SetReadDeadline(time.Unix(1, 0)) // its end was long ago, and something holds its output
	var got bytes.Buffer
	pumped(t, &got, host)
	if !bytes.Equal(got.Bytes(), said) {
		t.Errorf("%d of %d bytes came", got.Len(), len(said))
	}
}

// What it left behind does not keep it for ever.
func TestPumpLeavesALeftoverAlone(t *testing.T) {
	host, program := ends(t)
	go func() {
		flood := make([]byte, 64<<10)
		for {
			if _, err := program.Write(flood); err != nil {
				return
			}
		}
	}()
	host.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	pumped(t, io.Discard, host)
}

// A reader that went away does not stop a program that still says something.
func TestPumpWithoutAReader(t *testing.T) {
	host, program := ends(t)
	out, in := io.Pipe()
	out.CloseWithError(io.ErrClosedPipe)
	written := make(chan error, 1)
	go func() {
		_, err := program.Write(make([]byte, 4<<20))
		program.Close()
		written <- err
	}()
	pumped(t, in, host)
	if err := <-written; err != nil {
		t.Errorf("the program could not say all: %v", err)
	}
}
