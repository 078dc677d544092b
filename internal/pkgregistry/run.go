package pkgregistry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// The output of a tool is usually a few kilobytes, within a second.
const maxOutput = 1 << 20

var timeLimit = 20 * time.Second // tests shorten it

var errFlood = fmt.Errorf("it printed more than %d MiB", maxOutput>>20)

// run runs a program of the host, with env in addition to the server's environment, and
// returns its standard output. It kills the program and all that it started when the
// time limit has passed or the program prints too much.
func run(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeLimit, fmt.Errorf("it did not answer within %v", timeLimit))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out := &bounded{full: func() { stop(errFlood) }}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/" // where no project has settings
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	group := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = group
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // it ended, but something that it started has its output open
		group()
		err = nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return out.kept.Bytes(), err
}

// bounded is a buffer that accepts at most maxOutput bytes. The bytes.Buffer is not
// embedded: its ReadFrom would read without a limit.
type bounded struct {
	kept bytes.Buffer
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > maxOutput {
		b.full()
		return 0, errFlood
	}
	return b.kept.Write(p)
}
