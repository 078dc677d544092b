package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"sandlot/internal/api/conn"
	"sandlot/internal/api/protocol"
	"sandlot/internal/fault"
)

// Stdio connects one MCP client, which speaks on In and Out, to the MCP edges of servers: to one, and when that has
// ended, to the next. The client notices no more than that the calls that ran have failed, and that lists may have
// changed.
type Stdio struct {
	In  io.Reader
	Out io.Writer
	// View says which third-party tools the client is shown; empty: the server's settings do.
	View string
	// Results is the form of results: text, data or both; empty: what the server knows of the client decides.
	Results string
	// Connect returns a client of a server that accepts connections. It is called for each server; wanted is closed
	// when a message of the MCP client waits for it.
	Connect func(ctx context.Context, wanted <-chan struct{}) (*Client, error)
	// Note writes what the client's user may find in its log.
	Note func(text string)

	stream *conn.Buffered // to the current server
	talk   talk
	mu     sync.Mutex // held while a line is written to Out
}

// stdioPath is the path of MCP's stdio transport in the API.
const stdioPath = "/v1/stdio"

const (
	// maxWaiting is how much of the input is read while there is no server, in bytes.
	maxWaiting = 64 << 20
	// greeting is how long a server may take to answer the client's initialize again.
	greeting = 30 * time.Second
	// pause is how long Run waits before it looks for a server again.
	pause = time.Second
)

// Open connects to the first server. It reads no input yet.
func (s *Stdio) Open(ctx context.Context) error {
	wanted := make(chan struct{})
	close(wanted)
	stream, err := s.dial(ctx, wanted)
	s.stream = stream
	return err
}

func (s *Stdio) dial(ctx context.Context, wanted <-chan struct{}) (*conn.Buffered, error) {
	c, err := s.Connect(ctx, wanted)
	if err != nil {
		return nil, err
	}
	path, asked := stdioPath, url.Values{}
	for name, value := range map[string]string{"tools": s.View, "results": s.Results} {
		if value != "" {
			asked.Set(name, value)
		}
	}
	if len(asked) > 0 {
		path += "?" + asked.Encode()
	}
	return c.upgrade(ctx, path, protocol.UpgradeMCP)
}

// input is what was read of In, and not yet sent.
type input struct {
	lines   chan []byte // closed at the end
	ended   bool
	waiting [][]byte
	size    int // of waiting, in bytes
}

// Run passes messages on until In ends and all is answered, or until ctx ends. It is called after Open.
func (s *Stdio) Run(ctx context.Context) error {
	in := &input{lines: make(chan []byte)}
	go readLines(s.In, in.lines) // nobody waits for it: a read of a terminal cannot be ended
	for {
		lost := s.serve(ctx, in)
		if ctx.Err() != nil || !lost {
			return nil
		}
		s.writeAll(s.talk.lost())
		if in.ended && len(in.waiting) == 0 && !s.talk.waits() {
			return errors.New("the Sandlot server has ended before it had answered all calls; what was called is not known " +
				"to be done")
		}
		s.Note("the Sandlot server has ended; connecting to the next one")
		if again, err := s.reconnect(ctx, in); err != nil || !again {
			return err
		}
	}
}

// readLines sends each line of the input, with its end.
func readLines(r io.Reader, lines chan<- []byte) {
	defer close(lines)
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			lines <- append(bytes.TrimRight(line, "\r\n"), '\n')
		}
		if err != nil {
			return
		}
	}
}

// serve passes messages on between the client and the server. lost: the server has ended, and the client has not.
func (s *Stdio) serve(ctx context.Context, in *input) (lost bool) {
	stream := s.stream
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	down := make(chan struct{})
	go func() {
		defer close(down)
		s.passAnswers()
	}()
	defer func() {
		s.stream.Close()
		<-down
	}()
	for _, m := range s.talk.again() {
		s.send(m)
	}
	for _, line := range in.waiting {
		s.send(s.talk.fromClient(line))
	}
	in.waiting, in.size = nil, 0
	if in.ended {
		s.stream.CloseWrite()
	}
	for {
		lines := in.lines
		if in.ended {
			lines = nil
		}
		select {
		case line, ok := <-lines:
			if !ok {
				in.ended = true
				s.stream.CloseWrite()
				continue
			}
			s.send(s.talk.fromClient(line)) // what cannot be sent is noted, and down follows
		case <-down:
			return !in.ended || s.talk.waits()
		case <-ctx.Done():
			return false
		}
	}
}

// send sends a line, unless it is empty. When it fails, the reader of answers learns that the server has ended.
func (s *Stdio) send(line []byte) {
	if len(line) == 0 {
		return
	}
	if _, err := s.stream.Write(line); err != nil {
		s.stream.Close()
	}
}

// passAnswers passes the server's messages on until it ends. A part of a message is dropped.
func (s *Stdio) passAnswers() {
	for {
		line, err := s.stream.Reader.ReadBytes('\n')
		if err != nil {
			return
		}
		if s.talk.fromServer(line) {
			s.writeAll([][]byte{line})
		}
	}
}

func (s *Stdio) writeAll(lines [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range lines {
		_, _ = s.Out.Write(l) // a client that does not read any more ends its input, too
	}
}

// reconnect connects to the next server, and makes it know the client. Meanwhile it reads the input. When no server can
// be had, the calls that wait are answered with the reason, and the next call tries again. false: the input has ended.
func (s *Stdio) reconnect(ctx context.Context, in *input) (again bool, err error) {
	for {
		stream, err := s.nextStream(ctx, in)
		if err == nil && stream == nil {
			return false, nil
		}
		if err == nil {
			s.stream = stream
			if err = s.greet(ctx); err == nil {
				s.writeAll(s.talk.news())
				return true, nil
			}
			stream.Close()
		}
		if ctx.Err() != nil {
			return false, nil
		}
		for _, line := range in.waiting {
			s.talk.fromClient(line) // to know what has to be answered
		}
		in.waiting, in.size = nil, 0
		s.writeAll(s.talk.unreachable(err))
		problem, _ := errors.AsType[*protocol.Problem](err)
		refused := problem != nil && problem.Status < http.StatusInternalServerError &&
			problem.Status != http.StatusTooManyRequests
		if refused || in.ended {
			return false, fmt.Errorf("the connection to the Sandlot server was lost, and another one is not possible: %w",
				err)
		}
		s.Note("no Sandlot server can be reached; the next call tries again: " + err.Error())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false, nil
		}
	}
}

// nextStream connects, and reads the input meanwhile. nil without an error: there is nothing left to do.
func (s *Stdio) nextStream(ctx context.Context, in *input) (*conn.Buffered, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wanted := make(chan struct{})
	want := sync.OnceFunc(func() { close(wanted) })
	if len(in.waiting) > 0 || s.talk.waits() {
		want()
	}
	type result struct {
		stream *conn.Buffered
		err    error
	}
	done := make(chan result, 1)
	go func() {
		stream, err := s.dial(ctx, wanted)
		done <- result{stream, err}
	}()
	for {
		lines := in.lines
		if in.ended || in.size > maxWaiting {
			lines = nil
		}
		select {
		case r := <-done:
			return r.stream, r.err
		case line, ok := <-lines:
			if !ok {
				in.ended = true
				if len(in.waiting) > 0 || s.talk.waits() {
					continue
				}
				cancel()
				if r := <-done; r.stream != nil {
					r.stream.Close()
				}
				return nil, nil
			}
			in.waiting, in.size = append(in.waiting, line), in.size+len(line)
			want()
		}
	}
}

// greet says to a new server what the client has said to the one before.
func (s *Stdio) greet(ctx context.Context) error {
	first, rest := s.talk.greeting()
	if first != nil {
		stream := s.stream
		stop := context.AfterFunc(ctx, func() { stream.Close() })
		defer stop()
		late := time.AfterFunc(greeting, func() { stream.Close() })
		defer late.Stop()
		s.send(first.line)
		for answered := false; !answered; {
			line, err := s.stream.Reader.ReadBytes('\n')
			if err != nil {
				return fmt.Errorf("the new server did not take the client's initialize: %w", err)
			}
			m := parse(line)
			if answered = m.Method == "" && string(m.ID) == first.id; !answered {
				s.writeAll([][]byte{line})
			} else if len(m.Error) > 0 {
				return fmt.Errorf("the new server refuses the client's initialize: %s", fault.Printable(string(m.Error), 300))
			}
		}
	}
	for _, line := range rest {
		s.send(line)
	}
	return nil
}

// talk is what has to be known of what a client and its servers have said.
type talk struct {
	mu sync.Mutex

	initialize  []byte // the client's message, when it is answered; nil: it speaks the stateless protocol, or not yet
	initialized bool
	level       json.RawMessage // parameters of logging/setLevel; nil: none
	subscribed  []string        // URIs

	calls []call          // of the client, which are not answered
	asked map[string]bool // ids of requests of the server that the client has not answered
	own   map[string]bool // ids of messages of this program whose answers are not for the client
}

// call is a request of the client.
type call struct {
	id, method string
	line       []byte // to send it again; nil: it is not sent again
	params     callParams
}

// callParams are the parameters that matter here.
type callParams struct {
	URI   string                     `json:"uri"`
	Level json.RawMessage            `json:"level"`
	Meta  map[string]json.RawMessage `json:"_meta"`
	// Notifications of subscriptions/listen.
	Notifications map[string]json.RawMessage `json:"notifications"`
}

// message is a line.
type message struct {
	ID            json.RawMessage
	Method        string
	Params        json.RawMessage
	Result, Error json.RawMessage
}

// parse reads a line; one that is none is the zero value.
func parse(line []byte) (m message) {
	if json.Unmarshal(line, &m) != nil {
		return message{}
	}
	return m
}

// parseAll returns the messages of a line, which may be a batch.
func parseAll(line []byte) (all []message) {
	if trimmed := bytes.TrimSpace(line); len(trimmed) == 0 || trimmed[0] != '[' {
		return []message{parse(line)}
	}
	_ = json.Unmarshal(line, &all) // the server says what is wrong with it
	return all
}

// repeatable are the methods of requests that change nothing outside of the talk, and are sent again.
var repeatable = map[string]bool{"initialize": true, "server/discover": true, "ping": true, "tools/list": true,
	"prompts/list": true, "resources/list": true, "resources/templates/list": true, "logging/setLevel": true,
	"resources/subscribe": true, "resources/unsubscribe": true, "subscriptions/listen": true}

// fromClient notes what the client says, and returns what the server gets of it.
func (t *talk) fromClient(line []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := parseAll(line)
	for _, m := range all {
		switch {
		case m.Method == "notifications/initialized":
			t.initialized = true
		case m.Method != "" && len(m.ID) > 0:
			c := call{id: string(m.ID), method: m.Method}
			_ = json.Unmarshal(m.Params, &c.params) // the server says what is wrong with them
			if repeatable[m.Method] && len(all) == 1 {
				c.line = line
			}
			t.calls = append(t.calls, c)
		case m.Method == "" && len(m.ID) > 0 && len(all) == 1:
			if !t.asked[string(m.ID)] {
				return nil // a server that has ended has asked
			}
			delete(t.asked, string(m.ID))
		}
	}
	return line
}

// fromServer notes what a server says, and reports whether the client gets it.
func (t *talk) fromServer(line []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range parseAll(line) {
		switch {
		case len(m.ID) == 0:
		case m.Method != "":
			if t.asked == nil {
				t.asked = map[string]bool{}
			}
			t.asked[string(m.ID)] = true
		case t.own[string(m.ID)]:
			delete(t.own, string(m.ID))
			return false
		default:
			t.answered(string(m.ID), len(m.Error) == 0)
		}
	}
	return true
}

// answered notes that a call has its answer.
func (t *talk) answered(id string, well bool) {
	for i, c := range t.calls {
		if c.id != id {
			continue
		}
		t.calls = append(t.calls[:i:i], t.calls[i+1:]...)
		if !well {
			return
		}
		switch c.method {
		case "initialize":
			t.initialize = c.line
		case "logging/setLevel":
			t.level = c.params.Level
		case "resources/subscribe", "resources/unsubscribe":
			t.subscribed = without(t.subscribed, c.params.URI)
			if c.method == "resources/subscribe" {
				t.subscribed = append(t.subscribed, c.params.URI)
			}
		}
		return
	}
}

func without(all []string, one string) (rest []string) {
	for _, s := range all {
		if s != one {
			rest = append(rest, s)
		}
	}
	return rest
}

// waits reports whether the client waits for answers that a server can still give.
func (t *talk) waits() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.calls {
		if c.method != "subscriptions/listen" {
			return true
		}
	}
	return false
}

// again returns the requests that are sent to the next server again.
func (t *talk) again() (lines [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.calls {
		lines = append(lines, c.line)
	}
	return lines
}

// lostText is what a client is told of a call that ran when the server ended.
const lostText = "the Sandlot server has ended while this call ran: it was stopped, restarted or upgraded. What the " +
	"call has done is not known. Sessions and their files go on with the next server: look at what is there, and call " +
	"again if it is needed"

// lost ends what went on with a server that has ended, and returns what the client is told.
func (t *talk) lost() (lines [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var kept []call
	for _, c := range t.calls {
		if c.line != nil {
			kept = append(kept, c)
			continue
		}
		lines = append(lines, c.failed(lostText))
	}
	for id := range t.asked {
		lines = append(lines, notification("notifications/cancelled",
			map[string]any{"requestId": json.RawMessage(id), "reason": "the Sandlot server has ended"}))
	}
	t.calls, t.asked, t.own = kept, nil, nil
	return lines
}

// unreachable ends all calls but subscriptions, and returns what the client is told.
func (t *talk) unreachable(err error) (lines [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var kept []call
	for _, c := range t.calls {
		if c.method == "subscriptions/listen" {
			kept = append(kept, c)
			continue
		}
		lines = append(lines, c.failed("no Sandlot server can be reached, so nothing was done: "+err.Error()))
	}
	t.calls = kept
	return lines
}

// failed returns the answer to a call that has failed. A tool's is a result, which models are shown.
func (c call) failed(text string) []byte {
	answer := map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(c.id)}
	if c.method == "tools/call" {
		result := map[string]any{"isError": true, "content": []any{map[string]string{"type": "text", "text": text}}}
		if c.params.Meta["io.modelcontextprotocol/protocolVersion"] != nil {
			result["resultType"] = "complete"
		}
		answer["result"] = result
	} else {
		f := fault.New(fault.Connection, "%s", text)
		answer["error"] = map[string]any{"code": f.RPC(), "message": text, "data": f.Data()}
	}
	return line(answer)
}

func notification(method string, params map[string]any) []byte {
	m := map[string]any{"jsonrpc": "2.0", "method": method}
	if params != nil {
		m["params"] = params
	}
	return line(m)
}

// line returns a message as a line. All that comes here can be encoded.
func line(m map[string]any) []byte {
	b, _ := json.Marshal(m)
	return append(b, '\n')
}

// ownCall is a request of this program.
type ownCall struct {
	id   string // as JSON
	line []byte
}

// greeting returns what a new server has to know of the client: the initialize whose answer has to be awaited, and what
// follows.
func (t *talk) greeting() (first *ownCall, rest [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.own = map[string]bool{}
	if t.initialize == nil {
		return nil, nil
	}
	first = newCall("initialize", parse(t.initialize).Params)
	if !t.initialized {
		return first, nil
	}
	rest = append(rest, notification("notifications/initialized", nil))
	if t.level != nil {
		rest = append(rest, t.say("logging/setLevel", map[string]any{"level": t.level}))
	}
	for _, uri := range t.subscribed {
		rest = append(rest, t.say("resources/subscribe", map[string]any{"uri": uri}))
	}
	return first, rest
}

// newCall returns a request with an id that no client uses.
func newCall(method string, params any) *ownCall {
	id := "sandlot-" + rand.Text()
	quoted, _ := json.Marshal(id)
	return &ownCall{string(quoted), line(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})}
}

// say returns a request whose answer is not for the client. The caller holds t.mu.
func (t *talk) say(method string, params any) []byte {
	c := newCall(method, params)
	t.own[c.id] = true
	return c.line
}

// lists are the notifications that a list may have changed, by their names in subscriptions/listen.
var lists = []struct{ name, method string }{{"toolsListChanged", "notifications/tools/list_changed"},
	{"promptsListChanged", "notifications/prompts/list_changed"},
	{"resourcesListChanged", "notifications/resources/list_changed"}}

// news returns what a client is told when it has a new server: another version may have other lists.
func (t *talk) news() (lines [][]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.initialize != nil && t.initialized {
		for _, l := range lists {
			lines = append(lines, notification(l.method, nil))
		}
	}
	for _, c := range t.calls {
		for _, l := range lists {
			if c.method == "subscriptions/listen" && string(c.params.Notifications[l.name]) == "true" {
				lines = append(lines, notification(l.method, map[string]any{"_meta": map[string]any{
					"io.modelcontextprotocol/subscriptionId": json.RawMessage(c.id)}}))
			}
		}
	}
	return lines
}
