package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"sandlot/internal/api/conn"
	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/hub"
)

// pipes is a listener of connections that hold no byte: what is not read cannot be written.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// connect returns both ends of a live channel.
func connect(t *testing.T) (c *client, peer *websocket.Conn) {
	t.Helper()
	s := &Server{Hub: hub.New(hub.Config{Events: event.New()}), Log: slog.New(slog.DiscardHandler)}
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	clients := make(chan *client, 1)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		c := s.client(t.Context(), ws, auth.User("ann", false))
		clients <- c
		c.serve()
	})}
	go func() { _ = web.Serve(p) }()
	dial := func(context.Context, string, string) (net.Conn, error) {
		mine, its := net.Pipe()
		p.conns <- its
		return mine, nil
	}
	peer, _, err := websocket.Dial(t.Context(), "ws://live.test/", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial}}})
	if err != nil {
		t.Fatal(err)
	}
	peer.SetReadLimit(1 << 20)
	t.Cleanup(func() {
		peer.CloseNow()
		_ = web.Close()
	})
	return <-clients, peer
}

// channelOf returns a channel of a terminal that is open.
func (c *client) channelOf(n uint32) *channel {
	ctx, cancel := context.WithCancel(c.ctx)
	ch := &channel{client: c, number: n, kind: terminalKind, terminal: true, ctx: ctx, cancel: cancel,
		room: make(chan struct{}, 1), news: make(chan struct{}, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels[n] = ch
	return ch
}

// drain reads all that comes.
func drain(peer *websocket.Conn, each func(kind websocket.MessageType, b []byte)) {
	for {
		kind, b, err := peer.Read(context.Background())
		if err != nil {
			return
		}
		if each != nil {
			each(kind, b)
		}
	}
}

// A client that reads nothing cannot make the server keep channels that have ended: at some time the server reads
// nothing more from it.
func TestEndedChannelsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := connect(t)
		var opened atomic.Int64
		go func() {
			for n := range 5000 {
				m := fmt.Appendf(nil, `{"op":"open","channel":%d,"kind":"terminal","args":%q}`, n+1, strings.Repeat("x", 1000))
				if peer.Write(context.Background(), websocket.MessageText, m) != nil {
					return
				}
				opened.Add(1)
			}
		}()
		synctest.Wait()
		c.mu.Lock()
		waiting := len(c.channels) + c.ending
		c.mu.Unlock()
		if n := opened.Load(); n > 3*maxChannels || waiting > 2*maxChannels {
			t.Errorf("%d channels were opened, of which %d wait", n, waiting)
		}
	})
}

// The rest of a screen that the client does not acknowledge is not kept for ever; a little is.
func TestScreenIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := connect(t)
		go drain(peer, nil)
		ch := c.channelOf(1)
		if err := ch.print(make([]byte, 4<<20)); !errors.Is(err, errStalled) {
			t.Errorf("a screen ends with %v", err)
		}
		ch = c.channelOf(2)
		if err := ch.print(make([]byte, maxUnreadBytes)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- ch.print(make([]byte, maxHeld)) }()
		time.Sleep(10 * conn.Stall)
		select {
		case err := <-done:
			t.Fatalf("what a program prints ends with %v", err)
		default:
		}
		taken := int64(maxUnreadBytes)
		if err := ch.acknowledge(request{Bytes: &taken}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("acknowledged: %v", err)
		}
	})
}

// A mistake ends one channel, and the client is told.
func TestChannelFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := connect(t)
		got := make(chan message, 4)
		go drain(peer, func(_ websocket.MessageType, b []byte) {
			var m message
			if err := json.Unmarshal(b, &m); err != nil {
				t.Error(err)
			}
			got <- m
		})
		c.channelOf(1).run(func(*channel) (any, error) { panic("a mistake") })
		if m := <-got; m.Op != "closed" || m.Channel != 1 || m.Error == nil || m.Error.Status != http.StatusInternalServerError {
			t.Errorf("the client is told %+v", m)
		}
		if c.ctx.Err() != nil || len(c.channels) > 0 || c.ending > 0 {
			t.Errorf("the connection: %v; %d channels, %d end", c.ctx.Err(), len(c.channels), c.ending)
		}
	})
}

// Input counts as waiting until the program has it.
func TestInputCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := connect(t)
		go drain(peer, nil)
		ch := c.channelOf(1)
		frame := append([]byte{0, 0, 0, 1}, make([]byte, maxQueued/2+1)...)
		if err := c.input(frame); err != nil {
			t.Fatal(err)
		}
		keys, _, done := ch.takeInput()
		if len(keys) != len(frame)-4 || c.input(frame) == nil {
			t.Errorf("%d bytes are typed, and more may wait", len(keys))
		}
		done()
		if err := c.input(frame); err != nil || c.queued != len(frame)-4 {
			t.Errorf("afterwards: %v, %d bytes wait", err, c.queued)
		}
	})
}
