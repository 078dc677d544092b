package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is one running server with a state folder of its own.
type server struct {
	*bench
	state string
	url   string // without a path
	port  int
	env   []string
	cmd   *exec.Cmd
	log   *tail
}

// tail keeps the last part of a program's output.
type tail struct {
	mu   sync.Mutex
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	t.data = t.data[max(0, len(t.data)-4<<10):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

// with starts a server, runs f, and ends the server. Settings are environment variables: NAME=VALUE.
func (b *bench) with(f func(*server) error, settings ...string) (err error) {
	state, err := tempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	port, err := freePort()
	if err != nil {
		return err
	}
	s := &server{bench: b, state: state, port: port, url: fmt.Sprintf("http://127.0.0.1:%d", port), log: &tail{},
		env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "SANDLOT_PACKAGES_PYTHON=none",
			"SANDLOT_PACKAGES_NODE=none", "SANDLOT_PACKAGES_GO=none"}, settings...)}
	if err := s.begin(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	if err := s.ready(); err != nil {
		return err
	}
	return f(s)
}

// tempDir creates a folder whose path has no symbolic link.
func tempDir() (string, error) {
	dir, err := os.MkdirTemp("", "sandlot-bench-")
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// begin starts the process.
func (s *server) begin() error {
	s.cmd = exec.Command(filepath.Join(s.bin, "sandlot"), "serve", "--state-dir", s.state, "--port",
		strconv.Itoa(s.port), "--host", "127.0.0.1")
	s.cmd.Env = s.env
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program
	return s.cmd.Start()
}

// ready waits until the server answers.
func (s *server) ready() error {
	for range 3000 {
		r, err := http.Get(s.url + "/readyz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("the server does not come up")
}

// kill kills the server, as in a crash.
func (s *server) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// end stops all sessions and the server. If sandboxes are left on the machine, it returns an error.
func (s *server) end() error {
	_, err := s.cli("sessions", "stop", "--all")
	s.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	select {
	case e := <-done:
		err = errors.Join(err, e)
	case <-time.After(45 * time.Second):
		s.cmd.Process.Kill()
		<-done
		err = errors.Join(err, errors.New("the server does not stop"))
	}
	var left []string
	for range 100 {
		if left = s.left(); len(left) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("this is left: %q", left))
	}
	if err != nil {
		return fmt.Errorf("%w\nthe server's log ends with:\n%s", err, s.log)
	}
	return nil
}

// left lists the processes and cgroups of the server's sandboxes on the machine.
func (s *server) left() []string {
	found := append(s.boxes(), mounts(s.state)...)
	for pid, line := range commandLines() {
		if strings.Contains(line, s.state) && strings.Contains(line, "runsc") {
			found = append(found, fmt.Sprintf("process %d", pid))
		}
	}
	return found
}

// boxes returns the folders of the running sandboxes.
func (s *server) boxes() []string {
	all, _ := filepath.Glob(filepath.Join(s.state, "sandboxes", "*"))
	return all
}

func mounts(under string) (found []string) {
	text, _ := os.ReadFile("/proc/self/mounts")
	for l := range strings.Lines(string(text)) {
		if strings.Contains(l, under) {
			found = append(found, "mount "+strings.TrimSpace(l))
		}
	}
	return found
}

// cli runs a command of sandlot for this server, and returns its output.
func (s *server) cli(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(s.bin, "sandlot"), append([]string{"--state-dir", s.state}, args...)...)
	cmd.Env = s.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("sandlot %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// token creates a token for a user.
func (s *server) token(user string) (string, error) { return s.cli("token", "create", "--user", user) }

// waitPool waits until the pool of a template is full, and then for a moment, so that the machine is idle.
func (s *server) waitPool(template string, size int) error {
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	for {
		n, err := s.metric(ctx, `sandlot_pool_ready{template="`+template+`"}`)
		if err != nil {
			return fmt.Errorf("waiting for the pool: %w", err)
		}
		if n == float64(size) {
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// metric reads one of the server's metrics.
func (s *server) metric(ctx context.Context, name string) (float64, error) {
	text, err := s.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}
