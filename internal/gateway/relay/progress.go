package relay

import (
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/tool"
)

// progress sends a client notifications of its call's progress: each text of the call, and, when
// there is none for a while, the time since the start.
type progress struct {
	send  func(*mcp.ProgressNotificationParams)
	start time.Time

	mu           sync.Mutex
	lastProgress float64
	timer        *time.Timer
	stopped      bool
}

// firstProgress is after how long without a text the client is notified of the time at first, and progressInterval after
// how long again.
const (
	firstProgress    = 2 * time.Second
	progressInterval = 5 * time.Second
)

// Report makes a call tell its client its progress by send, until stop.
func Report(c *tool.Call, send func(*mcp.ProgressNotificationParams)) (stop func()) {
	p := &progress{send: send, start: time.Now()}
	p.mu.Lock() // the timer may fire at once
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(firstProgress, func() {
		p.notify(fmt.Sprintf("Still running after %d s", int(time.Since(p.start).Seconds())))
	})
	c.Progress = p.notify
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = true
		p.timer.Stop()
	}
}

// notify sends a notification. The progress is the number of seconds since the start, and is
// always larger than before.
func (p *progress) notify(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.lastProgress = max(time.Since(p.start).Seconds(), p.lastProgress+0.001)
	p.send(&mcp.ProgressNotificationParams{Message: text, Progress: p.lastProgress})
	p.timer.Reset(progressInterval)
}
