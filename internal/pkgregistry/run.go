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

// An answer is a few kilobytes and takes less than a second.
const maxOutput = 1 << 20

var timeLimit = 20 * time.Second // less in tests

var errFlood = errors.New("it printed more than an answer")

// run starts one of the machine's programs with variables beside the server's
// own, and returns what it prints. It and all that it started are ended when
// the time is over or when it prints too much.
func run(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeLimit, fmt.Errorf("it did not answer within %v", timeLimit))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out := &bounded{full: func() { stop(errFlood) }}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/" // no project's settings
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	group := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = group
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // it ended, and something that it started did not
		group()
		err = nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return out.kept.Bytes(), err
}

// bounded keeps what is written until it is too much. The buffer is not
// embedded: its ReadFrom would take everything.
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
