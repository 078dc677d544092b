package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// place is where ordinary work is done.
type place interface {
	// run runs a script with bash, and returns the end of its output.
	run(ctx context.Context, script string) (string, error)
	// cpu returns the time of processors that the place has taken so far; 0: not known.
	cpu() time.Duration
}

// workTimeout bounds one script.
const workTimeout = 290 * time.Second

// sandlotPlace is a session of Sandlot.
type sandlotPlace struct {
	s       *server
	c       client
	session string
	group   string // its cgroup
}

func (p *sandlotPlace) run(ctx context.Context, script string) (string, error) {
	r, err := p.c.call(ctx, "execute_command", args{"command": script, "session_id": p.session,
		"timeout": int(workTimeout.Seconds())})
	if err == nil && r.session != p.session {
		err = fmt.Errorf("no such session: %q", r.text)
	}
	return r.text, err
}

// cpu returns what the sandbox took, and the server for it.
func (p *sandlotPlace) cpu() time.Duration {
	group := groupCPU(p.group)
	if group == 0 {
		return 0
	}
	return group + processCPU(p.s.cmd.Process.Pid)
}

// rawPlace is a sandbox that gVisor runs without Sandlot. A Python in it runs the scripts.
type rawPlace struct {
	conn  net.Conn
	lines *bufio.Reader
	group string
}

// rawWorker is the program of a rawPlace. It reads lines with a script in JSON, and writes one with the end of the
// script's output.
const rawWorker = `import json, socket, subprocess
s = socket.socket(socket.AF_UNIX)
s.connect("/run/sandlot/ask")
for line in s.makefile("r"):
    p = subprocess.Popen(["bash", "-c", json.loads(line)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, bufsize=0)
    tail = b""
    while data := p.stdout.read(65536): tail = (tail + data)[-4096:]
    p.wait()
    s.sendall(json.dumps(tail.decode(errors="replace")).encode() + b"\n")
`

func (p *rawPlace) run(ctx context.Context, script string) (text string, err error) {
	text, err = "", json.NewEncoder(p.conn).Encode(script)
	if err == nil {
		err = p.conn.SetReadDeadline(time.Now().Add(workTimeout))
	}
	var line []byte
	if err == nil {
		line, err = p.lines.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &text)
	}
	return text, errors.Join(err, ctx.Err())
}

func (p *rawPlace) cpu() time.Duration { return groupCPU(p.group) }

// work boots a sandbox of raw gVisor that runs scripts, and calls f with it. /workspace and /run/sandlot are folders of
// the sandbox's own.
func (b *bundle) work(f func(*rawPlace) error) (err error) {
	const id = "work"
	s, err := b.boot(id, rawWorker)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	return f(&rawPlace{conn: s.conn, lines: bufio.NewReader(s.conn), group: b.config.Linux.CgroupsPath})
}

// hostPlace is the machine itself, with the variables of the sandbox.
type hostPlace struct {
	env  []string
	took time.Duration
}

func (p *hostPlace) run(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Env = p.env
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out := &lastBytes{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if s := cmd.ProcessState; s != nil {
		p.took += s.UserTime() + s.SystemTime()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil // the script's output says so
	}
	return string(out.data), err
}

func (p *hostPlace) cpu() time.Duration { return p.took }

// lastBytes keeps the end of what is written to it.
type lastBytes struct{ data []byte }

func (l *lastBytes) Write(b []byte) (int, error) {
	l.data = append(l.data, b[max(0, len(b)-4096):]...)
	l.data = l.data[max(0, len(l.data)-4096):]
	return len(b), nil
}

// cgroupOf returns the cgroup of the only running sandbox; empty: it has none.
func (s *server) cgroupOf() (string, error) {
	boxes := s.boxes()
	if len(boxes) != 1 {
		return "", fmt.Errorf("%d sandboxes for one session without a pool", len(boxes))
	}
	text, err := os.ReadFile(filepath.Join(boxes[0], "config.json"))
	if err != nil {
		return "", err
	}
	var config specs.Spec
	if err := json.Unmarshal(text, &config); err != nil {
		return "", err
	}
	return config.Linux.CgroupsPath, nil
}

// copyWeight gives the parent of a cgroup the weight that the server has given the parent of its sandboxes: else a busy
// machine would leave them different shares.
func copyWeight(from, to string) error {
	for _, file := range []string{"cpu/%s/cpu.shares", "%s/cpu.weight"} {
		path := func(group string) string {
			return filepath.Join("/sys/fs/cgroup", fmt.Sprintf(file, filepath.Dir(group)))
		}
		if text, err := os.ReadFile(path(from)); err == nil {
			return os.WriteFile(path(to), text, 0o600)
		}
	}
	return nil
}

// groupCPU returns the time of processors that a cgroup has taken; 0: not known.
func groupCPU(group string) time.Duration {
	if group == "" {
		return 0
	}
	if text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/cpuacct", group, "cpuacct.usage")); err == nil {
		n, _ := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		return time.Duration(n)
	}
	text, _ := os.ReadFile(filepath.Join("/sys/fs/cgroup", group, "cpu.stat"))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return time.Duration(n) * time.Microsecond
		}
	}
	return 0
}

// processCPU returns the time of processors that the threads of a process have taken.
func processCPU(pid int) (all time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, path := range threads {
		var n int64
		if text, err := os.ReadFile(path); err == nil {
			fmt.Sscan(string(text), &n) // nanoseconds; other numbers follow
		}
		all += time.Duration(n)
	}
	return all
}
