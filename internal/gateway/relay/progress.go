package relay

import (
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// SendProgress sends a progress notification to a client.
type SendProgress = func(*mcp.ProgressNotificationParams)

// Progress sends a client notifications of its call's progress: each text of the call, and, when
// there is none for a while, the time since the start.
type Progress struct {
	send  SendProgress
	start time.Time

	mu      sync.Mutex
	last    float64
	timer   *time.Timer
	stopped bool
}

// progressInterval is after how long without a text the client is notified of the time.
const quiet = 5 * time.Second

// NewProgress returns a Progress; the caller must call Stop.
func NewProgress(send SendProgress) *Progress {
	p := &Progress{send: send, start: time.Now()}
	p.timer = time.AfterFunc(quiet, func() {
		p.Say(fmt.Sprintf("Still running after %d s", int(time.Since(p.start).Seconds())))
	})
	return p
}

// Notify sends a notification. The progress is the number of seconds since the start, and is
// always larger than before.
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

// Stop ends the notifications.
func (p *Progress) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.timer.Stop()
}
