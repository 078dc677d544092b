package terminal

import (
	"os"
	"sync"
	"time"
)

// resizeInterval is how often the size of the terminal is looked at: Windows has no signal for it.
const resizeInterval = 500 * time.Millisecond

// NotifyResize sends to a channel when the size of this process's terminal may have changed, until stop is called.
func NotifyResize(to chan<- os.Signal) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(resizeInterval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			select {
			case to <- os.Interrupt: // which one does not matter
			default:
			}
		}
	})
	return func() {
		close(done)
		running.Wait()
	}
}
