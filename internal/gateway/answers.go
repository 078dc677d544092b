package gateway

import (
	"context"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/limit"
)

// answers is what the answers to one request, or to one line, hold of their
// principal's bytes until the client has taken them. A nil one counts nothing.
type answers struct {
	limits *limit.Book
	owner  string

	mu   sync.Mutex
	all  []*limit.Held
	over bool
}

// held returns what one answer may hold.
func (a *answers) held() *limit.Held {
	if a == nil {
		return nil
	}
	h := a.limits.Held(a.owner, limit.Answers)
	a.add(h)
	return h
}

// add takes over what an answer holds that was made before.
func (a *answers) add(h *limit.Held) {
	if a == nil {
		h.Release()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		h.Release() // nobody reads it
		return
	}
	a.all = append(a.all, h)
}

// counted counts n bytes that are about to be put together.
func counted(ctx context.Context, held *limit.Held, n int) error {
	if n <= limit.Large {
		return nil
	}
	return held.Wait(ctx, int64(n))
}

// release says that the answers were written, or that nobody takes them.
func (a *answers) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, h := range a.all {
		h.Release()
	}
	a.all = nil
}

// answersHeader is the header in which the SDK carries where the answer to a request
// counts. What a client sends in it is thrown away.
const answersHeader = "Sandlot-Answers"

// unread are the answers of an endpoint's requests that are on their way, by what
// stands in answersHeader.
type unread struct {
	mu   sync.Mutex
	last int
	all  map[string]*answers
}

// put keeps answers until forget is called.
func (u *unread) put(a *answers) (key string, forget func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[string]*answers{}
	}
	u.last++
	key = strconv.Itoa(u.last)
	u.all[key] = a
	return key, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.all, key)
	}
}

// to returns where the answer to a request counts that came through the SDK; nil:
// nowhere.
func (u *unread) to(x *mcp.RequestExtra) *answers {
	if x == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[x.Header.Get(answersHeader)]
}
