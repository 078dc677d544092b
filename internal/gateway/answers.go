package gateway

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/limit"
)

// answersHeader is a header of requests to the SDK: the key of the request's entry in
// runningAnswers. It replaces what a client sends in it.
const answersHeader = "Sandlot-Answers"

// runningAnswers are the reservations for the answers to an endpoint's running requests, by
// the value of answersHeader. The SDK's handlers get only the request's headers, and find the
// reservations here.
type unread struct {
	last atomic.Int64
	all  sync.Map // of *limit.Holds
}

// add adds an entry until remove is called, and returns its key for answersHeader.
func (u *unread) put(a *limit.Holds) (header string, remove func()) {
	header = strconv.FormatInt(u.last.Add(1), 10)
	u.all.Store(header, a)
	return header, func() { u.all.Delete(header) }
}

// find returns the entry of a request from the SDK; nil: the answer is not counted.
func (u *unread) of(x *mcp.RequestExtra) *limit.Holds {
	if x == nil {
		return nil
	}
	entry, _ := u.all.Load(x.Header.Get(answersHeader))
	answers, _ := entry.(*limit.Holds)
	return answers
}
