package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"sandlot/internal/runtime/docker/dockertest"
)

// harness lets this program use what tests use to start a Docker daemon. Its methods end the goroutine of borrowed
// when the code for tests calls Fatal.
type harness struct {
	testing.TB
	ctx   context.Context
	errs  []error
	atEnd []func()
}

func (h *harness) Helper()                  {}
func (h *harness) Context() context.Context { return h.ctx }
func (h *harness) Cleanup(f func())         { h.atEnd = append(h.atEnd, f) }
func (h *harness) Error(args ...any)        { h.errs = append(h.errs, errors.New(fmt.Sprint(args...))) }
func (h *harness) Errorf(text string, args ...any) {
	h.errs = append(h.errs, fmt.Errorf(text, args...))
}
func (h *harness) Fatal(args ...any) {
	h.Error(args...)
	runtime.Goexit()
}
func (h *harness) Fatalf(text string, args ...any) {
	h.Errorf(text, args...)
	runtime.Goexit()
}

// do runs code that is written for tests, and returns its errors.
func (h *harness) do(f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
	err := errors.Join(h.errs...)
	h.errs = nil
	return err
}

// engine is a Docker daemon of this program, with the image dockertest.BaseImage.
type engine struct{ *dockertest.Daemon }

// withEngine starts a Docker daemon, runs f, and ends the daemon. It installs Docker's engine if it is not there.
func (b *bench) withEngine(f func(*engine) error) error {
	if os.Getuid() != 0 {
		return errors.New("a Docker engine of its own needs root")
	}
	h := &harness{ctx: b.ctx}
	var e engine
	err := h.do(func() { e.Daemon = dockertest.Start(h) })
	if err == nil {
		err = f(&e)
	}
	return errors.Join(err, h.do(func() {
		for i := len(h.atEnd) - 1; i >= 0; i-- {
			h.atEnd[i]()
		}
	}))
}

// docker runs a command of Docker's client, and returns its output.
func (e *engine) docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+e.Host)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}
