package mcpclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"sandlot/internal/leaktest"
	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
)

// noLeaks fails the test when goroutines of this package, or of HTTP, outlive it.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if left := leaktest.Goroutines(func(stack string) bool {
			return strings.Contains(stack, "internal/mcpclient") && !strings.Contains(stack, "testing.tRunner") ||
				strings.Contains(stack, "net/http.(*persistConn)")
		}); left != "" {
			t.Errorf("goroutines are left:\n%s", left)
		}
	})
}

// program is a hand-written server behind a pair of pipes.
type program struct {
	t   *testing.T
	in  *bufio.Reader
	out io.WriteCloser
}

// spoken is a message that a program was sent.
type spoken struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *transport.Error
}

// next returns the next message; ok is false when there are no more.
func (p *program) next() (m spoken, ok bool) {
	line, err := p.in.ReadBytes('\n')
	if err != nil {
		return m, false
	}
	if err := json.Unmarshal(line, &m); err != nil {
		p.t.Errorf("what was sent is no JSON: %s", line)
	}
	return m, true
}

// wait skips messages until one with the method comes.
func (p *program) wait(method string) (spoken, bool) {
	for {
		m, ok := p.next()
		if !ok || m.Method == method {
			return m, ok
		}
	}
}

func (p *program) say(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }

func (p *program) answer(m spoken, result string) {
	p.say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func (p *program) refuse(m spoken, code int, message string) {
	p.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, m.ID, code, message)
}

const (
	allOlder = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"peer","version":"1"},"instructions":"Be kind."}`
	allNewer = `{"resultType":"complete","ttlMs":0,"cacheScope":"private","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"peer","version":"2"}}}`
)

// greet does the stateful handshake.
func (p *program) greet() bool {
	for {
		m, ok := p.next()
		switch {
		case !ok:
			return false
		case m.Method == "initialize":
			p.answer(m, allOlder)
		case m.Method == "notifications/initialized":
			return true
		default:
			p.refuse(m, -32601, "Method not found")
		}
	}
}

// greetNewer does the stateless handshake.
func (p *program) greetNewer() bool {
	m, ok := p.wait("server/discover")
	p.answer(m, allNewer)
	return ok
}

// programs returns a dial that starts a program each time; they have ended when
// the test ends.
func programs(t *testing.T, stray func([]byte), run ...func(p *program)) transport.Dial {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	n := 0
	t.Cleanup(wg.Wait)
	return func(context.Context) (transport.Transport, error) {
		mu.Lock()
		defer mu.Unlock()
		if n >= len(run) {
			return nil, errors.New("no program is left")
		}
		f := run[n]
		n++
		inR, inW := io.Pipe()
		outR, outW := io.Pipe()
		p := &program{t: t, in: bufio.NewReaderSize(inR, 64<<10), out: outW}
		wg.Go(func() {
			defer outW.Close()
			defer inR.Close()
			f(p)
		})
		return transport.Stdio(outR, inW, stray), nil
	}
}

func overHTTP(url string) transport.Dial { return transport.HTTP(transport.Remote{URL: url}) }
func overSSE(url string) transport.Dial  { return transport.SSE(transport.Remote{URL: url}) }

// toolCall is a call of a tool without arguments.
func toolCall(name string) Request {
	return Request{Method: "tools/call", Params: rawjson.Object{"name": rawjson.Quote(name)}}
}

// connected returns a session that is closed when the test ends.
func connected(t *testing.T, dial transport.Dial, o Options) *Session {
	t.Helper()
	s, err := Connect(t.Context(), dial, o)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// ears is a Handler that keeps what it hears.
type ears struct {
	ask func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)

	mu    sync.Mutex
	heard []string
}

func (e *ears) HandleRequest(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	if e.ask == nil {
		return nil, &transport.Error{Code: transport.CodeUnknownMethod, Message: "nobody is here"}
	}
	return e.ask(ctx, method, params)
}

func (e *ears) HandleNotification(method string, params json.RawMessage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, method+string(params))
}

func (e *ears) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.heard...)
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("this did not happen within 5 s: %s", what)
}
