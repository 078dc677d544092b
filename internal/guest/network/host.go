package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
)

// host sends requests to the host. It keeps a few idle connections, since a new one costs more
// than a request.
type host struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	idle   []net.Conn
	closed bool
	// busyUntil is when requests are sent again, after the host has answered that the sandbox
	// sends too many.
	busyUntil time.Time
	cache     map[string]cachedAnswer // the host's last answers, by name
}

// cachedAnswer is the host's answer about a name.
type cachedAnswer struct {
	code  wire.NetCode
	until time.Time
}

const (
	// busyPause is how long no request is sent after NetBusy.
	busyPause = 50 * time.Millisecond
	// maxCached bounds the number of cached answers.
	maxCached = 4096
	maxIdle   = 4
	// restartLimit is how long the host may be unreachable before a request fails: a server
	// that is restarted is back within a second or two.
	restartLimit = 5 * time.Second
	// answerLimit bounds the wait for the host's answer. The host may have to ask a person, to resolve a name and to
	// dial first.
	answerLimit = 60 * time.Second
)

// refusal is an answer of the host other than NetOK, as an error.
type refusal struct{ wire.NetReply }

func (r refusal) Error() string { return r.Message }

// connect makes the host connect to a destination, and returns a connection with the bytes of
// that TCP connection. Its error is a refusal, or says why the host did not answer. Who finds out whose the connection is,
// which the host wants to know of one that it refuses.
func (h *host) connect(ctx context.Context, to wire.NetRequest, who func() wire.Who) (halfCloser, error) {
	c, reply, err := h.roundTrip(ctx, to)
	if err != nil {
		return nil, err
	}
	if reply.Code != wire.NetOK {
		h.finish(c, reply, who)
		if reply.Code == wire.NetBusy {
			h.cacheAnswer("", reply.Code)
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
	return time.Now().Before(h.busyUntil)
}

// lookup asks the host whether the policy allows a name, and whether the name exists. Who finds out
// who has asked.
func (h *host) lookup(ctx context.Context, name string, who func() wire.Who) (wire.NetCode, error) {
	h.mu.Lock()
	cached, ok := h.cache[name]
	h.mu.Unlock()
	if ok && time.Now().Before(cached.until) {
		return cached.code, nil
	}
	if h.isBusy() {
		return wire.NetBusy, nil
	}
	c, reply, err := h.roundTrip(ctx, wire.NetRequest{Kind: wire.NetLookup, Name: name})
	if err != nil {
		return 0, err
	}
	h.finish(c, reply, who)
	h.cacheAnswer(name, reply.Code)
	return reply.Code, nil
}

// finish tells the host whose the request was that it has refused, if it wants to know, and keeps the connection.
func (h *host) finish(c net.Conn, reply wire.NetReply, who func() wire.Who) {
	if reply.AsksWho {
		told := wire.NetRequest{Kind: wire.NetWho, Who: who()}
		c.SetDeadline(time.Now().Add(answerLimit))
		err := wire.WriteNetRequest(c, told)
		if err == nil {
			reply, err = wire.ReadNetReply(c)
		}
		if err != nil || reply.Code != wire.NetOK {
			c.Close()
			return
		}
		c.SetDeadline(time.Time{})
	}
	h.putConn(c)
}

// cacheAnswer keeps an answer for as long as programs may cache it.
func (h *host) cacheAnswer(name string, code wire.NetCode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if code == wire.NetBusy {
		h.busyUntil = time.Now().Add(busyPause)
		return
	}
	if len(h.cache) >= maxCached || h.cache == nil {
		h.cache = map[string]cachedAnswer{}
	}
	h.cache[name] = cachedAnswer{code, time.Now().Add(ttl * time.Second)}
}

// roundTrip sends a request and reads the answer. An idle connection may be broken, since the
// host was restarted: then the request is sent on another one.
func (h *host) roundTrip(ctx context.Context, r wire.NetRequest) (net.Conn, wire.NetReply, error) {
	for {
		c, isNew, err := h.getConn(ctx)
		if err != nil {
			return nil, wire.NetReply{}, err
		}
		c.SetDeadline(time.Now().Add(answerLimit))
		var reply wire.NetReply
		r.TellsWho = true
		if err = wire.WriteNetRequest(c, r); err == nil {
			reply, err = wire.ReadNetReply(c)
		}
		if err == nil {
			c.SetDeadline(time.Time{})
			return c, reply, nil
		}
		c.Close()
		if isNew || ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, wire.NetReply{}, err
		}
	}
}

// getConn returns an idle connection, or a new one.
func (h *host) getConn(ctx context.Context) (c net.Conn, isNew bool, err error) {
	h.mu.Lock()
	if n := len(h.idle); n > 0 {
		c = h.idle[n-1]
		h.idle = h.idle[:n-1]
		h.mu.Unlock()
		return c, false, nil
	}
	h.mu.Unlock()
	deadline := time.Now().Add(restartLimit)
	for {
		if c, err = h.dial(ctx); err == nil || time.Now().After(deadline) {
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
func (h *host) putConn(c net.Conn) {
	h.mu.Lock()
	keep := !h.closed && len(h.idle) < maxIdle
	if keep {
		h.idle = append(h.idle, c)
	}
	h.mu.Unlock()
	if !keep {
		c.Close()
	}
}

// preconnect makes an idle connection, so that the next request need not wait for one.
func (h *host) preconnect(ctx context.Context) {
	h.mu.Lock()
	enough := h.closed || len(h.idle) >= maxIdle
	h.mu.Unlock()
	if enough {
		return
	}
	if c, err := h.dial(ctx); err == nil {
		h.putConn(c)
	}
}

func (h *host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, c := range h.idle {
		c.Close()
	}
	h.idle = nil
}
