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

	mu           sync.Mutex
	lastProgress float64
	timer        *time.Timer
	stopped      bool
}

// progressInterval is after how long without a text the client is notified of the time.
const progressInterval = 5 * time.Second

// NewProgress returns a Progress; the caller must call Stop.
func NewProgress(send SendProgress) *Progress {
	p := &Progress{send: send, start: time.Now()}
	p.timer = time.AfterFunc(progressInterval, func() {
		p.Notify(fmt.Sprintf("Still running after %d s", int(time.Since(p.start).Seconds())))
	})
	return p
}

// Notify sends a notification. The progress is the number of seconds since the start, and is
// always larger than before.
func (p *Progress) Notify(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.lastProgress = max(time.Since(p.start).Seconds(), p.lastProgress+0.001)
	p.send(&mcp.ProgressNotificationParams{Message: text, Progress: p.lastProgress})
	p.timer.Reset(progressInterval)
}

// Stop ends the notifications.
func (p *Progress) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.timer.Stop()
}
