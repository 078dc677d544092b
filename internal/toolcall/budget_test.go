package toolcall

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/limit"
)

// call makes a call with so many bytes of arguments, and wants its result.
func (p *program) call(bytes int) {
	p.t.Helper()
	p.send(`{"call": {"server": "s", "tool": "a", "arguments": {"x": "` + strings.Repeat("y", bytes) + `"}}}`)
	p.want(`"result"`)
}

// atOnce reports whether something is done without waiting.
func atOnce(do func()) bool {
	began := time.Now()
	do()
	return time.Since(began) == 0 // in a bubble of synctest, time passes only while all wait
}

// TestBudget: who floods is read later, over all sandboxes, and refused nothing; others are not read later. After a
// pause all is as before.
func TestBudget(t *testing.T) {
	for name, flood := range map[string]struct{ allowed, more, bytes int }{
		"requests": {requestBurst, 500, 10},
		"bytes":    {byteBurst / (15<<20 + 1<<10), 2, 15 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.Close()
				one, two := w.dial(w.box(ann.ID, "one"), tagged("")), w.dial(w.box(ann.ID, "two"), tagged(""))
				bob := w.dial(w.box(auth.User("bob", false).ID, "three"), tagged(""))
				burst := func() {
					for range flood.allowed {
						one.call(flood.bytes)
					}
				}
				for round := range 2 {
					if round > 0 {
						time.Sleep(time.Minute)
					}
					if !atOnce(burst) {
						t.Error("it waited within its budget")
					}
					over := make(chan struct{})
					go func() {
						defer close(over)
						for range flood.more {
							two.call(flood.bytes)
						}
					}()
					synctest.Wait() // it waits for its budget
					select {
					case <-over:
						t.Error("who floods waits for nothing")
					default:
					}
					if !atOnce(func() { bob.call(10) }) {
						t.Error("another waited")
					}
					if atOnce(func() { <-over }) {
						t.Error("who floods waited for nothing")
					}
				}
				// What waits ends with the server.
				go func() { _, _ = two.Write([]byte(strings.Repeat("x", flood.bytes*flood.more) + "\n")) }()
				synctest.Wait()
			})
		})
	}
}

// TestOneLargeRequest: one large request is decoded at a time in the whole server; small ones do not wait.
func TestOneLargeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.Close()
		p, small := w.dial(w.box(ann.ID, "one"), tagged("")), w.dial(w.box(ann.ID, "two"), tagged(""))
		w.decoding <- struct{}{} // another one is decoded
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			p.call(largeRequest)
		}()
		synctest.Wait()
		select {
		case <-answered:
			t.Error("two large requests are decoded at once")
		default:
		}
		small.call(10)
		<-w.decoding
		<-answered
	})
}

// TestDecodeLarge: a large request means what it means to encoding/json.
func TestDecodeLarge(t *testing.T) {
	w := newWorld(t)
	defer w.Close()
	long := `"` + strings.Repeat("y", largeRequest) + `"`
	for _, text := range []string{
		`{"call": {"server": "s", "tool": "a", "arguments": {"x": LONG}, "timeout": 2.5}}`,
		`{"x": LONG, "call": {"server": "s", "tool": "a"}}`,
		`{"call": {"server": "s", "tool": "a", "x": LONG, "arguments": [1, {"arguments": 2}]}}`,
		`{"call": {"server": LONG, "tool": "a"}}`,
		`{"CALL": {"Server": "s", "TOOL": "a", "Arguments": LONG, "ARGUMENTS": {"b": 1}}}`,
		`{"call": {"server": "s", "arguments": LONG}, "call": {"tool": "a"}}`,
		`{"call": {"server": "s", "arguments": LONG}, "call": null}`,
		`{"call": {"server": "s", "arguments": LONG}, "call": null, "call": {"tool": "a"}}`,
		`{"call": {"server": "s", "arguments": LONG}, "call": 7}`,
		`{"call": {"server": 7, "arguments": LONG}}`,
		`{"call": {"server": "\u0073", "\u0061rguments": LONG, "tool": "é\n"}}`,
		`{"search": {"query": LONG, "limit": 3}}`,
		`{"describe": {"server": "s", "tool": LONG}}`,
		`{"call": {"server": "s"}, "search": {"query": LONG}}`,
		`{"call": {"arguments": null, "x": LONG}}`,
		`{"call": {"x": LONG}}`, `{"x": LONG}`, `{}`, `[LONG]`, `LONG`, `7`, ``, `{"call": {"x": LONG}`,
		`{"call": LONG}}`,
	} {
		line := []byte(strings.ReplaceAll(text, "LONG", long))
		if len(line) <= largeRequest {
			line = append(line, strings.Repeat(" ", largeRequest)...)
		}
		var want request
		wantErr := json.Unmarshal(line, &want)
		got, err := w.decode(line)
		if (err != nil) != (wantErr != nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %.300v, %v; want %.300v, %v", text, got, err, want, wantErr)
		}
	}
}

// allocated is how many bytes something allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLargeRequestMemory: a large request is read with few copies, and decoded with none.
func TestLargeRequestMemory(t *testing.T) {
	w := newWorld(t)
	defer w.Close()
	const size = 15 << 20
	line := []byte(`{"call": {"server": "s", "tool": "a", "arguments": {"x": "` + strings.Repeat("y", size) +
		`"}}}` + "\n")
	if n := allocated(func() {
		if q, err := w.decode(line); err != nil || len(q.Call.Arguments) != size+len(`{"x": ""}`) {
			t.Errorf("decoded: %v", err)
		}
	}); n > 1<<20 {
		t.Errorf("decoding allocates %d bytes", n)
	}
	b := w.box(ann.ID, "one")
	here, there := net.Pipe()
	defer here.Close()
	c := &conn{sandbox: b.tools.(*sandbox), net: there, reader: bufio.NewReaderSize(there, 16<<10),
		from: func() agent.Caller { return agent.Caller{} }}
	go func() { _, _ = here.Write(line) }()
	if n := allocated(func() {
		got, err := c.readLine(context.Background(), w.Limits.NewReservation(ann.ID, limit.RequestBytes))
		if err != nil || len(got) != len(line) {
			t.Errorf("read %d bytes: %v", len(got), err)
		}
	}); n > 3*size {
		t.Errorf("reading allocates %d bytes for %d", n, size)
	}
}
