// Package agent is the host's side of the link to the agent in a sandbox. It accepts the
// agent's connections, and makes calls over the link. The sandbox is hostile: every message is
// bounded, every call has an end, and no text from the sandbox is used as a name or path on the
// host.
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
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// Errors of calls that got no answer, or an invalid one.
var (
	// ErrProtocol is returned for an answer that breaks the protocol. No further call may be
	// made: a process of the sandbox may have answered in the agent's place.
	ErrProtocol = errors.New("the agent's answer makes no sense")
	// ErrLinkBroken is returned when the link broke in the middle of a call.
	ErrLinkBroken = errors.New("the link to the sandbox broke")
	// ErrUnstable is returned once a sandbox has broken too many links, or sent too many wrong
	// greetings, in a row.
	ErrUnstable = errors.New("the sandbox keeps breaking the link")
)

// Client makes calls to one sandbox's agent. Many goroutines may use it.
//
// The order of locks: an interpreter's slot, one of cellSlots, mu.
type Client struct {
	rpc agentv1connect.AgentClient

	sandbox   sandbox.Sandbox
	log       *slog.Logger
	transport *http.Transport

	ctx    context.Context // ends with Close, or when the sandbox is gone
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // Close waits for it

	nextLink      chan net.Conn // holds the connection that becomes the next link
	greetingSlots chan struct{} // a slot for each connection whose greeting is not checked yet
	network       atomic.Pointer[Network]
	tools         atomic.Pointer[Tools]
	ownTools      atomic.Bool // the agent writes the tool tree itself
	cellSlots     Slots       // nil: no bound

	mu          sync.Mutex
	mux         *yamux.Session  // of the link; nil while there is none
	idleStreams []*yamux.Stream // run streams of mux that wait for their next request
	linkErr     error           // why there will not be a link any more
	// changed is closed, and replaced, when mux or dead changes.
	changed       chan struct{}
	expectedConns map[wire.Ticket]*expectedConns // direct connections that the host asked the sandbox for
	interps       map[string]*interpreter        // by language
}

// New returns a client that accepts links from the agent of a sandbox until Close. The sandbox
// goes on after Close. A cell that begins takes one of the slots; nil slots are no bound.
func New(box sandbox.Sandbox, log *slog.Logger, slots Slots) *Client {
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &Client{sandbox: box, log: log, ctx: ctx, cancel: cancel, nextLink: make(chan net.Conn, 1),
		greetingSlots: make(chan struct{}, maxGreetings), cellSlots: slots, changed: make(chan struct{}),
		expectedConns: map[wire.Ticket]*expectedConns{}, interps: map[string]*interpreter{}}
	c.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.open(ctx, wire.CallStream)
		},
		MaxIdleConnsPerHost:    16,
		MaxConnsPerHost:        256,
		IdleConnTimeout:        2 * time.Minute,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
		ReadBufferSize:         4 << 10,
		WriteBufferSize:        4 << 10,
	}
	c.rpc = agentv1connect.NewAgentClient(&http.Client{Transport: c.transport}, "http://agent",
		connect.WithCodec(wire.Codec{}), connect.WithReadMaxBytes(wire.MaxMessage),
		connect.WithSendMaxBytes(wire.MaxMessage))
	c.work.Go(func() { c.accept(ctx) })
	c.work.Go(func() { c.keepLinked(ctx) })
	return c
}

// Network serves a sandbox's requests for the network.
type Network interface {
	// Pace waits until one more connection may be served, or ctx ends: it bounds the rate of a
	// sandbox's connections. While maxGreetings connections wait, no other connection of the
	// sandbox is accepted.
	Pace(ctx context.Context)
	// Serve serves a connection that the sandbox made to reach the network, and closes it. It returns
	// when the connection or ctx ends.
	Serve(ctx context.Context, c net.Conn)
}

// SetNetwork gives the sandbox a network. Until then it has none.
func (c *Client) SetNetwork(n Network) { c.network.Store(&n) }

// Tools serves calls of tools by programs of a sandbox.
type Tools interface {
	// Serve serves a connection that a program made to call tools, and closes it. It returns when the connection or
	// ctx ends. from tells whose calls they are; its answer can change.
	Serve(ctx context.Context, c net.Conn, from func() Caller)
}

// SetTools gives the sandbox's programs tools to call. Until then they have none.
func (c *Client) SetTools(t Tools) { c.tools.Store(&t) }

// Close ends the link. The agent waits for the next server.
func (c *Client) Close() {
	c.mu.Lock()
	c.cancel(nil) // from now on spawn starts nothing
	c.mu.Unlock()
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interps {
		select {
		case i.slot <- struct{}{}: // the slot is never released, so no cell runs any more
			i.closeConn()
		default: // the cell that holds the slot closes the connection when it releases the slot
		}
	}
}

// spawn runs work in a goroutine that Close waits for. After Close it does nothing, and returns
// false.
func (c *Client) spawn(work func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return false
	}
	c.work.Go(work)
	return true
}

// accept accepts connections from the sandbox until ctx ends, or the sandbox is gone or unstable.
func (c *Client) accept(ctx context.Context) {
	var conns sync.WaitGroup
	defer func() {
		conns.Wait()
		select {
		case conn := <-c.nextLink:
			conn.Close()
		default:
		}
	}()
	var refusals, unreported atomic.Int64 // refused greetings: in a row, and since the last warning
	warn := rate.Sometimes{Interval: warnInterval}
	for {
		conn, err := c.sandbox.Connect(ctx)
		if err != nil {
			c.cancel(err)
			return
		}
		select {
		case c.greetingSlots <- struct{}{}:
		case <-ctx.Done():
			conn.Close()
			return
		}
		conns.Go(func() {
			checked := sync.OnceFunc(func() { <-c.greetingSlots })
			defer checked()
			c.contain(ctx, conn, func() {
				purpose, expected, err := c.admit(ctx, conn)
				switch {
				case err == nil && purpose == wire.ForNetwork:
					if n := c.network.Load(); n != nil {
						(*n).Pace(ctx)
						checked()
						(*n).Serve(ctx, conn)
						return
					}
					conn.Close()
				case err == nil && purpose == wire.ForTools:
					c.serveTools(ctx, conn, checked)
					return
				case err == nil && purpose == wire.ForDirect:
					checked()
					c.deliver(expected, conn)
					return
				case err == nil:
					refusals.Store(0)
					c.offer(conn)
				default:
					conn.Close()
					unreported.Add(1)
					warn.Do(func() {
						c.log.Warn("refused links from a sandbox", "sandbox", c.sandbox.Spec().ID, "times",
							unreported.Swap(0),
							"error", err)
					})
					if refusals.Add(1) >= maxRefused && !c.Linked() {
						c.cancel(ErrUnstable)
					}
				}
				select {
				case <-time.After(10 * time.Millisecond): // bounds the cost of a flood of greetings
				case <-ctx.Done():
				}
			})
		})
	}
}

// contain serves a connection. A panic ends it, and nothing else: who has made the connection waits.
func (c *Client) contain(ctx context.Context, conn net.Conn, serve func()) {
	var panicked error // logged
	defer func() {
		if panicked != nil {
			conn.Close()
		}
	}()
	defer fault.Recover(ctx, c.log, "a connection of a sandbox", &panicked)
	serve()
}

// warnInterval is the time between two warnings about one sandbox. A sandbox can cause any
// number of warnings.
const warnInterval = 10 * time.Second

// admit checks the greeting of a connection. For a direct one it returns who waits for it.
func (c *Client) admit(ctx context.Context, conn net.Conn) (purpose wire.Purpose, expected *expectedConns, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	purpose, err = wire.Admit(conn, c.sandbox.Spec().Secret, func(t wire.Ticket) bool {
		expected = c.claim(t)
		return expected != nil
	})
	if err == nil && expected == nil {
		err = c.sandbox.Admitted()
	}
	return purpose, expected, err
}

// offer makes conn the next link, and closes one that waits to become it.
func (c *Client) offer(conn net.Conn) {
	for {
		select {
		case c.nextLink <- conn:
			return
		default:
		}
		select {
		case previous := <-c.nextLink:
			previous.Close()
		default:
		}
	}
}

// keepLinked makes one link after the other until ctx ends, or the sandbox is gone or unstable.
func (c *Client) keepLinked(ctx context.Context) {
	briefLinks := 0 // brief links in a row
	for {
		mux, err := c.link(ctx)
		if err != nil {
			c.setLink(nil, err)
			return
		}
		c.setLink(mux, nil)
		began := time.Now()
		select {
		case <-mux.CloseChan():
		case <-ctx.Done():
			mux.Close()
		}
		if time.Since(began) > briefLink {
			briefLinks = 0
		} else if briefLinks++; briefLinks == maxBriefLinks && ctx.Err() == nil {
			c.setLink(nil, ErrUnstable)
			c.cancel(ErrUnstable)
			return
		}
		c.setLink(nil, nil)
		c.transport.CloseIdleConnections()
	}
}

const (
	// A sandbox is unstable when maxBriefLinks in a row last no longer than briefLink each,
	// or after maxRefused greetings in a row without the secret.
	briefLink     = 2 * time.Second
	maxBriefLinks = 8
	maxRefused    = 1000
	// maxGreetings bounds the connections whose greeting is not checked yet.
	maxGreetings = 16
)

// link waits for a connection that becomes the next link. It returns an error only when there
// will not be a link any more.
func (c *Client) link(ctx context.Context) (*yamux.Session, error) {
	var conn net.Conn
	select {
	case conn = <-c.nextLink:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	enlargeBuffer(conn)
	mux, err := yamux.Client(wire.Strict(wire.Coalesce(conn)), wire.HostMuxConfig())
	if err != nil {
		conn.Close()
		return nil, err
	}
	return mux, nil
}

// linkBuffer is the size of a link's send buffer, in bytes. Large writes fit into it, which
// saves wake-ups. Where the kernel allows less, transfers are slower.
const linkBuffer = 2 << 20

// enlargeBuffer sets the size of a connection's send buffer to linkBuffer. Connections to the
// network keep the kernel's default, since a sandbox has many of them.
func enlargeBuffer(conn net.Conn) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		setSendBuffer(fd, linkBuffer)
	})
}

// setLink sets the state of the link, and wakes the calls that wait for a link.
func (c *Client) setLink(mux *yamux.Session, linkErr error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mux, c.linkErr, c.idleStreams = mux, linkErr, nil
	close(c.changed)
	c.changed = make(chan struct{})
}

// Wait waits until there is a link. It returns an error when there will not be one.
func (c *Client) Wait(ctx context.Context) error {
	_, err := c.session(ctx)
	return err
}

// Linked reports whether there is a link now.
func (c *Client) Linked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mux != nil && !c.mux.IsClosed()
}

// session waits for a link, and returns its yamux session.
func (c *Client) session(ctx context.Context) (*yamux.Session, error) {
	for {
		c.mu.Lock()
		mux, linkErr, changed := c.mux, c.linkErr, c.changed
		c.mu.Unlock()
		if linkErr != nil {
			return nil, linkErr
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

// open opens a stream of a kind. When that fails because the link broke, it waits for the next
// link: no part of a call was sent yet.
func (c *Client) open(ctx context.Context, kind byte) (*yamux.Stream, error) {
	for {
		mux, err := c.session(ctx)
		if err != nil {
			return nil, err
		}
		s, err := c.openOn(ctx, mux, kind)
		if err == nil || ctx.Err() != nil || !mux.IsClosed() {
			return s, err
		}
	}
}

// openOn opens a stream on a link. It returns when ctx ends, even while the agent does not read
// or acknowledge the stream, which takes yamux half a minute to notice.
func (c *Client) openOn(ctx context.Context, mux *yamux.Session, kind byte) (*yamux.Stream, error) {
	type result struct {
		s   *yamux.Stream
		err error
	}
	opened := make(chan result)
	if !c.spawn(func() {
		s, err := openStream(mux, kind)
		select {
		case opened <- result{s, err}:
		case <-ctx.Done():
			if err == nil {
				s.Close()
			}
		}
	}) {
		return nil, context.Cause(c.ctx)
	}
	select {
	case r := <-opened:
		return r.s, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// openStream opens a stream and sends its kind.
func openStream(mux *yamux.Session, kind byte) (*yamux.Stream, error) {
	s, err := mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLinkBroken, err)
	}
	if _, err := s.Write([]byte{kind}); err != nil {
		s.Close()
		return nil, fmt.Errorf("%w: %w", ErrLinkBroken, err)
	}
	return s, nil
}

// stream opens a raw stream, and returns it with the agent's reply. Closing the stream ends the
// program or transfer that was started on it.
func (c *Client) stream(ctx context.Context, open *agentv1.StreamOpen) (net.Conn, *agentv1.StreamReply, error) {
	s, err := c.open(ctx, wire.RawStream)
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
	err = readMessage(s, reply)
	if err == nil && reply.Code != 0 {
		err = refused(reply)
	}
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, reply, nil
}

// readMessage reads a message of the agent. Its error is ErrProtocol or ErrLinkBroken.
func readMessage(s net.Conn, m proto.Message) error {
	switch err := wire.ReadMessage(s, m); {
	case err == nil:
		return nil
	case errors.Is(err, wire.ErrMessage):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	default:
		return fmt.Errorf("%w: %w", ErrLinkBroken, err)
	}
}

// maxIdle bounds the idle run streams that are kept for later requests.
const maxIdle = 32

// run runs one command or one cell to its end, and returns its last event. The caller checks
// that the event is of the request's kind. The other events go to onEvent, whose error ends the
// run. When ctx ends, the command or cell is stopped.
func (c *Client) run(ctx context.Context, r *agentv1.RunRequest,
	onEvent func(*agentv1.RunEvent) error) (*agentv1.RunEvent, error) {
	if err := checkSize(r); err != nil {
		return nil, err
	}
	s, err := c.acquireStream(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	e, err := exchange(s, r, onEvent)
	if !stop() || err != nil && e == nil {
		s.Close()
	} else {
		c.releaseStream(s)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return e, err
}

// exchange sends a request and reads its events up to the last one, which it returns. It returns
// a nil event when the stream cannot be used again.
func exchange(s *yamux.Stream, r *agentv1.RunRequest,
	event func(*agentv1.RunEvent) error) (*agentv1.RunEvent, error) {
	if err := wire.WriteMessage(s, r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLinkBroken, err)
	}
	for {
		e := new(agentv1.RunEvent)
		if err := readMessage(s, e); err != nil {
			return nil, err
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

// acquireStream returns an idle run stream, or a new one.
func (c *Client) acquireStream(ctx context.Context) (*yamux.Stream, error) {
	mux, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if n := len(c.idleStreams); n > 0 && c.mux == mux {
		s := c.idleStreams[n-1]
		c.idleStreams = c.idleStreams[:n-1]
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	return c.open(ctx, wire.RunStream)
}

// releaseStream keeps a run stream for the next request, or closes it.
func (c *Client) releaseStream(s *yamux.Stream) {
	c.mu.Lock()
	idle := s.Session() == c.mux && len(c.idleStreams) < maxIdle
	if idle {
		c.idleStreams = append(c.idleStreams, s)
	}
	c.mu.Unlock()
	if !idle {
		s.Close()
	}
}
