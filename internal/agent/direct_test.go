package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/agent/direct"
	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// driven is an agent whose interpreter is the test: do serves the connection to
// it, supervised answers the host that asks the agent to supervise a cell.
type driven struct {
	valid
	t          *testing.T
	b          *box
	slots      Slots
	do         func(net.Conn)
	supervised func(*agentv1.SuperviseRequest) *agentv1.RunEvent
	opened     atomic.Int64
	cold       bool // it says nothing when it is asked to get ready
}

func (d *driven) OpenInterpreter(_ context.Context,
	r *agentv1.OpenInterpreterRequest) (*agentv1.OpenInterpreterResponse, error) {
	d.opened.Add(1)
	host, guest := socketpair(d.t)
	d.b.dialed <- host
	if err := wire.GreetDirect(guest, wire.Ticket(r.Ticket)); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	go func() {
		defer guest.Close()
		if _, err := io.ReadFull(guest, make([]byte, len(direct.WarmUp))); err == nil && !d.cold {
			io.WriteString(guest, direct.Handover)
		}
		d.do(guest)
	}()
	return &agentv1.OpenInterpreterResponse{}, nil
}

func (d *driven) run(c net.Conn) {
	for {
		r := new(agentv1.RunRequest)
		if wire.ReadMessage(c, r) != nil {
			return
		}
		e := cellDone(&agentv1.EvaluateDone{Ok: true,
			Error: "by the agent"})
		if q := r.GetSupervise(); q != nil {
			if d.supervised == nil {
				io.Copy(io.Discard, c)
				return
			}
			e = d.supervised(q)
		}
		if wire.WriteMessage(c, e) != nil {
			return
		}
	}
}

// drive returns a client that has a way to an interpreter that does so.
func drive(t *testing.T, d *driven) *Client {
	t.Helper()
	c, b := client(t, d.slots)
	d.t, d.b = t, b
	_, handler := agentv1connect.NewAgentHandler(d)
	b.serve(t, &fakeAgent{call: handler, run: d.run})
	if !c.OpenDirect(t.Context(), "python") {
		t.Fatal("there is no way to the interpreter")
	}
	return c
}

// asked reads one cell and returns its id.
func asked(c net.Conn) (id string, ok bool) {
	var size, limit int
	if n, err := fmt.Fscanf(c, "%s %d %d\n", &id, &size, &limit); n != 3 || err != nil {
		return "", false
	}
	_, err := io.CopyN(io.Discard, c, int64(size))
	return id, err == nil
}

func answered(id, stdout, stderr string) []byte {
	reply := `{"id":` + id + `,"ok":true,"result":"2"}`
	return fmt.Appendf(nil, "%d %d %d\n%s%s%s", len(reply), len(stdout), len(stderr), reply, stdout, stderr)
}

const limit = 100

func evaluate(ctx context.Context, c *Client) (*agentv1.EvaluateDone, error) {
	return c.evaluate(ctx, &agentv1.EvaluateRequest{Language: "python", Code: "1 + 1",
		Bounds: &agentv1.Bounds{HeadChars: limit}}, Observer{})
}

func TestADriver(t *testing.T) {
	// On a busy machine an answer may take so long that the agent is asked.
	d := &driven{supervised: cellOver, do: func(c net.Conn) {
		for {
			id, ok := asked(c)
			if !ok {
				return
			}
			c.Write(answered(id, "out", "err"))
		}
	}}
	c := drive(t, d)
	for range 100 {
		e, err := evaluate(t.Context(), c)
		if err != nil || string(e.GetResult().GetHead()) != "2" || string(e.Stdout.Head) != "out" ||
			e.Stdout.Total != 3 || string(e.Stderr.Head) != "err" {
			t.Fatalf("Evaluate = %v, %v", e, err)
		}
	}
	if n := d.opened.Load(); n != 1 {
		t.Errorf("the way was made %d times", n)
	}
}

// A driver's answer is bounded and checked, and ends nothing but its own connection.
func TestDriversThatBreakTheProtocol(t *testing.T) {
	tests := []struct {
		name string
		say  func(net.Conn, string)
		want error
	}{
		{"another id", func(c net.Conn, id string) { c.Write(answered("1"+id, "", "")) }, ErrProtocol},
		{"no numbers", func(c net.Conn, id string) { io.WriteString(c, "x y z\n{}") }, ErrProtocol},
		{"a line without an end", func(c net.Conn, id string) { c.Write(bytes.Repeat([]byte("1"), 1<<20)) },
			ErrProtocol},
		{"more than may be inline", func(c net.Conn,
			id string) {
			c.Write(answered(id, strings.Repeat("x", limit+1), ""))
		}, ErrProtocol},
		{"a size that nothing has", func(c net.Conn, id string) { io.WriteString(c, "999999999 0 0\n") }, ErrProtocol},
		{"negative sizes", func(c net.Conn, id string) { io.WriteString(c, "10 -5 5\n{\"id\":1}  ") }, ErrProtocol},
		{"sizes that overflow", func(c net.Conn, id string) { io.WriteString(c, "99999999999999999999999 0 0\n") },
			ErrProtocol},
		{"no JSON", func(c net.Conn, id string) { io.WriteString(c, "4 0 0\n{{{{") }, ErrProtocol},
		{"a long result", func(c net.Conn, id string) {
			r := `{"id":` + id + `,"ok":true,"result":"` + strings.Repeat("x", limit+1) + `"}`
			fmt.Fprintf(c, "%d 0 0\n%s", len(r), r)
		}, ErrProtocol},
		{"half an answer, and the end",
			func(c net.Conn, id string) { c.Write(answered(id, "out", "")[:20]); c.Close() }, ErrLinkBroken},
		{"it leaves the end to the agent again and again", func(c net.Conn, id string) {
			for range 10 {
				io.WriteString(c, direct.Handover)
				time.Sleep(time.Millisecond)
			}
		}, ErrLinkBroken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := &driven{supervised: cellOver, do: func(c net.Conn) {
				if id, ok := asked(c); ok {
					tt.say(c, id)
					io.Copy(io.Discard, c)
				}
			}}
			c := drive(t, d)
			if e, err := evaluate(t.Context(), c); e != nil || !errors.Is(err, tt.want) {
				t.Errorf("Evaluate = %v, %v, want %v", e, err, tt.want)
			}
			// The next goes through the agent.
			if e, err := evaluate(t.Context(), c); err != nil || e.Error != "by the agent" {
				t.Errorf("after that: %v, %v", e, err)
			}
		})
	}
}

// A driver whose connection ends without an answer may be dying: the agent says so
// once it knows.
func TestADyingDriver(t *testing.T) {
	asks := 0
	d := &driven{do: func(c net.Conn) { asked(c); c.Close() },
		supervised: func(*agentv1.SuperviseRequest) *agentv1.RunEvent {
			if asks++; asks < 4 {
				return cellOver(nil)
			}
			return cellDone(&agentv1.EvaluateDone{StateLost: true,
				Reason: "it died"})
		}}
	if e, err := evaluate(t.Context(), drive(t, d)); err != nil || !e.StateLost || asks != 4 {
		t.Errorf("Evaluate = %v, %v after %d questions", e, err, asks)
	}
}

// A driver that speaks out of turn, or has gone, is not asked.
func TestADriverOutOfTurn(t *testing.T) {
	for name, say := range map[string]func(net.Conn){
		"it speaks first": func(c net.Conn) { io.WriteString(c, "2 0 0\n{}") },
		"it speaks later": func(c net.Conn) { io.WriteString(c, direct.Handover+"2 0 0\n{}") },
		"it goes":         func(c net.Conn) { c.Close() },
		"it goes later":   func(c net.Conn) { io.WriteString(c, direct.Handover); c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, b := client(t, nil)
			said := make(chan struct{}, 10)
			d := &driven{t: t, b: b, cold: true, do: func(c net.Conn) {
				say(c)
				said <- struct{}{}
				io.Copy(io.Discard, c)
			}}
			_, handler := agentv1connect.NewAgentHandler(d)
			b.serve(t, &fakeAgent{call: handler, run: d.run})
			c.OpenDirect(t.Context(), "python")
			<-said
			if e, err := evaluate(t.Context(), c); err != nil || e.Error != "by the agent" {
				t.Errorf("Evaluate = %v, %v, want the agent's answer", e, err)
			}
		})
	}
}

// The agent supervises a cell that lasts; one that is given up is stopped before the
// next begins.
func TestSupervising(t *testing.T) {
	requests := make(chan *agentv1.SuperviseRequest, 10)
	d := &driven{do: func(c net.Conn) { io.Copy(io.Discard, c) },
		supervised: func(a *agentv1.SuperviseRequest) *agentv1.RunEvent {
			requests <- a
			return cellDone(&agentv1.EvaluateDone{Ok: true,
				Error: "supervised"})
		}}
	c := drive(t, d)
	if e, err := evaluate(t.Context(), c); err != nil || e.Error != "supervised" {
		t.Errorf("Evaluate = %v, %v", e, err)
	}
	if a := <-requests; a.Id == 0 || a.Stop || a.GetCell().GetCode() != "" ||
		a.ElapsedMicros < uint64(direct.SuperviseAfter.Microseconds()) {
		t.Errorf("the agent was asked %v", a)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	cancel(why)
	if e, err := evaluate(gone, c); e != nil || !errors.Is(err, why) {
		t.Errorf("given up: %v, %v", e, err)
	}
	if e, err := evaluate(t.Context(), c); err != nil || e.Error != "supervised" {
		t.Errorf("after that: %v, %v", e, err)
	}
	stopped := false
	for len(requests) > 0 {
		stopped = (<-requests).Stop || stopped
	}
	if !stopped {
		t.Error("what was given up was not stopped")
	}
}

// An agent that never answers holds a call no longer than its context.
func TestAnAgentThatSupervisesInSilence(t *testing.T) {
	c := drive(t, &driven{do: func(c net.Conn) { io.Copy(io.Discard, c) }})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if e, err := evaluate(ctx, c); e != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Evaluate = %v, %v", e, err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it held the call for %s", took)
	}
}

// A ticket is good once, and for nothing else.
func TestTickets(t *testing.T) {
	c, b := client(t, nil)
	e := c.expect()
	dial := func(ticket wire.Ticket) error {
		host, guest := socketpair(t)
		t.Cleanup(func() { guest.Close() })
		b.dialed <- host
		return wire.GreetDirect(guest, ticket)
	}
	if err := dial(wire.Ticket(key)); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("the secret was taken for a ticket: %v", err)
	}
	if err := dial(e.ticket); err != nil {
		t.Error(err)
	}
	if err := dial(e.ticket); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("a ticket was good twice: %v", err)
	}
	conn, err := e.wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	late := c.expect()
	c.forget(late)
	if err := dial(late.ticket); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("a forgotten ticket was good: %v", err)
	}
	if c.mu.Lock(); len(c.expectedConns) != 0 {
		t.Errorf("%d connections are expected still", len(c.expectedConns))
	}
	c.mu.Unlock()
}
