package network

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
)

// host sends requests to the host. It keeps a few idle connections, since a new one costs more
// than a request.
type host struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	spare  []net.Conn
	closed bool
	// busyUntil is when requests are sent again, after the host has answered that the sandbox
	// sends too many.
	busy  time.Time
	known map[string]known // the host's last answers, by name
}

// cachedAnswer is the host's answer about a name.
type known struct {
	code  wire.NetCode
	until time.Time
}

const (
	// busyPause is how long no request is sent after NetBusy.
	busyPause = 50 * time.Millisecond
	// maxCached bounds the number of cached answers.
	maxKnown = 4096
	maxSpare = 4
	// restartLimit is how long the host may be unreachable before a request fails: a server
	// that is restarted is back within a second or two.
	restartLimit = 5 * time.Second
	// answerLimit bounds the wait for the host's answer. The host may have to dial first.
	answerLimit = 40 * time.Second
)

// refusal is an answer of the host other than NetOK, as an error.
type refusal struct{ wire.NetReply }

func (r refusal) Error() string { return r.Message }

// connect makes the host connect to a destination, and returns a connection with the bytes of
// that TCP connection. Its error is a refusal, or says why the host did not answer.
func (h *host) connect(ctx context.Context, to wire.NetRequest) (halfCloser, error) {
	c, reply, err := h.ask(ctx, to)
	if err != nil {
		return nil, err
	}
	if reply.Code != wire.NetOK {
		h.put(c)
		if reply.Code == wire.NetBusy {
			h.learn("", reply.Code)
		}
		return nil, refusal{reply}
	}
	out, ok := c.(halfCloser)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("a %T has no half close", c)
	}
	return out, nil
}

// isBusy reports whether no request may be sent now.
func (h *host) isBusy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.busy)
}

// lookup asks the host whether the policy allows a name, and whether the name exists.
func (h *host) lookup(ctx context.Context, name string) (wire.NetCode, error) {
	h.mu.Lock()
	k, ok := h.known[name]
	h.mu.Unlock()
	if ok && time.Now().Before(k.until) {
		return k.code, nil
	}
	if h.isBusy() {
		return wire.NetBusy, nil
	}
	c, reply, err := h.ask(ctx, wire.NetRequest{Kind: wire.NetLookup, Name: name})
	if err != nil {
		return 0, err
	}
	h.put(c)
	h.learn(name, reply.Code)
	return reply.Code, nil
}

// cacheAnswer keeps an answer for as long as programs may cache it.
func (h *host) learn(name string, code wire.NetCode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if code == wire.NetBusy {
		h.busy = time.Now().Add(busyPause)
		return
	}
	if len(h.known) >= maxKnown || h.known == nil {
		h.known = map[string]known{}
	}
	h.known[name] = known{code, time.Now().Add(ttl * time.Second)}
}

// roundTrip sends a request and reads the answer. An idle connection may be broken, since the
// host was restarted: then the request is sent on another one.
func (h *host) ask(ctx context.Context, r wire.NetRequest) (net.Conn, wire.NetReply, error) {
	for {
		c, isNew, err := h.get(ctx)
		if err != nil {
			return nil, wire.NetReply{}, err
		}
		c.SetDeadline(time.Now().Add(answerLimit))
		var reply wire.NetReply
		if err = wire.WriteNetRequest(c, r); err == nil {
			reply, err = wire.ReadNetReply(c)
		}
		if err == nil {
			c.SetDeadline(time.Time{})
			return c, reply, nil
		}
		c.Close()
		if isNew || ctx.Err() != nil {
			return nil, wire.NetReply{}, err
		}
	}
}

// getConn returns an idle connection, or a new one.
func (h *host) get(ctx context.Context) (c net.Conn, isNew bool, err error) {
	h.mu.Lock()
	if n := len(h.spare); n > 0 {
		c = h.spare[n-1]
		h.spare = h.spare[:n-1]
		h.mu.Unlock()
		return c, false, nil
	}
	h.mu.Unlock()
	until := time.Now().Add(restartLimit)
	for {
		if c, err = h.dial(ctx); err == nil || time.Now().After(until) {
			return c, true, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, true, ctx.Err()
		}
	}
}

// putConn keeps a connection as an idle one, or closes it when there are enough.
func (h *host) put(c net.Conn) {
	h.mu.Lock()
	room := !h.closed && len(h.spare) < maxSpare
	if room {
		h.spare = append(h.spare, c)
	}
	h.mu.Unlock()
	if !room {
		c.Close()
	}
}

// preconnect makes an idle connection, so that the next request need not wait for one.
func (h *host) prepare(ctx context.Context) {
	h.mu.Lock()
	enough := h.closed || len(h.spare) >= maxSpare
	h.mu.Unlock()
	if enough {
		return
	}
	if c, err := h.dial(ctx); err == nil {
		h.put(c)
	}
}

func (h *host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, c := range h.spare {
		c.Close()
	}
	h.spare = nil
}
