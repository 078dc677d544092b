package autostart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// stopTimeout is how long a server may take to end: as long as the definitions give it, and some.
const stopTimeout = 2 * time.Minute

// await waits until something is so.
func await(ctx context.Context, isSo func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for {
		if done, err := isSo(); done || err != nil {
			return err
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the server does not end: %w", ctx.Err())
		}
	}
}

// RunProgram runs a program of the system.
func RunProgram(ctx context.Context, variables []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), variables...)
	output, err := cmd.CombinedOutput()
	return string(output), err
}
