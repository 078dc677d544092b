package pkgregistry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sandlot/internal/processgroup"
)

// The output of a tool is usually a few kilobytes, within a second.
const maxOutput = 1 << 20

var toolTimeout = 20 * time.Second // tests shorten it

var errTooMuchOutput = fmt.Errorf("it printed more than %d MiB", maxOutput>>20)

// run runs a program of the host, with env in addition to the server's environment, and
// returns its standard output. It kills the program and all that it started when the
// time limit has passed or the program prints too much.
func run(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, toolTimeout, fmt.Errorf("it did not answer within %v", toolTimeout))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out := &boundedBuffer{onFull: func() { stop(errTooMuchOutput) }}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.VolumeName(os.TempDir()) + string(filepath.Separator) // where no project has settings
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = out
	var group *processgroup.Group
	started := make(chan struct{})
	cmd.Cancel = func() error {
		<-started
		return group.Kill()
	}
	cmd.WaitDelay = time.Second
	group, err := processgroup.Start(cmd)
	close(started)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) { // it ended, but something that it started has its output open
		group.Kill()
		err = nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return out.buf.Bytes(), err
}

// boundedBuffer is a buffer that accepts at most maxOutput bytes. The bytes.Buffer is not
// embedded: its ReadFrom would read without a limit.
type boundedBuffer struct {
	buf    bytes.Buffer
	onFull func()
}

func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > maxOutput {
		b.onFull()
		return 0, errTooMuchOutput
	}
	return b.buf.Write(p)
}
