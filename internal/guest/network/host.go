package network

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
)

// host sends requests to the host. It keeps a few connections ready, since making one
// costs more than using it.
type host struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	spare  []net.Conn
	closed bool
	// busy is until when no request is sent, as the host has answered that the sandbox
	// sends too many.
	busy  time.Time
	known map[string]known // the host's answers of a moment ago, by name
}

// known is the host's answer about a name.
type known struct {
	code  wire.NetCode
	until time.Time
}

const (
	// busyPause is how long no request is sent to a host that is busy.
	busyPause = 50 * time.Millisecond
	// maxKnown bounds the names in known.
	maxKnown = 4096
	maxSpare = 4
	// restartLimit is how long the host may be away before a request fails: a server
	// that is started again is back within a second or two.
	restartLimit = 5 * time.Second
	// answerLimit bounds the wait for the host's answer, which may have to dial.
	answerLimit = 40 * time.Second
)

// refusal is the host's answer to a request that it does not grant.
type refusal struct{ wire.NetReply }

func (r refusal) Error() string { return r.Message }

// connect returns a connection that carries the bytes of a TCP connection. Its error is
// a refusal, or says why the host did not answer.
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

// isBusy says whether no request is to be sent now.
func (h *host) isBusy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.busy)
}

// lookup asks whether a name may be reached, and exists.
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

// learn keeps an answer for as long as programs may.
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

// ask sends a request on a connection and reads its answer. A spare connection may have
// died with the host: then a new one is used.
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

// get returns a spare connection, or a new one.
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

// put makes a connection a spare one, or closes it.
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

// prepare makes a spare connection, so that the next request need not wait.
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
