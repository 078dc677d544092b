package gateway

import (
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/limit"
)

// answersHeader is the header in which the SDK carries where the answer to a request
// counts. What a client sends in it is thrown away.
const answersHeader = "Sandlot-Answers"

// unread are the answers of an endpoint's requests that are on their way, by what
// stands in answersHeader.
type unread struct {
	mu   sync.Mutex
	last int
	all  map[string]*limit.Holds
}

// put keeps answers until forget is called.
func (u *unread) put(a *limit.Holds) (key string, forget func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[string]*limit.Holds{}
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
func (u *unread) to(x *mcp.RequestExtra) *limit.Holds {
	if x == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all[x.Header.Get(answersHeader)]
}
