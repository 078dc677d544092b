package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// rawPythonProgram is the program of a rawPython: it evaluates each line that it reads, and writes the value.
const rawPythonProgram = `import socket
s = socket.socket(socket.AF_UNIX)
s.connect("/run/sandlot/ask")
while line := s.recv(65536):
    s.sendall(b"%d\n" % eval(line))
`

// rawPython is a Python in a sandbox that gVisor runs without Sandlot. It gets expressions over a socket of the
// host: no cell can be faster in a sandbox. It implements client.
type rawPython struct {
	bundle *bundle
	id     string
	cmd    *exec.Cmd
	conn   net.Conn
}

// newRawPython boots a sandbox whose Python waits for expressions.
func (b *bundle) newRawPython(id string) (*rawPython, error) { return b.boot(id, rawPythonProgram) }

// boot boots a sandbox with a program in Python that connects to the socket /run/sandlot/ask.
func (b *bundle) boot(id, program string) (*rawPython, error) {
	folder := filepath.Join(b.dir, id, "sock")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(folder, "ask")})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	b.mount("/run/sandlot", folder)
	b.config.Process.Args = []string{b.python, "-c", program}
	if err := b.write(id); err != nil {
		return nil, err
	}
	s := &rawPython{bundle: b, id: id, cmd: b.command(id, "run", "-bundle", filepath.Join(b.dir, id), id)}
	var says bytes.Buffer
	s.cmd.Stdout, s.cmd.Stderr = &says, &says
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	l.SetDeadline(time.Now().Add(30 * time.Second))
	if s.conn, err = l.Accept(); err != nil {
		s.cmd.Process.Kill()
		return nil, errors.Join(fmt.Errorf("raw gVisor: %w", err), s.end(), errors.New(says.String()))
	}
	return s, nil
}

// call returns the value of an expression.
func (s *rawPython) call(_ context.Context, _ string, a args) (answer, error) {
	if _, err := fmt.Fprintln(s.conn, a["code"]); err != nil {
		return answer{}, err
	}
	buf := make([]byte, 64)
	n, err := s.conn.Read(buf)
	session, _ := a["session_id"].(string)
	return answer{text: strings.TrimSpace(string(buf[:n])), session: session}, err
}

func (s *rawPython) close() { s.conn.Close() }

// end waits for the end of the sandbox: its Python ends when the connection is closed.
func (s *rawPython) end() error {
	if s.conn != nil {
		s.close()
	}
	_ = s.cmd.Wait() // it may have been killed
	_ = s.bundle.command(s.id, "delete", "-force", s.id).Run()
	return os.RemoveAll(filepath.Join(s.bundle.dir, s.id))
}

// newRawPythons boots n sandboxes. End ends those that were booted, also after an error.
func (b *bundle) newRawPythons(n int) (all []client, end func() error, err error) {
	end = func() (err error) {
		for _, c := range all {
			err = errors.Join(err, c.(*rawPython).end())
		}
		return err
	}
	for i := range n {
		s, err := b.newRawPython(fmt.Sprintf("spoken-%d", i))
		if err != nil {
			return all, end, err
		}
		all = append(all, s)
	}
	return all, end, nil
}

// alone starts a server without a pool, calls f with the bundle of a session's sandbox, and removes all.
func (b *bench) alone(f func(*bundle) error) error {
	return b.with(func(s *server) error {
		c := s.bare("")
		defer c.close()
		return s.raw(c, f)
	}, "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false")
}

// raw calls f with the bundle of a session's sandbox, the only one of the server.
func (s *server) raw(c client, f func(*bundle) error) error {
	b, err := s.newBundle(c)
	if err != nil {
		return err
	}
	return errors.Join(f(b), b.close())
}

// peer is a running test/bench/mcppeer.
type peer struct {
	address string
	cmd     *exec.Cmd
}

// build builds a static program from a folder below test/bench.
func (b *bench) build(name, dir string) (string, error) {
	program := filepath.Join(dir, name)
	cmd := exec.CommandContext(b.ctx, "go", "build", "-o", program, "./test/bench/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, out)
	}
	return program, nil
}

// startPeer starts mcppeer on a free port, with more arguments.
func startPeer(program string, more ...string) (*peer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &peer{address: fmt.Sprintf("127.0.0.1:%d", port)}
	p.cmd = exec.Command(program, append([]string{p.address}, more...)...)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	for range 500 {
		c, err := net.Dial("tcp", p.address)
		if err == nil {
			return p, c.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.end()
	return nil, errors.New("mcppeer does not come up")
}

func (p *peer) url() string { return "http://" + p.address + "/mcp" }

func (p *peer) end() {
	p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}
