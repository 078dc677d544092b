package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// host asks the host. It keeps a few connections ready, since making one costs
// more than using it.
type host struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu    sync.Mutex
	spare []net.Conn
	over  bool
	// busy is until when the host need not be asked: it has said that this
	// sandbox asks too much.
	busy time.Time
	// known holds what the host said of names a moment ago.
	known map[string]known
}

type known struct {
	code  agentv1.NetReply_Code
	until time.Time
}

const (
	// rest is how long the host is left alone when it is busy.
	rest = 50 * time.Millisecond
	// maxKnown bounds the names that are held.
	maxKnown = 4096
)

const (
	maxSpare = 4
	// away is how long the host may be away before a request fails: a server
	// that is started again is back within a second or two.
	away = 5 * time.Second
	// answer bounds the wait for the host's answer, which may have to dial.
	answer = 40 * time.Second
)

// errRefused is in the chain of what the host refuses.
var errRefused = errors.New("refused")

// refusal is an answer of the host that is not OK.
type refusal struct{ *agentv1.NetReply }

func (r refusal) Error() string { return r.Message }
func (r refusal) Unwrap() error { return errRefused }

// connect returns a connection that carries the bytes of a TCP connection.
func (h *host) connect(ctx context.Context, to *agentv1.NetConnect) (halfCloser, *agentv1.NetReply, error) {
	c, r, err := h.ask(ctx, &agentv1.NetRequest{Kind: &agentv1.NetRequest_Connect{Connect: to}})
	if err != nil {
		return nil, r, err
	}
	if r.Code != agentv1.NetReply_OK {
		h.put(c)
		if r.Code == agentv1.NetReply_BUSY {
			h.learn("", r.Code)
		}
		return nil, r, refusal{r}
	}
	out, ok := c.(halfCloser)
	if !ok {
		c.Close()
		return nil, r, fmt.Errorf("a %T has no half close", c)
	}
	return out, r, nil
}

// tired says whether the host need not be asked now.
func (h *host) tired() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.busy)
}

// lookup asks whether a name may be reached, and exists.
func (h *host) lookup(ctx context.Context, name string) (agentv1.NetReply_Code, error) {
	now := time.Now()
	h.mu.Lock()
	k, ok := h.known[name]
	busy := now.Before(h.busy)
	h.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.code, nil
	}
	if busy {
		return agentv1.NetReply_BUSY, nil
	}
	c, r, err := h.ask(ctx, &agentv1.NetRequest{Kind: &agentv1.NetRequest_Lookup{Lookup: &agentv1.NetLookup{Name: name}}})
	if err != nil {
		return 0, err
	}
	h.put(c)
	h.learn(name, r.Code)
	return r.Code, nil
}

// learn holds an answer for as long as programs may.
func (h *host) learn(name string, code agentv1.NetReply_Code) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if code == agentv1.NetReply_BUSY {
		h.busy = time.Now().Add(rest)
		return
	}
	if len(h.known) >= maxKnown || h.known == nil {
		h.known = map[string]known{}
	}
	h.known[name] = known{code, time.Now().Add(ttl * time.Second)}
}

// ask sends a request on a connection and reads its answer. A spare connection
// may have died with the host: then a new one is asked.
func (h *host) ask(ctx context.Context, r *agentv1.NetRequest) (net.Conn, *agentv1.NetReply, error) {
	for {
		c, fresh, err := h.get(ctx)
		if err != nil {
			return nil, nil, err
		}
		reply := new(agentv1.NetReply)
		c.SetDeadline(time.Now().Add(answer))
		if err = wire.WriteMessage(c, r); err == nil {
			err = wire.ReadBounded(c, reply, wire.MaxNet)
		}
		if err == nil {
			c.SetDeadline(time.Time{})
			return c, reply, nil
		}
		c.Close()
		if fresh || ctx.Err() != nil {
			return nil, nil, err
		}
	}
}

func (h *host) get(ctx context.Context) (c net.Conn, fresh bool, err error) {
	h.mu.Lock()
	if n := len(h.spare); n > 0 {
		c = h.spare[n-1]
		h.spare = h.spare[:n-1]
		h.mu.Unlock()
		return c, false, nil
	}
	h.mu.Unlock()
	until := time.Now().Add(away)
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

func (h *host) put(c net.Conn) {
	h.mu.Lock()
	keep := !h.over && len(h.spare) < maxSpare
	if keep {
		h.spare = append(h.spare, c)
	}
	h.mu.Unlock()
	if !keep {
		c.Close()
	}
}

// prepare makes a spare connection, so that the next request need not wait.
func (h *host) prepare(ctx context.Context) {
	h.mu.Lock()
	enough := h.over || len(h.spare) >= maxSpare
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
	h.over = true
	for _, c := range h.spare {
		c.Close()
	}
	h.spare = nil
}
