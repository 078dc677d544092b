package gateway

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/limit"
)

// answersHeader is the header that leads a request through the SDK to its entry in
// unread. What a client sends in it is thrown away.
const answersHeader = "Sandlot-Answers"

// unread is where the answers to an endpoint's running requests count until the clients
// have read them, by the value of answersHeader.
type unread struct {
	last atomic.Int64
	all  sync.Map // of *limit.Holds
}

// put adds an entry until remove is called.
func (u *unread) put(a *limit.Holds) (header string, remove func()) {
	header = strconv.FormatInt(u.last.Add(1), 10)
	u.all.Store(header, a)
	return header, func() { u.all.Delete(header) }
}

// of returns the entry of a request that came through the SDK; nil: the answer counts
// nowhere.
func (u *unread) of(x *mcp.RequestExtra) *limit.Holds {
	if x == nil {
		return nil
	}
	entry, _ := u.all.Load(x.Header.Get(answersHeader))
	answers, _ := entry.(*limit.Holds)
	return answers
}
