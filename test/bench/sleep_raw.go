package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// rawSleepProgram is the program of a rawSleeper: it counts lines, and connects again when it is restored.
const rawSleepProgram = `import socket, sys, time
kept = 0
while True:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect("/run/sandlot/ask")
        while line := s.recv(65536):
            if line == b"end\n": sys.exit()
            kept += 1
            s.sendall(b"%d\n" % kept)
    except OSError:
        time.sleep(0.001)
    s.close()
`

// rawSleeper is a Python in a sandbox that gVisor writes to an image, and restores, without Sandlot.
type rawSleeper struct {
	*rawPython
	count int
}

func (b *bundle) newSleeper() (*rawSleeper, error) {
	s, err := b.boot("sleeper", rawSleepProgram)
	if err != nil {
		return nil, err
	}
	r := &rawSleeper{rawPython: s}
	if err := r.ask(); err != nil {
		return nil, errors.Join(err, r.finish())
	}
	return r, nil
}

// ask makes the Python count.
func (r *rawSleeper) ask() error {
	r.count++
	got, err := r.call(r.bundle.ctx, "", args{"code": "next"})
	if err == nil && got.text != fmt.Sprint(r.count) {
		err = fmt.Errorf("raw gVisor: a wrong answer: %q, not %d", got.text, r.count)
	}
	return err
}

// image returns the folder of the next image: gVisor writes over none.
func (r *rawSleeper) image() string {
	return filepath.Join(r.bundle.dir, r.id, fmt.Sprint("image-", r.count))
}

// sleep writes the image, which ends the sandbox. Nothing is made durable.
func (r *rawSleeper) sleep() error {
	r.close()
	if err := os.MkdirAll(r.image(), 0o700); err != nil {
		return err
	}
	return r.runsc("checkpoint", "-image-path", r.image(), "-compression", "none", "-exclude-committed-zero-pages",
		r.id)
}

func (r *rawSleeper) runsc(args ...string) error {
	out, err := r.bundle.command(r.id, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// prepare removes what is left of the container, whose image is there.
func (r *rawSleeper) prepare() error {
	_ = r.cmd.Wait() // the image was made, so that it has ended
	return r.runsc("delete", "-force", r.id)
}

// wake restores the sandbox, and makes the Python count.
func (r *rawSleeper) wake() error {
	dir := filepath.Join(r.bundle.dir, r.id)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "sock", "ask")})
	if err != nil {
		return err
	}
	defer l.Close()
	r.cmd = r.bundle.command(r.id, "restore", "-bundle", dir, "-image-path", r.image(), r.id)
	var says strings.Builder
	r.cmd.Stdout, r.cmd.Stderr = &says, &says
	if err := r.cmd.Start(); err != nil {
		return err
	}
	l.SetDeadline(time.Now().Add(30 * time.Second))
	if r.conn, err = l.Accept(); err != nil {
		return errors.Join(fmt.Errorf("raw gVisor: %w", err), errors.New(says.String()))
	}
	return r.ask()
}

// finish ends the Python, if it runs, and removes the sandbox.
func (r *rawSleeper) finish() error {
	_, asked := fmt.Fprintln(r.conn, "end")
	if asked != nil { // it sleeps, or an error has left it somewhere between
		_ = r.runsc("kill", r.id, "KILL") // it may have ended
	}
	return r.end()
}
