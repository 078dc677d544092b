package main

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// prints runs a program, and returns an error if it prints another text.
func prints(text, name string, args ...string) error {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if string(out) != text {
		return fmt.Errorf("%s: a wrong answer: %q, not %q", name, out, text)
	}
	return nil
}

// container is a running Docker container.
type container struct{ id string }

// dockerImage is an image with Python. It is pulled if a Docker engine answers. SANDLOT_BENCH_IMAGE names a local
// image in place of it, for machines that reach no registry.
func dockerImage() string { return cmp.Or(os.Getenv("SANDLOT_BENCH_IMAGE"), "python:3-slim") }

// dockerBox starts a container, or returns why this machine cannot.
func dockerBox(ctx context.Context) (*container, error) {
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if exec.CommandContext(short, "docker", "version", "--format", "{{.Server.Version}}").Run() != nil {
		return nil, errors.New("no Docker engine on this machine")
	}
	long, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(long, "docker", "run", "--detach", "--rm", "--network", "none", "--entrypoint",
		"sleep", dockerImage(), "infinity").Output()
	if err != nil {
		return nil, fmt.Errorf("a Docker engine answers, but runs no container of %s: %v", dockerImage(), err)
	}
	return &container{strings.TrimSpace(string(out))}, nil
}

func (c *container) exec() error {
	return prints("2\n", "docker", "exec", c.id, "python3", "-c", "print(1+1)")
}

func (c *container) remove() { exec.Command("docker", "rm", "--force", c.id).Run() }

// pythonClient is a program with the official Python client. It makes one call for each line that it reads.
type pythonClient struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

//go:embed client.py
var clientScript string

func (s *server) pythonClient(session string) (*pythonClient, error) {
	return s.runPython(clientScript, s.url+"/mcp", session)
}

// runPython starts a program with the official Python client.
func (s *server) runPython(script string, args ...string) (*pythonClient, error) {
	python := filepath.Join(s.tools, "py", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		return nil, errors.New("`make tools` has not installed it")
	}
	c := &pythonClient{cmd: exec.Command(python, append([]string{"-c", script}, args...)...)}
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, c.cmd.Start()
}

// call makes the program do one call; the program checks the answer. The time includes that of the pipes.
func (c *pythonClient) call() error {
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		return err
	}
	line, err := c.out.ReadString('\n')
	if err == nil && line != "ok\n" {
		err = fmt.Errorf("the Python client said %q", line)
	}
	return err
}

func (c *pythonClient) close() {
	c.in.Close()
	c.cmd.Wait()
}
