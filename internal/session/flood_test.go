package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/egress"
	"sandlot/internal/pool"
	"sandlot/internal/sandbox"
)

// socketSandbox is a sandbox that has only the socket that its agent
// dials; the test is the agent.
type socketSandbox struct {
	l    *net.UnixListener
	spec sandbox.Spec
}

func newSocketSandbox(t *testing.T, id string) *socketSandbox {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return &socketSandbox{l, sandbox.Spec{ID: id, Secret: bytes.Repeat([]byte{7}, wire.SecretLen)}}
}

func (s *socketSandbox) Spec() sandbox.Spec { return s.spec }

func (s *socketSandbox) Connect(ctx context.Context) (net.Conn, error) {
	defer context.AfterFunc(ctx, func() { s.l.Close() })()
	return s.l.Accept()
}

func (s *socketSandbox) Status(context.Context) (sandbox.Status, error) { return sandbox.Status{}, nil }
func (s *socketSandbox) Admitted() error                                { return nil }
func (s *socketSandbox) Resize(context.Context, sandbox.Limits) error   { return errors.ErrUnsupported }
func (s *socketSandbox) ChangeTools(func(dir string) error) error       { return errors.ErrUnsupported }
func (s *socketSandbox) Stop(context.Context) error                     { return nil }

// greeted dials as an agent does, for the network.
func (s *socketSandbox) greeted() (net.Conn, error) {
	c, err := net.Dial("unix", s.l.Addr().String())
	if err != nil {
		return nil, err
	}
	if err := wire.GreetNet(c, s.spec.Secret); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// link dials as an agent does, for a link.
func (s *socketSandbox) link() (net.Conn, error) {
	c, err := net.Dial("unix", s.l.Addr().String())
	if err != nil {
		return nil, err
	}
	if err := wire.Greet(c, s.spec.Secret); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// ask says one request on a connection of its own.
func (s *socketSandbox) ask(r wire.NetRequest) (wire.NetCode, error) {
	c, err := s.greeted()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if err := wire.WriteNetRequest(c, r); err != nil {
		return 0, err
	}
	reply, err := wire.ReadNetReply(c)
	return reply.Code, err
}

// logBuffer is the output of a logger, whose lines can be counted.
type logBuffer struct {
	mu  sync.Mutex
	log bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.String()
}

// An agent that dials its host as fast as it can, for the network or with a wrong
// secret, and says nonsense, nothing, or what is refused, is let in no more often
// than its rate allows: it holds no goroutines, fills no log, and keeps nobody
// else waiting.
func TestFloodOfGreetings(t *testing.T) {
	const rate, burst, floods = 50, 50, 32
	const long = 2 * time.Second
	refused := wire.NetRequest{Kind: wire.NetConnect, Address: []byte{127, 0, 0, 1}, Port: 1}
	for name, attack := range map[string]func(*socketSandbox) bool{ // true: it was let in
		"nothing": func(s *socketSandbox) bool {
			c, err := s.greeted()
			if err == nil {
				c.Close()
			}
			return err == nil
		},
		"nonsense": func(s *socketSandbox) bool {
			c, err := s.greeted()
			if err != nil {
				return false
			}
			defer c.Close()
			c.Write([]byte{0, 0, 0, 3, 0xff, 0xff, 0xff})
			io.Copy(io.Discard, c)
			return true
		},
		"refused": func(s *socketSandbox) bool {
			_, err := s.ask(refused)
			return err == nil
		},
		"a wrong secret and then a link": func(s *socketSandbox) bool {
			wrong := *s
			wrong.spec.Secret = bytes.Repeat([]byte{8}, wire.SecretLen)
			wrong.greeted()
			if c, err := s.link(); err == nil {
				c.Close()
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(logBuffer)
			logger := slog.New(slog.NewTextHandler(log, nil))
			broker := egress.New(egress.Config{Log: logger, Limits: egress.Limits{Rate: rate, Burst: burst}})
			booted := func(id string) (*socketSandbox, *pool.Booted) {
				s := newSocketSandbox(t, id)
				b := &pool.Booted{ID: id, Box: s, Agent: agent.New(s, logger, nil)}
				b.Connect(broker.Outlet(egress.Owner{Session: id}, &egress.Policy{Mode: egress.Public},
					new(egress.Meter)))
				t.Cleanup(b.Detach)
				return s, b
			}
			hostile, b := booted("hostile")
			link, err := hostile.link() // it is no sandbox that is given up
			if err != nil {
				t.Fatal(err)
			}
			defer link.Close()
			victim, _ := booted("victim")
			before := runtime.NumGoroutine()
			var in, tried, most atomic.Int64
			ctx, stop := context.WithTimeout(t.Context(), long)
			defer stop()
			begun := time.Now()
			var all sync.WaitGroup
			for range floods {
				all.Go(func() {
					for ctx.Err() == nil {
						tried.Add(1)
						if attack(hostile) {
							in.Add(1)
						}
					}
				})
			}
			var slowest time.Duration
			answers := 0
			for ctx.Err() == nil {
				at := time.Now()
				if code, err := victim.ask(refused); err != nil || code != wire.NetRefused {
					t.Fatalf("the other sandbox: %v, %v", code, err)
				}
				answers++
				slowest = max(slowest, time.Since(at))
				most.Store(max(most.Load(), int64(runtime.NumGoroutine()-before)))
				time.Sleep(50 * time.Millisecond) // within its own rate
			}
			all.Wait()
			took := time.Since(begun)
			t.Logf("%d tried, %d let in within %v; the other one's %d answers took at most %v; %d goroutines more",
				tried.Load(), in.Load(), took, answers, slowest, most.Load())
			if tried.Load() < 2*floods || !b.Agent.Linked() {
				t.Error("that was no flood")
			}
			// Twice the rate, as an agent needs two connections at times.
			if bound := 2*(burst+rate*took.Seconds()) + floods; float64(in.Load()) > bound {
				t.Errorf("%d were let in, %.0f are allowed", in.Load(), bound)
			}
			if slowest > time.Second || answers < 10 {
				t.Errorf("another sandbox had %d answers, one after %v", answers, slowest)
			}
			if most.Load() > 4*floods+100 {
				t.Errorf("%d goroutines", most.Load())
			}
			text := log.String()
			if n, bound := strings.Count(text, "\n"), 2*(15+int(12*took.Seconds())); n > bound {
				t.Errorf("%d lines of log: %.2000s", n, text)
			}
		})
	}
}
