package guest

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// muxed opens a raw stream on the agent as a link has it.
func (r *rig) muxed(open *agentv1.StreamOpen) *yamux.Stream {
	r.T.Helper()
	a, b := net.Pipe()
	brisk := wire.HostMuxConfig()
	brisk.StreamCloseTimeout = 10 * time.Millisecond
	host, err := yamux.Client(wire.Strict(wire.Coalesce(a)), brisk)
	if err != nil {
		r.T.Fatal(err)
	}
	guest, err := yamux.Server(wire.Coalesce(b), wire.AgentMuxConfig())
	if err != nil {
		r.T.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s, err := guest.AcceptStream(); err == nil {
			r.serveRaw(s)
			s.Close()
		}
	}()
	r.T.Cleanup(func() {
		host.Close()
		guest.Close()
		<-done
	})
	s, err := host.OpenStream()
	if err != nil {
		r.T.Fatal(err)
	}
	s.SetDeadline(time.Now().Add(30 * time.Second))
	reply := new(agentv1.StreamReply)
	if err := errors.Join(wire.WriteMessage(s, open), wire.ReadMessage(s, reply)); err != nil || reply.Code != 0 {
		r.T.Fatal(err, reply)
	}
	return s
}

// A client that goes away ends its process, although the process takes none of
// the input that came before.
func TestTheClientGoesWhileInputWaits(t *testing.T) {
	for how, leave := range map[string]func(*yamux.Stream){
		"the host closes the stream": func(s *yamux.Stream) { s.Close() },
		"the link breaks":            func(s *yamux.Stream) { s.Session().Close() },
	} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			s := r.muxed(execOpen(sh("echo $$; exec sleep 60")))
			_, text, err := wire.ReadFrame(s, make([]byte, wire.MaxFrame))
			if err != nil {
				t.Fatal(err)
			}
			s.SetWriteDeadline(time.Now().Add(time.Second)) // until everything on the way is full
			for err == nil {
				err = wire.WriteFrame(s, wire.FrameStdin, make([]byte, wire.MaxFrame))
			}
			leave(s)
			dead(t, number(t, text))
		})
	}
}

// A process that ends with input before it ends its stream too.
func TestTheProcessEndsWhileInputWaits(t *testing.T) {
	r := newRig(t)
	s := r.muxed(execOpen(sh("echo $$; exec sleep 60")))
	_, text, err := wire.ReadFrame(s, make([]byte, wire.MaxFrame))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 << 20 / wire.MaxFrame {
		if err := wire.WriteFrame(s, wire.FrameStdin, make([]byte, wire.MaxFrame)); err != nil {
			t.Fatal(err)
		}
	}
	syscall.Kill(number(t, text), syscall.SIGTERM)
	if _, _, exit, _ := frames(t, s); exit != 128+15 {
		t.Errorf("exit code %d", exit)
	}
}

// Input is lost to nobody who is slow to take it.
func TestInputWaits(t *testing.T) {
	r := newRig(t)
	s := r.muxed(execOpen(sh("read go; sleep 0.2; wc -c")))
	const size = 9 << 20
	sent := make(chan error, 1)
	go func() {
		err := wire.WriteFrame(s, wire.FrameStdin, []byte("go\n"))
		for n := 0; n < size && err == nil; n += wire.MaxFrame {
			err = wire.WriteFrame(s, wire.FrameStdin, make([]byte, wire.MaxFrame))
		}
		sent <- errors.Join(err, wire.WriteFrame(s, wire.FrameStdin, nil))
	}()
	if out, _, exit, _ := frames(t, s); strings.TrimSpace(out) != strconv.Itoa(size) || exit != 0 {
		t.Errorf("%q, %d", out, exit)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// Signals pass input that waits, and input that nobody will ever take.
func TestSignalsWhileInputWaits(t *testing.T) {
	for what, tt := range map[string]struct {
		script string
		pieces int
	}{
		"input is not read": {"trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.05; done", 3},
		"input was closed": {"exec <&-; trap 'echo caught; exit 4' INT; echo ready; while :; do sleep 0.05; done",
			40},
		"input is not wanted": {"trap 'echo caught; exit 4' INT; exec </dev/null; echo ready; while :; do sleep " +
			"0.05; done", 40},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			s := r.muxed(execOpen(sh(tt.script)))
			if _, p, err := wire.ReadFrame(s, make([]byte, wire.MaxFrame)); err != nil || string(p) != "ready\n" {
				t.Fatalf("%q, %v", p, err)
			}
			for range tt.pieces {
				if err := wire.WriteFrame(s, wire.FrameStdin, make([]byte, wire.MaxFrame)); err != nil {
					t.Fatal(err)
				}
			}
			if err := wire.WriteFrame(s, wire.FrameSignal, []byte{byte(syscall.SIGINT)}); err != nil {
				t.Fatal(err)
			}
			if out, _, exit, _ := frames(t, s); out != "caught\n" || exit != 4 {
				t.Errorf("got %q, %d", out, exit)
			}
		})
	}
}
