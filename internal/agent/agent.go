// Package agent is the host's side of the wire: it keeps the link to one
// sandbox's agent alive and makes calls over it. The sandbox is hostile:
// every message is bounded, every call has an end, and nothing that the agent
// says is used as a name or path on the host.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// ErrProtocol is returned for an answer that breaks the protocol: the agent, or
// who speaks in its place, is not to be trusted with another call.
var ErrProtocol = errors.New("the agent's answer makes no sense")

// unread says what it means that an answer could not be read.
func unread(err error) error {
	if errors.Is(err, wire.ErrMessage) {
		return ErrProtocol
	}
	return ErrLost
}

// ErrLost is returned when the link broke in the middle of a call.
var ErrLost = errors.New("the link to the sandbox broke")

// Client talks to one sandbox's agent. Its methods may be called from many
// goroutines.
type Client struct {
	rpc agentv1connect.AgentClient

	box    sandbox.Sandbox
	secret []byte
	log    *slog.Logger
	http   *http.Transport

	ctx    context.Context // until Close, or the sandbox is gone
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	// links has the connection that becomes the next link.
	links   chan net.Conn
	greeted chan struct{} // held by each connection that has not proved itself
	network atomic.Pointer[Network]
	turns   *Turns

	mu   sync.Mutex
	mux  *yamux.Session  // nil while there is no link
	idle []*yamux.Stream // run streams of mux that wait for their next request
	dead error           // why there will never be a link again
	// expected are the connections that the sandbox was asked for.
	expected map[wire.Ticket]*expected
	// interps are the ways to interpreters, by language.
	interps map[string]*interpreter
	changed chan struct{} // closed, and replaced, when one of the above changes
}

// New starts to keep the link to box's agent. Close ends it; the sandbox lives on.
func New(box sandbox.Sandbox, log *slog.Logger) *Client {
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &Client{box: box, secret: box.Spec().Secret, log: log, ctx: ctx, cancel: cancel,
		links: make(chan net.Conn, 1), greeted: make(chan struct{}, maxGreeted), changed: make(chan struct{})}
	c.http = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			return c.open(ctx, wire.Call)
		},
		MaxIdleConnsPerHost:    16,
		MaxConnsPerHost:        256,
		IdleConnTimeout:        2 * time.Minute,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        4 << 10,
	}
	c.rpc = agentv1connect.NewAgentClient(&http.Client{Transport: c.http}, "http://agent",
		connect.WithCodec(wire.Codec{}), connect.WithReadMaxBytes(wire.MaxMessage),
		connect.WithSendMaxBytes(wire.MaxMessage))
	c.work.Go(func() { c.accept(ctx) })
	c.work.Go(func() { c.keep(ctx) })
	return c
}

// Share makes the client's pieces of code take turns with others'. It is called
// before the first.
func (c *Client) Share(t *Turns) { c.turns = t }

// Network is a sandbox's way to the network.
type Network interface {
	// Pace returns when one more connection for it may come, or ctx ends. As
	// long as a few wait for that, nothing else that the sandbox dials is let in.
	Pace(ctx context.Context)
	// Serve serves a connection that the sandbox made to reach the network, and
	// closes it. It returns when it ends, or ctx does.
	Serve(ctx context.Context, c net.Conn)
}

// Route gives the sandbox a way to the network. Until then it has none.
func (c *Client) Route(n Network) { c.network.Store(&n) }

// Close ends the link. The agent waits for the next host.
func (c *Client) Close() {
	c.mu.Lock()
	c.cancel(nil) // nothing begins that is not waited for
	c.mu.Unlock()
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interps {
		select {
		case i.turn <- struct{}{}: // and nobody gets it again
			i.close()
		default: // whoever has it closes it
		}
	}
}

// accept takes what dials from the sandbox until that is gone, or unfit.
func (c *Client) accept(ctx context.Context) {
	var conns sync.WaitGroup
	defer func() {
		conns.Wait()
		select {
		case conn := <-c.links:
			conn.Close()
		default:
		}
	}()
	var refused atomic.Int64 // one after the other
	var told warnings
	for {
		conn, err := c.box.Connect(ctx)
		if err != nil {
			c.cancel(err)
			return
		}
		select {
		case c.greeted <- struct{}{}:
		case <-ctx.Done():
			conn.Close()
			return
		}
		conns.Go(func() {
			purpose, asked, err := c.admit(ctx, conn)
			switch {
			case err == nil && purpose == wire.Network:
				if n := c.network.Load(); n != nil {
					(*n).Pace(ctx)
					<-c.greeted
					(*n).Serve(ctx, conn)
					return
				}
				conn.Close()
			case err == nil && purpose == wire.Direct:
				<-c.greeted
				c.deliver(asked, conn)
				return
			case err == nil:
				refused.Store(0)
				c.offer(conn)
			default:
				conn.Close()
				n := refused.Add(1)
				if times := told.due(); times > 0 {
					c.log.Warn("refused links from a sandbox", "sandbox", c.box.Spec().ID, "times", times, "error", err)
				}
				if n >= tooMany && !c.Linked() {
					c.cancel(ErrUnfit)
				}
			}
			select {
			case <-time.After(10 * time.Millisecond): // a flood of greetings costs no more than this
			case <-ctx.Done():
			}
			<-c.greeted
		})
	}
}

// admit lets a connection prove itself; asked is what a direct one is for.
func (c *Client) admit(ctx context.Context, conn net.Conn) (purpose wire.Purpose, asked *expected, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	purpose, err = wire.Admit(conn, c.secret, func(t wire.Ticket) bool {
		asked = c.claim(t)
		return asked != nil
	})
	return purpose, asked, err
}

// warnings are bounded: a sandbox can make something to warn of all the time.
type warnings struct {
	mu    sync.Mutex
	last  time.Time
	times int
}

// warnEvery is the time between two warnings about one sandbox.
const warnEvery = 10 * time.Second

// due takes note of something to warn of, and returns how often it happened
// since the last warning if it is time for one, else 0.
func (w *warnings) due() (times int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times++
	if now := time.Now(); now.Sub(w.last) >= warnEvery {
		times, w.times, w.last = w.times, 0, now
	}
	return times
}

// offer makes conn the next link, in place of one that waits already.
func (c *Client) offer(conn net.Conn) {
	for {
		select {
		case c.links <- conn:
			return
		default:
		}
		select {
		case older := <-c.links:
			older.Close()
		default:
		}
	}
}

// keep holds one link after the other until the sandbox is gone.
func (c *Client) keep(ctx context.Context) {
	short := 0 // brief links in a row
	for {
		mux, err := c.link(ctx)
		if err != nil {
			c.change(nil, err)
			return
		}
		c.change(mux, nil)
		began := time.Now()
		select {
		case <-mux.CloseChan():
		case <-ctx.Done():
			mux.Close()
		}
		if time.Since(began) > brief {
			short = 0
		} else if short++; short == tooShort && ctx.Err() == nil {
			c.change(nil, ErrUnfit)
			c.cancel(ErrUnfit)
			return
		}
		c.change(nil, nil)
		c.http.CloseIdleConnections()
	}
}

// ErrUnfit is returned once a sandbox has broken one link after the other.
var ErrUnfit = errors.New("the sandbox keeps breaking the link")

// A link that is brief is no good, and too many of them in a row are no accident.
const (
	brief    = 2 * time.Second
	tooShort = 8
	// tooMany greetings without the secret, one after the other, are no accident
	// either.
	tooMany = 1000
	// maxGreeted bounds the connections that have not proved themselves.
	maxGreeted = 16
)

// link waits until an agent has proved itself. It returns an error only when
// there will never be one.
func (c *Client) link(ctx context.Context) (*yamux.Session, error) {
	var conn net.Conn
	select {
	case conn = <-c.links:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	widen(conn)
	// The sandbox opens no streams on a link.
	mux, err := yamux.Client(wire.Strict(wire.Whole(conn)), wire.Mux())
	if err != nil {
		conn.Close()
		return nil, err
	}
	return mux, nil
}

// linkBuffer makes room for whole pieces of files on their way to the agent:
// fewer wake-ups. Where the kernel allows less, it is slower, and nothing else.
const linkBuffer = 2 << 20

// widen gives a link that buffer. There is one of a sandbox; its connections to
// the network are many, and keep what the kernel gives.
func widen(conn net.Conn) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, linkBuffer) != nil {
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, linkBuffer)
		}
	})
}

// change sets the state of the link and wakes all who wait for one.
func (c *Client) change(mux *yamux.Session, dead error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mux, c.dead, c.idle = mux, dead, nil
	close(c.changed)
	c.changed = make(chan struct{})
}

// Wait returns when there is a link, or with the reason why there never will be.
func (c *Client) Wait(ctx context.Context) error {
	_, err := c.session(ctx)
	return err
}

// Linked says whether there is a link now.
func (c *Client) Linked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mux != nil && !c.mux.IsClosed()
}

func (c *Client) session(ctx context.Context) (*yamux.Session, error) {
	for {
		c.mu.Lock()
		mux, dead, changed := c.mux, c.dead, c.changed
		c.mu.Unlock()
		if dead != nil {
			return nil, dead
		}
		if mux != nil && !mux.IsClosed() {
			return mux, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the agent: %w", ctx.Err())
		}
	}
}

// open opens a stream of a kind. A link that turns out to be over is waited for
// to be replaced: nothing of the call was said on it.
func (c *Client) open(ctx context.Context, kind byte) (*yamux.Stream, error) {
	for {
		mux, err := c.session(ctx)
		if err != nil {
			return nil, err
		}
		s, err := openOn(ctx, mux, kind)
		if err == nil || ctx.Err() != nil || !mux.IsClosed() {
			return s, err
		}
	}
}

func openOn(ctx context.Context, mux *yamux.Session, kind byte) (*yamux.Stream, error) {
	// A peer that does not read or acknowledge holds it for half a minute.
	type result struct {
		s   *yamux.Stream
		err error
	}
	opened := make(chan result, 1)
	go func() {
		s, err := begin(mux, kind)
		opened <- result{s, err}
	}()
	select {
	case r := <-opened:
		return r.s, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				r.s.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func begin(mux *yamux.Session, kind byte) (*yamux.Stream, error) {
	s, err := mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	if _, err := s.Write([]byte{kind}); err != nil {
		s.Close()
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	return s, nil
}

// stream opens a raw stream, and returns it with the agent's answer. Closing it
// ends what was started on it.
func (c *Client) stream(ctx context.Context, open *agentv1.StreamOpen) (net.Conn, *agentv1.StreamReply, error) {
	s, err := c.open(ctx, wire.Raw)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := wire.WriteMessage(s, open); err != nil {
		s.Close()
		return nil, nil, err
	}
	reply := new(agentv1.StreamReply)
	if err := wire.ReadMessage(s, reply); err != nil {
		s.Close()
		return nil, nil, fmt.Errorf("%w: %w", unread(err), err)
	}
	if reply.Code != 0 {
		s.Close()
		return nil, nil, refused(reply)
	}
	return s, reply, nil
}

// maxIdle is how many run streams wait for the next request: more calls at
// once open, and close, streams of their own.
const maxIdle = 32

// run runs one command or one piece of code to its end, and returns its last
// event, which the agent makes of the request's kind. The others are given to event, whose
// error ends the run. When ctx ends, what runs is stopped.
func (c *Client) run(ctx context.Context, r *agentv1.RunRequest,
	event func(*agentv1.RunEvent) error) (*agentv1.RunEvent, error) {
	if err := fits(r); err != nil {
		return nil, err
	}
	s, err := c.take(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	e, err := run(s, r, event)
	if !stop() || err != nil && e == nil {
		s.Close()
	} else {
		c.put(s)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return e, err
}

// run returns a nil event when the stream is of no more use.
func run(s *yamux.Stream, r *agentv1.RunRequest, event func(*agentv1.RunEvent) error) (*agentv1.RunEvent, error) {
	if err := wire.WriteMessage(s, r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
	for {
		e := new(agentv1.RunEvent)
		if err := wire.ReadMessage(s, e); err != nil {
			return nil, fmt.Errorf("%w: %w", unread(err), err)
		}
		switch k := e.Event.(type) {
		case *agentv1.RunEvent_Refused:
			return e, refused(k.Refused)
		case *agentv1.RunEvent_Executed, *agentv1.RunEvent_Evaluated, *agentv1.RunEvent_Over:
			return e, nil
		}
		if err := event(e); err != nil {
			return nil, err
		}
	}
}

// take returns a run stream.
func (c *Client) take(ctx context.Context) (*yamux.Stream, error) {
	mux, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if n := len(c.idle); n > 0 && c.mux == mux {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	return c.open(ctx, wire.Run)
}

func (c *Client) put(s *yamux.Stream) {
	c.mu.Lock()
	keep := s.Session() == c.mux && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, s)
	}
	c.mu.Unlock()
	if !keep {
		s.Close()
	}
}
