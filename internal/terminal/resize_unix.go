//go:build unix

package terminal

import (
	"os"
	"os/signal"
	"syscall"
)

// NotifyResize sends to a channel when the size of this process's terminal may have changed, until stop is called.
func NotifyResize(to chan<- os.Signal) (stop func()) {
	signal.Notify(to, syscall.SIGWINCH)
	return func() { signal.Stop(to) }
}
