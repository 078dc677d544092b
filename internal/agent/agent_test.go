package agent

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/leaktest"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

var key = bytes.Repeat([]byte{7}, wire.SecretLen)

// box is a sandbox whose agent is the test.
type box struct {
	dialed   chan net.Conn
	gone     chan struct{}
	admitted atomic.Int64 // calls of Admitted
	panics   atomic.Bool  // Admitted does
}

func (b *box) Admitted() error {
	if b.panics.Load() {
		panic("admitted")
	}
	b.admitted.Add(1)
	return nil
}

func (b *box) Spec() sandbox.Spec { return sandbox.Spec{ID: "box", Secret: key} }

func (b *box) Connect(ctx context.Context) (net.Conn, error) {
	select {
	case c := <-b.dialed:
		return c, nil
	case <-b.gone:
		return nil, sandbox.ErrGone
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (b *box) Status(context.Context) (sandbox.Status, error) { return sandbox.Status{}, nil }
func (b *box) Stop(context.Context) error                     { return nil }
func (b *box) Resize(context.Context, sandbox.Limits) error   { return errors.ErrUnsupported }
func (b *box) ChangeTools(func(dir string) error) error       { return errors.ErrUnsupported }

// client returns a client, and checks at the end that it leaves nothing behind.
func client(t *testing.T, slots Slots) (*Client, *box) {
	t.Helper()
	b := &box{dialed: make(chan net.Conn), gone: make(chan struct{})}
	c := New(b, slog.New(slog.DiscardHandler), slots)
	t.Cleanup(func() {
		c.Close()
		noneLeft(t)
	})
	return c, b
}

// noneLeft waits until no goroutine of the client or its link is left.
func noneLeft(t *testing.T) {
	t.Helper()
	if left := leaktest.Goroutines(func(stack string) bool {
		return strings.Contains(stack, "hashicorp/yamux") || strings.Contains(stack, "agent.(*Client)") ||
			strings.Contains(stack, "net/http.(*persistConn)")
	}); left != "" {
		t.Errorf("goroutines are left:\n%.4000s", left)
	}
}

func socketpair(t *testing.T) (net.Conn, net.Conn) {
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
	}
	return ends[0], ends[1]
}

// greeted dials the host as an agent does, and returns the agent's end.
func (b *box) greeted(t *testing.T) net.Conn {
	t.Helper()
	host, guest := socketpair(t)
	t.Cleanup(func() { guest.Close() })
	b.dialed <- host
	if err := wire.Greet(guest, key); err != nil {
		t.Fatal(err)
	}
	return guest
}

// fakeAgent says how the agent in the sandbox behaves; what is nil never answers.
type fakeAgent struct {
	call http.Handler
	run  func(net.Conn)
	raw  func(net.Conn)
	runs atomic.Int64 // run streams that the host opened
}

// serve makes a link to the fake agent.
func (b *box) serve(t *testing.T, a *fakeAgent) *yamux.Session {
	t.Helper()
	mux, err := yamux.Server(b.greeted(t), wire.HostMuxConfig())
	if err != nil {
		t.Fatal(err)
	}
	l := &wire.Listener{Conns: make(chan net.Conn), Closed: mux.CloseChan()}
	var work sync.WaitGroup
	if a.call != nil {
		server := &http.Server{Handler: a.call}
		work.Go(func() { server.Serve(l) })
		t.Cleanup(func() { server.Close() })
	}
	work.Go(func() {
		for {
			s, err := mux.AcceptStream()
			if err != nil {
				return
			}
			work.Go(func() { a.answer(s, l) })
		}
	})
	t.Cleanup(func() {
		mux.Close()
		work.Wait()
	})
	return mux
}

func (a *fakeAgent) answer(s *yamux.Stream, l *wire.Listener) {
	var kind [1]byte
	if _, err := io.ReadFull(s, kind[:]); err != nil {
		return
	}
	do := a.raw
	switch kind[0] {
	case wire.CallStream:
		if a.call != nil {
			l.Conns <- s
		}
		return
	case wire.RunStream:
		a.runs.Add(1)
		do = a.run
	}
	if do != nil {
		do(s)
		s.Close()
	}
}

// valid answers hello, and each run with what it was asked.
type valid struct {
	agentv1connect.UnimplementedAgentHandler
	name string
}

func (v valid) Hello(context.Context, *agentv1.HelloRequest) (*agentv1.HelloResponse, error) {
	return &agentv1.HelloResponse{BootId: v.name}, nil
}

func (v valid) fake() *fakeAgent {
	_, handler := agentv1connect.NewAgentHandler(v)
	return &fakeAgent{call: handler, run: echo, raw: func(c net.Conn) {
		if wire.ReadMessage(c, new(agentv1.StreamOpen)) == nil &&
			wire.WriteMessage(c, &agentv1.StreamReply{ProcessId: "p1"}) == nil {
			io.Copy(c, c)
		}
	}}
}

// echo answers runs: two outputs, then the command's first word as its stdout.
func echo(c net.Conn) {
	for {
		r := new(agentv1.RunRequest)
		if wire.ReadMessage(c, r) != nil {
			return
		}
		for range 2 {
			if wire.WriteMessage(c, output("…")) != nil {
				return
			}
		}
		if wire.WriteMessage(c, executed(r.GetExec().GetCommand().GetArgv()[0])) != nil {
			return
		}
	}
}

func output(s string) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Output{Output: &agentv1.Output{Data: []byte(s)}}}
}

// cellDone is the last event of a cell.
func cellDone(d *agentv1.EvaluateDone) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Evaluated{Evaluated: d}}
}

// cellOver says that the driver answers the host.
func cellOver(*agentv1.SuperviseRequest) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Over{Over: true}}
}

// refusedRun is the last event of a run that the agent refuses.
func refusedRun(r *agentv1.StreamReply) *agentv1.RunEvent {
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Refused{Refused: r}}
}

func executed(s string) *agentv1.RunEvent {
	done := &agentv1.ExecDone{Stdout: &agentv1.Captured{Head: []byte(s)}}
	return &agentv1.RunEvent{Event: &agentv1.RunEvent_Executed{Executed: done}}
}

func execOf(word string) *agentv1.RunRequest {
	exec := &agentv1.ExecRequest{Command: &agentv1.Command{Argv: []string{word}}}
	return &agentv1.RunRequest{Kind: &agentv1.RunRequest_Exec{Exec: exec}}
}

func ignore(*agentv1.RunEvent) error { return nil }

// runs runs one command that a valid agent echoes.
func runs(t *testing.T, c *Client, word string) {
	t.Helper()
	e, err := c.run(t.Context(), execOf(word), ignore)
	if err != nil || string(e.GetExecuted().GetStdout().GetHead()) != word {
		t.Errorf("Run(%s) = %v, %v", word, e, err)
	}
}

func hello(ctx context.Context, c *Client) (string, error) {
	return c.Hello(ctx)
}

func TestAnAgent(t *testing.T) {
	c, b := client(t, nil)
	if c.Linked() {
		t.Error("linked before the agent dialed")
	}
	b.serve(t, valid{name: "one"}.fake())
	if err := c.Wait(t.Context()); err != nil || !c.Linked() {
		t.Fatalf("Wait: %v, linked %v", err, c.Linked())
	}
	if id, err := hello(t.Context(), c); err != nil || id != "one" {
		t.Errorf("Hello = %q, %v", id, err)
	}
	events := 0
	if _, err := c.run(t.Context(), execOf("x"), func(*agentv1.RunEvent) error { events++; return nil }); err != nil ||
		events != 2 {
		t.Errorf("Run: %v with %d events, want 2", err, events)
	}
	s, reply, err := c.stream(t.Context(), &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_Dial{Dial: 80}})
	if err != nil || reply.ProcessId != "p1" {
		t.Fatalf("Stream: %v, %v", reply, err)
	}
	defer s.Close()
	if _, err := s.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(s, got); err != nil || string(got) != "ping" {
		t.Errorf("the stream gives %q, %v", got, err)
	}
}

// A link that breaks is replaced by the next one.
func TestTheNextLink(t *testing.T) {
	c, b := client(t, nil)
	for i := range 3 {
		name := fmt.Sprint("link", i)
		mux := b.serve(t, valid{name: name}.fake())
		if id, err := hello(t.Context(), c); err != nil || id != name {
			t.Fatalf("Hello = %q, %v, want %q", id, err, name)
		}
		runs(t, c, name)
		mux.Close()
		for c.Linked() { // a call on it meanwhile would be lost
			time.Sleep(time.Millisecond)
		}
	}
	// While there is none, a call waits for it.
	got := make(chan error, 1)
	go func() {
		id, err := hello(context.Background(), c)
		if id != "last" {
			err = errors.Join(err, fmt.Errorf("the answer is %q", id))
		}
		got <- err
	}()
	b.serve(t, valid{name: "last"}.fake())
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A sandbox that breaks one link after the other is given up, and links that
// lasted do not count.
func TestUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{dialed: make(chan net.Conn), gone: make(chan struct{})}
		c := New(b, slog.New(slog.DiscardHandler), nil)
		defer c.Close()
		link := func(lasts time.Duration) {
			host, guest := net.Pipe()
			b.dialed <- host
			if err := wire.Greet(guest, key); err != nil {
				t.Error(err)
			}
			time.Sleep(lasts)
			guest.Close()
			synctest.Wait()
		}
		short := func(n int) {
			for range n {
				link(0)
			}
		}
		short(maxBriefLinks - 1)
		link(briefLink + time.Second)
		short(maxBriefLinks - 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v, want to wait for the next link", err)
		}
		short(1)
		if err := c.Wait(t.Context()); !errors.Is(err, ErrUnstable) {
			t.Errorf("Wait: %v, want ErrUnfit", err)
		}
	})
}

// Processes in the sandbox that dial too, and know no secret, do not become
// the agent, and do not keep it out.
func TestImpostors(t *testing.T) {
	c, b := client(t, nil)
	for _, said := range []string{"", "SANDLOT1", "SANDLOT1" + strings.Repeat("x", wire.SecretLen),
		strings.Repeat("G", 4096)} {
		host, guest := socketpair(t)
		b.dialed <- host
		guest.Write([]byte(said))
		guest.(*net.UnixConn).CloseWrite()
		io.Copy(io.Discard, guest) // until the host hangs up
		guest.Close()
		if c.Linked() {
			t.Fatalf("%.20q became the agent", said)
		}
	}
	b.serve(t, valid{name: "true"}.fake())
	if id, err := hello(t.Context(), c); err != nil || id != "true" {
		t.Errorf("Hello = %q, %v", id, err)
	}
}

func TestGone(t *testing.T) {
	c, b := client(t, nil)
	waits := make(chan error, 1)
	go func() { waits <- c.Wait(context.Background()) }()
	close(b.gone)
	if err := <-waits; !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Wait: %v, want ErrGone", err)
	}
	if _, err := hello(t.Context(), c); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Hello: %v, want ErrGone", err)
	}
	if _, err := c.run(t.Context(), execOf("x"), ignore); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Run: %v, want ErrGone", err)
	}
	if _, _, err := c.stream(t.Context(), &agentv1.StreamOpen{}); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Stream: %v, want ErrGone", err)
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	c, _ := client(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v", err)
	}
	if _, err := c.run(ctx, execOf("x"), ignore); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

func TestClose(t *testing.T) {
	c, b := client(t, nil)
	mux := b.serve(t, valid{}.fake())
	runs(t, c, "x")
	c.Close()
	c.Close()
	<-mux.CloseChan() // the agent notices
	if _, err := c.run(t.Context(), execOf("x"), ignore); err == nil {
		t.Error("a closed client runs")
	}
}

// Close does not wait for a process that dialed and is silent.
func TestCloseWhileTheGreetingIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &box{dialed: make(chan net.Conn), gone: make(chan struct{})}
		c := New(b, slog.New(slog.DiscardHandler), nil)
		host, guest := net.Pipe()
		defer guest.Close()
		b.dialed <- host
		synctest.Wait()
		start := time.Now()
		c.Close()
		if time.Since(start) > 0 { // of the bubble's clock
			t.Errorf("Close waited %s for a greeting", time.Since(start))
		}
	})
}

// Every call ends with its context, whatever the agent does not do.
func TestASilentAgent(t *testing.T) {
	tests := []struct {
		name string
		call func(context.Context, *Client) error
	}{
		{"call", func(ctx context.Context, c *Client) error { _, err := hello(ctx, c); return err }},
		{"run", func(ctx context.Context, c *Client) error { _, err := c.run(ctx, execOf("x"), ignore); return err }},
		{"stream", func(ctx context.Context, c *Client) error {
			_, _, err := c.stream(ctx, &agentv1.StreamOpen{})
			return err
		}},
	}
	links := []struct {
		name string
		link func(*testing.T, *box)
	}{
		{"accepts streams", func(t *testing.T, b *box) { b.serve(t, &fakeAgent{}) }},
		{"reads nothing", func(t *testing.T, b *box) { b.greeted(t) }},
		{"acknowledges nothing", func(t *testing.T, b *box) {
			g := b.greeted(t)
			go io.Copy(io.Discard, g)
		}},
	}
	for _, l := range links {
		for _, tt := range tests {
			t.Run(l.name+"/"+tt.name, func(t *testing.T) {
				c, b := client(t, nil)
				l.link(t, b)
				if err := c.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				why := errors.New("enough")
				ended := make(chan error, 3)
				for range cap(ended) {
					go func() { ended <- tt.call(ctx, c) }()
				}
				time.Sleep(50 * time.Millisecond) // let them get stuck
				cancel(why)
				for range cap(ended) {
					select {
					case err := <-ended:
						if err == nil {
							t.Error("a call that nobody answered succeeded")
						}
					case <-time.After(10 * time.Second):
						t.Fatal("a call did not end with its context")
					}
				}
				if !c.Linked() {
					t.Error("the link was given up, which it need not be yet")
				}
			})
		}
	}
}

// So do calls that do not even get a stream, since the agent acknowledges none.
func TestMoreCallsThanStreams(t *testing.T) {
	c, b := client(t, nil)
	g := b.greeted(t)
	go io.Copy(io.Discard, g)
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2*wire.HostMuxConfig().AcceptBacklog)
	for range cap(ended) {
		go func() { _, err := c.run(ctx, execOf("x"), ignore); ended <- err }()
	}
	time.Sleep(100 * time.Millisecond) // let them get stuck
	cancel()
	for range cap(ended) {
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("Run: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a call did not end with its context")
		}
	}
}

func TestRunTellsWhyItWasCancelled(t *testing.T) {
	c, b := client(t, nil)
	b.serve(t, &fakeAgent{run: func(s net.Conn) { io.Copy(io.Discard, s) }})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if _, err := c.run(ctx, execOf("x"), ignore); !errors.Is(err, why) {
		t.Errorf("Run: %v, want the context's cause", err)
	}
}

// raw answers each run request with these bytes.
func raw(b []byte) func(net.Conn) {
	return func(c net.Conn) {
		for wire.ReadMessage(c, new(agentv1.RunRequest)) == nil {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

func framed(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

func encoded(t *testing.T, e *agentv1.RunEvent) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := wire.WriteMessage(&b, e); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRunsThatBreakTheProtocol(t *testing.T) {
	half := encoded(t, executed(strings.Repeat("x", 1000)))[:500]
	tests := []struct {
		name string
		said []byte
		end  bool // the agent hangs up after that
		want error
	}{
		{"a huge message", binary.BigEndian.AppendUint32(nil, 1<<31), false, ErrProtocol},
		{"a message just too large", binary.BigEndian.AppendUint32(nil, wire.MaxMessage+1), false, ErrProtocol},
		{"no message", framed([]byte{0xff, 0xff, 0xff}), false, ErrProtocol},
		{"half a message, and the end", half, true, ErrLinkBroken},
		{"nothing, and the end", nil, true, ErrLinkBroken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, b := client(t, nil)
			p := &fakeAgent{run: raw(tt.said)}
			if tt.end {
				p.run = func(s net.Conn) {
					wire.ReadMessage(s, new(agentv1.RunRequest))
					s.Write(tt.said)
				}
			}
			b.serve(t, p)
			for range 2 { // the stream is not used again
				e, err := c.run(t.Context(), execOf("x"), ignore)
				if e != nil || !errors.Is(err, tt.want) {
					t.Errorf("Run = %v, %v, want %v", e, err, tt.want)
				}
			}
			if got := p.runs.Load(); got != 2 {
				t.Errorf("%d streams for 2 runs that broke", got)
			}
		})
	}
}

func TestUnexpectedEvents(t *testing.T) {
	evaluated := cellDone(&agentv1.EvaluateDone{Ok: true})
	var nothing bytes.Buffer
	for range 3 {
		nothing.Write(framed(nil))
	}
	nothing.Write(encoded(t, executed("end")))
	tests := []struct {
		name  string
		said  []byte
		check func(*agentv1.RunEvent, int, error) bool
	}{
		{"the end of another kind", encoded(t, evaluated), func(e *agentv1.RunEvent, _ int, err error) bool {
			return err == nil && e.GetExecuted() == nil
		}},
		{"an end without anything in it", framed([]byte{0x1a, 0}), func(e *agentv1.RunEvent, _ int, err error) bool {
			return err == nil && e.GetExecuted() != nil && e.GetExecuted().GetStdout().GetTotal() == 0
		}},
		{"events without anything in them", nothing.Bytes(), func(e *agentv1.RunEvent, n int, err error) bool {
			return err == nil && n == 3 && e.GetExecuted() != nil
		}},
		{"a refusal", encoded(t, refusedRun(&agentv1.StreamReply{Code: uint32(connect.CodeNotFound),
			Message: "no \x1b[31msuch\x00 thing"})), func(_ *agentv1.RunEvent, _ int, err error) bool {
			return ReasonOf(err) == NotFound && strings.Contains(err.Error(), "no [31msuch thing")
		}},
		{"a refusal with no code and a long text",
			encoded(t, refusedRun(&agentv1.StreamReply{Message: strings.Repeat("ä", 100_000)})),
			func(_ *agentv1.RunEvent, _ int, err error) bool {
				return err != nil && len(err.Error()) < 2200
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, b := client(t, nil)
			b.serve(t, &fakeAgent{run: raw(tt.said)})
			events := 0
			e, err := c.run(t.Context(), execOf("x"), func(*agentv1.RunEvent) error { events++; return nil })
			if !tt.check(e, events, err) {
				t.Errorf("Run = %v after %d events, %v", e, events, err)
			}
		})
	}
}

func endless(c net.Conn) {
	if wire.ReadMessage(c, new(agentv1.RunRequest)) != nil {
		return
	}
	for wire.WriteMessage(c, output(strings.Repeat("x", 4000))) == nil {
	}
}

// Output without end ends with the context, or with the error of who gets it.
func TestEndlessOutput(t *testing.T) {
	c, b := client(t, nil)
	b.serve(t, &fakeAgent{run: endless})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	_, err := c.run(ctx, execOf("x"), func(*agentv1.RunEvent) error {
		if n++; n == 100 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled after %d events: %v", n, err)
	}
	enough := errors.New("enough")
	if _, err := c.run(t.Context(), execOf("x"), func(*agentv1.RunEvent) error { return enough }); !errors.Is(err,
		enough) {
		t.Errorf("refused by who gets it: %v", err)
	}
}

// A link that dies in the middle of calls ends them, and the next one serves.
func TestDeathInTheMiddle(t *testing.T) {
	c, b := client(t, nil)
	begun, broken := make(chan struct{}, 3), make(chan struct{})
	// A call of which the agent has read nothing yet would wait for the next link.
	hang := func(s net.Conn) {
		if _, err := s.Read(make([]byte, 1)); err == nil {
			begun <- struct{}{}
			<-broken
		}
	}
	mux := b.serve(t, &fakeAgent{run: hang, raw: hang, call: http.HandlerFunc(func(http.ResponseWriter,
		*http.Request) {
		begun <- struct{}{}
		<-broken
	})})
	errs := make(chan error, 3)
	go func() { _, err := c.run(context.Background(), execOf("x"), ignore); errs <- err }()
	go func() { _, _, err := c.stream(context.Background(), &agentv1.StreamOpen{}); errs <- err }()
	go func() { _, err := hello(context.Background(), c); errs <- err }()
	for range 3 {
		<-begun
	}
	mux.Close()
	close(broken)
	for range 3 {
		if err := <-errs; err == nil {
			t.Error("a call over a link that broke succeeded")
		}
	}
	b.serve(t, valid{name: "next"}.fake())
	if id, err := hello(t.Context(), c); err != nil || id != "next" {
		t.Errorf("Hello = %q, %v", id, err)
	}
	runs(t, c, "next")
}

func answerWith(status int, headers map[string]string, body []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for k, v := range headers {
			w.Header().Set(k, v)
		}
		w.WriteHeader(status)
		w.Write(body)
	})
}

// bomb is n MiB, packed.
func bomb(n int) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(make([]byte, 1<<20))
	w.Close()
	return bytes.Repeat(b.Bytes(), n)
}

func TestCallsThatBreakTheProtocol(t *testing.T) {
	const kind = "application/proto"
	tests := []struct {
		name string
		call http.Handler
	}{
		{"too large", answerWith(200, map[string]string{"Content-Type": kind}, make([]byte, wire.MaxMessage+1))},
		{"too large when unpacked", answerWith(200, map[string]string{"Content-Type": kind, "Content-Encoding": "gzip"},
			bomb(256))},
		{"a large error", answerWith(500, map[string]string{"Content-Type": "application/json"},
			[]byte(`{"code":"internal","message":"`+strings.Repeat("x", wire.MaxMessage)+`"}`))},
		{"a large header", answerWith(200, map[string]string{"Content-Type": kind, "X": strings.Repeat("x", 1<<20)},
			nil)},
		{"no message", answerWith(200, map[string]string{"Content-Type": kind}, []byte{0xff, 0xff})},
		{"a web page", answerWith(200, map[string]string{"Content-Type": "text/html"}, []byte("<h1>hello"))},
		{"a redirect", answerWith(302, map[string]string{"Location": "http://127.0.0.1:1/"}, nil)},
		{"the end", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, b := client(t, nil)
			b.serve(t, &fakeAgent{call: tt.call})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			id, err := hello(t.Context(), c)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Errorf("Hello = %q", id)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 16*wire.MaxMessage {
				t.Errorf("%d MiB were allocated", n>>20)
			}
		})
	}
}

// TestAdmitted: the sandbox learns that its secret was said when it was, so that its file is there until then: an agent
// that wakes dials with the secret of before first.
func TestAdmitted(t *testing.T) {
	c, b := client(t, nil)
	host, guest := socketpair(t)
	defer guest.Close()
	b.dialed <- host
	if err := wire.Greet(guest, bytes.Repeat([]byte{8}, wire.SecretLen)); err == nil || b.admitted.Load() != 0 {
		t.Errorf("with another secret: %v, admitted %d times", err, b.admitted.Load())
	}
	b.serve(t, &fakeAgent{})
	if err := c.Wait(t.Context()); err != nil || b.admitted.Load() != 1 {
		t.Errorf("with its secret: %v, admitted %d times", err, b.admitted.Load())
	}
}

func TestRefusedStreams(t *testing.T) {
	tests := []struct {
		name string
		raw  func(net.Conn)
		code Reason
	}{
		{"refused", func(c net.Conn) {
			wire.ReadMessage(c, new(agentv1.StreamOpen))
			wire.WriteMessage(c, &agentv1.StreamReply{Code: uint32(connect.CodeNotFound), Message: "no"})
		}, NotFound},
		{"hung up", func(c net.Conn) { wire.ReadMessage(c, new(agentv1.StreamOpen)) }, Other},
		{"too large", func(c net.Conn) { c.Write([]byte{0xff, 0xff, 0xff, 0xff}); io.Copy(io.Discard, c) }, Other},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, b := client(t, nil)
			b.serve(t, &fakeAgent{raw: tt.raw})
			s, _, err := c.stream(t.Context(), &agentv1.StreamOpen{})
			if err == nil || s != nil || ReasonOf(err) != tt.code {
				t.Errorf("Stream = %v, %v, want code %d", s, err, tt.code)
			}
		})
	}
}

// A sandbox that opens streams towards the host gets none, and makes the host
// hold nothing.
func TestStreamsFromTheSandbox(t *testing.T) {
	c, b := client(t, nil)
	guest := b.greeted(t)
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	go io.Copy(io.Discard, guest)
	// By hand: an agent that keeps to no window and waits for no answer.
	payload := make([]byte, 128<<10)
	guest.SetWriteDeadline(time.Now().Add(20 * time.Second))
	sent := 0
	for id := uint32(2); id < 2*2000; id += 2 {
		if _, err := guest.Write(append(frame(0, 1, id, len(payload)), payload...)); err != nil {
			break
		}
		sent++
	}
	time.Sleep(100 * time.Millisecond)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("after %d streams the host holds %d MiB more", sent, grown>>20)
	}
	guest.Close()
	b.serve(t, valid{name: "next"}.fake())
	if id, err := hello(t.Context(), c); err != nil || id != "next" {
		t.Errorf("Hello = %q, %v", id, err)
	}
}

// frame is a header of yamux.
func frame(kind byte, flags uint16, stream uint32, length int) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

// Pings want an answer each; a sandbox that reads none must not make the host
// keep them.
func TestPingsFromTheSandbox(t *testing.T) {
	c, b := client(t, nil)
	guest := b.greeted(t)
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	pings := bytes.Repeat(frame(2, 1, 0, 7), 500)
	guest.SetWriteDeadline(time.Now().Add(5 * time.Second))
	for range 60 {
		if _, err := guest.Write(pings); err != nil {
			break
		}
	}
	time.Sleep(100 * time.Millisecond)
	if grown := runtime.NumGoroutine() - before; grown > 200 {
		t.Errorf("%d goroutines more, after 30000 pings", grown)
	}
}

// Runs one after the other share one stream.
func TestRunStreamsArePooled(t *testing.T) {
	c, b := client(t, nil)
	p := valid{}.fake()
	b.serve(t, p)
	for i := range 20 {
		runs(t, c, fmt.Sprint("word", i))
	}
	if got := p.runs.Load(); got != 1 {
		t.Errorf("%d streams for 20 runs one after the other, want 1", got)
	}
}

// Many at once get streams of their own, of which a bounded number is kept.
func TestManyRunsAtOnce(t *testing.T) {
	c, b := client(t, nil)
	all := make(chan struct{})
	var waiting atomic.Int64
	const n = 3 * maxIdle
	p := &fakeAgent{run: func(s net.Conn) {
		for {
			r := new(agentv1.RunRequest)
			if wire.ReadMessage(s, r) != nil {
				return
			}
			if waiting.Add(1) == n {
				close(all)
			}
			<-all
			if wire.WriteMessage(s, executed(r.GetExec().Command.Argv[0])) != nil {
				return
			}
		}
	}}
	mux := b.serve(t, p)
	var work sync.WaitGroup
	for i := range n {
		work.Go(func() { runs(t, c, fmt.Sprint("word", i)) })
	}
	work.Wait()
	if got := p.runs.Load(); got != n {
		t.Errorf("%d streams for %d runs at once", got, n)
	}
	for range 500 {
		if mux.NumStreams() <= maxIdle {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := mux.NumStreams(); got > maxIdle {
		t.Errorf("%d streams are kept, want at most %d", got, maxIdle)
	}
}

// The late answer to a run that was given up is not another run's.
func TestAGivenUpRunsAnswer(t *testing.T) {
	c, b := client(t, nil)
	late := make(chan struct{})
	b.serve(t, &fakeAgent{run: func(s net.Conn) {
		for {
			r := new(agentv1.RunRequest)
			if wire.ReadMessage(s, r) != nil {
				return
			}
			word := r.GetExec().Command.Argv[0]
			if word == "slow" {
				<-late
			}
			if wire.WriteMessage(s, executed(word)) != nil {
				return
			}
		}
	}})
	runs(t, c, "first")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := c.run(ctx, execOf("slow"), ignore); !errors.Is(err, context.Canceled) {
		t.Fatalf("Run: %v", err)
	}
	close(late)
	for i := range 5 {
		runs(t, c, fmt.Sprint("next", i))
	}
}

// A refused run leaves its stream fit for the next one.
func TestARefusedRunsStream(t *testing.T) {
	c, b := client(t, nil)
	p := &fakeAgent{run: raw(encoded(t,
		refusedRun(&agentv1.StreamReply{Code: uint32(connect.CodeNotFound)})))}
	b.serve(t, p)
	for range 3 {
		if _, err := c.run(t.Context(), execOf("x"), ignore); ReasonOf(err) != NotFound {
			t.Errorf("Run: %v", err)
		}
	}
	if got := p.runs.Load(); got != 1 {
		t.Errorf("%d streams, want 1", got)
	}
}
