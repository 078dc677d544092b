package relay

import (
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Progress tells a client that waits what happens: each new text, and, when
// there is none for a while, that time passes.
type Progress struct {
	send  func(*mcp.ProgressNotificationParams)
	start time.Time

	mu      sync.Mutex
	last    float64
	timer   *time.Timer
	stopped bool
}

// quiet is how long a call says nothing before it says that it still runs.
const quiet = 5 * time.Second

// NewProgress returns one that sends by send.
func NewProgress(send func(*mcp.ProgressNotificationParams)) *Progress {
	p := &Progress{send: send, start: time.Now()}
	p.timer = time.AfterFunc(quiet, func() {
		p.Say(fmt.Sprintf("Still running after %d s", int(time.Since(p.start).Seconds())))
	})
	return p
}

// Say sends a notification. Its number is the seconds since the start, and
// always grows.
func (p *Progress) Say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.last = max(time.Since(p.start).Seconds(), p.last+0.001)
	p.send(&mcp.ProgressNotificationParams{Message: text, Progress: p.last})
	p.timer.Reset(quiet)
}

// Stop ends it: nothing is sent any more.
func (p *Progress) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.timer.Stop()
}
