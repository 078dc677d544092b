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
type runningAnswers struct {
	lastEntry atomic.Int64
	entries   sync.Map // of *limit.Holds
}

// add adds an entry until remove is called, and returns its key for answersHeader.
func (u *runningAnswers) add(answers *limit.Answers) (header string, remove func()) {
	header = strconv.FormatInt(u.lastEntry.Add(1), 10)
	u.entries.Store(header, answers)
	return header, func() { u.entries.Delete(header) }
}

// find returns the entry of a request from the SDK; nil: the answer is not counted.
func (u *runningAnswers) find(extra *mcp.RequestExtra) *limit.Answers {
	if extra == nil {
		return nil
	}
	entry, _ := u.entries.Load(extra.Header.Get(answersHeader))
	answers, _ := entry.(*limit.Answers)
	return answers
}
