// Picture makes the picture of README's first screen, docs/pictures/first.svg, from the program that was built.
//
//	make build && go run ./test/picture
//
// It starts a server in a state folder of its own, makes the calls of an agent over MCP and a command of its user,
// and draws what they answer. It needs a machine on which Python works in sandboxes, and the registry of pip. It
// ends the server, and removes the folder.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience is the time for the whole story. The installation takes most of it.
const patience = 5 * time.Minute

func main() {
	program := flag.String("program", "bin/sandlot", "the built program")
	out := flag.String("out", "docs/pictures/first.svg", "the picture")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := run(ctx, *program, *out); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, program, out string) (err error) {
	program, err = filepath.Abs(program)
	if err != nil {
		return err
	}
	s, err := start(ctx, program)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	lines, err := tell(ctx, s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, draw(lines), 0o644)
}

// A server is a process of Sandlot, with its files in a folder that ends with it.
type server struct {
	program string
	folder  string
	url     string
	process *exec.Cmd
}

func start(ctx context.Context, program string) (*server, error) {
	folder, err := os.MkdirTemp("", "sandlot-picture-")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	s := &server{program: program, folder: folder, url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	s.process = s.command(context.Background(), "serve", "--port", fmt.Sprint(port), "--log-level", "ERROR")
	s.process.Stderr = os.Stderr
	if err := s.process.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	for ctx.Err() == nil {
		answer, err := http.Get(s.url + "/health")
		if err == nil {
			answer.Body.Close()
			return s, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("the server does not answer"), s.stop())
}

// freePort finds a port of loopback. Another program may take it before the server does; the server then says so.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// command is the program with this server's folder, and with nothing of the user's settings.
func (s *server) command(ctx context.Context, args ...string) *exec.Cmd {
	return s.prepare(exec.CommandContext(ctx, s.program, args...))
}

// shell is a line of the user's shell, which finds the program.
func (s *server) shell(ctx context.Context, text string) *exec.Cmd {
	return s.prepare(exec.CommandContext(ctx, "sh", "-c", text))
}

func (s *server) prepare(c *exec.Cmd) *exec.Cmd {
	c.Dir = s.folder
	c.Env = append(os.Environ(), "HOME="+s.folder, "SANDLOT_STATE_DIR="+filepath.Join(s.folder, "state"),
		"PATH="+filepath.Dir(s.program)+":"+os.Getenv("PATH"))
	return c
}

// stop ends the sandboxes and the server, and removes their files. It is not bound to the story's time.
func (s *server) stop() error {
	_ = s.command(context.Background(), "sessions", "stop", "--all").Run()
	err := s.process.Process.Signal(syscall.SIGTERM)
	if err == nil {
		err = s.process.Wait()
	}
	return errors.Join(err, os.RemoveAll(s.folder))
}

// An answer has what a client shows of a tool's result, and the fields that the story needs.
type answer struct {
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
	IsError bool     `json:"isError"`
	Copies  []string `json:"copies"`
}

// call calls a tool, as an agent's client does.
func (s *server) call(ctx context.Context, tool string, args map[string]any) (answer, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": args}})
	if err != nil {
		return answer{}, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/mcp", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return answer{}, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return answer{}, err
	}
	var got struct{ Result answer }
	err = json.Unmarshal(text, &got)
	if err != nil || got.Result.IsError || len(got.Result.Content) == 0 {
		return answer{}, fmt.Errorf("%s: %s", tool, strings.TrimSpace(string(text)))
	}
	return got.Result, nil
}
