package dockercommand

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"
)

// sshOptions returns the options of a daemon that is reached by ssh. Each connection is that of a program, as for the
// docker command: `ssh HOST docker system dial-stdio`.
func sshOptions(address string) ([]client.Opt, error) {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("docker: %q is not an address of a daemon by ssh, such as ssh://user@host", address)
	}
	if _, given := u.User.Password(); given {
		return nil, errors.New("docker: the address of a daemon by ssh has a password; ssh takes keys only")
	}
	// It asks nobody: there is no terminal.
	args := []string{"-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-T"}
	if name := u.User.Username(); name != "" {
		args = append(args, "-l", name)
	}
	if port := u.Port(); port != "" {
		args = append(args, "-p", port)
	}
	args = append(args, "--", u.Hostname(), "docker")
	if path := strings.TrimSuffix(u.Path, "/"); path != "" {
		args = append(args, "--host", "unix://"+path)
	}
	args = append(args, "system", "dial-stdio")
	dial := func(context.Context, string, string) (net.Conn, error) { return startCommand("ssh", args...) }
	return []client.Opt{client.WithHost("ssh://" + u.Host), client.WithDialContext(dial)}, nil
}

// commandConn is the standard input and output of a program as a connection. It has no deadlines.
type commandConn struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     io.ReadCloser
	close   func() error
	began   bool      // something was read; only the reader uses it
	said    complaint // what the program wrote to its standard error
}

// complaint keeps the first part of what is written to it.
type complaint struct{ text []byte }

// maxComplaint bounds a complaint, in bytes.
const maxComplaint = 1000

func (c *complaint) Write(p []byte) (int, error) {
	c.text = append(c.text, p[:min(len(p), maxComplaint-len(c.text))]...)
	return len(p), nil
}

func startCommand(name string, args ...string) (net.Conn, error) {
	c := &commandConn{command: exec.Command(name, args...)}
	c.command.WaitDelay, c.command.Stderr = 5*time.Second, &c.said
	var err, outErr error
	c.in, err = c.command.StdinPipe()
	c.out, outErr = c.command.StdoutPipe()
	if err = errors.Join(err, outErr); err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s for the Docker daemon: %w", name, err)
	}
	c.close = sync.OnceValue(func() error {
		err := errors.Join(c.in.Close(), c.command.Process.Kill())
		_ = c.command.Wait() // it was killed
		return err
	})
	return c, nil
}

// Read implements net.Conn. A program that ends before it has sent anything says why.
func (c *commandConn) Read(p []byte) (int, error) {
	n, err := c.out.Read(p)
	if c.began = c.began || n > 0; err == nil || c.began {
		return n, err
	}
	return 0, c.explain(err)
}

// explain ends the program after an error, and returns what it said about that, or else the error.
func (c *commandConn) explain(err error) error {
	_ = c.close() // after it, the program has said all
	if text := strings.TrimSpace(string(c.said.text)); text != "" {
		return fmt.Errorf("%s: %s", c.command.Path, text)
	}
	return err
}

// Write implements net.Conn.
func (c *commandConn) Write(p []byte) (int, error) {
	n, err := c.in.Write(p)
	if err != nil {
		err = c.explain(err)
	}
	return n, err
}

// Close implements net.Conn. It ends the program.
func (c *commandConn) Close() error { return c.close() }

// CloseWrite ends the program's standard input.
func (c *commandConn) CloseWrite() error { return c.in.Close() }

func (c *commandConn) LocalAddr() net.Addr              { return commandAddr{} }
func (c *commandConn) RemoteAddr() net.Addr             { return commandAddr{} }
func (c *commandConn) SetDeadline(time.Time) error      { return nil }
func (c *commandConn) SetReadDeadline(time.Time) error  { return nil }
func (c *commandConn) SetWriteDeadline(time.Time) error { return nil }

// commandAddr is the address of a program's end.
type commandAddr struct{}

func (commandAddr) Network() string { return "command" }
func (commandAddr) String() string  { return "command" }
