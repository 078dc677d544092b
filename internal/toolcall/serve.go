package toolcall

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/tool"
)

const (
	// maxCalls bounds the calls under way of one sandbox, and maxPrincipal a principal's. More wait for
	// busyAfter.
	maxCalls     = 32
	maxPrincipal = 64
	busyAfter    = 30 * time.Second
	// maxConns bounds the connections of one sandbox. Its agent makes fewer.
	maxConns = 128
	// maxRequest bounds a request, and maxAnswer an answer, in bytes.
	maxRequest = 16 << 20
	maxAnswer  = limit.LargestAnswer
	// maxDescribed bounds the definitions of all tools of a server.
	maxDescribed = 1 << 20
	// idleLimit is how long a connection may have no request. stallLimit is how long a program may take to send more
	// of a request, or to read more of an answer.
	idleLimit  = 5 * time.Minute
	stallLimit = time.Minute
	// maxTimeout bounds the timeout of a request.
	maxTimeout = time.Hour
	// lastWord is how long the answer may take that says that a connection ends.
	lastWord = time.Second
)

// sharedSlots are the slots of one principal in all sandboxes.
type sharedSlots struct {
	slots chan struct{}
	users int
}

// conn is a program's connection.
type conn struct {
	sandbox *sandbox
	net     net.Conn
	reader  *bufio.Reader
	from    func() agent.Caller

	writing sync.Mutex
}

// Serve implements agent.Tools.
func (s *sandbox) Serve(ctx context.Context, c net.Conn, from func() agent.Caller) {
	defer c.Close()
	defer s.conns.Add(-1)
	if s.conns.Add(1) > maxConns {
		return
	}
	if !s.calls.begin() {
		l := &conn{net: c}
		l.write(ctx, answer{Error: stopping})
		return
	}
	defer s.calls.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.calls.ctx, cancel)()
	// A read or write that waits ends. What is written after that has lastWord.
	defer context.AfterFunc(ctx, func() {
		c.SetReadDeadline(time.Unix(1, 0))
		c.SetWriteDeadline(time.Now().Add(lastWord))
	})()
	l := &conn{sandbox: s, net: c, reader: bufio.NewReaderSize(c, 16<<10), from: from}
	var err error // logged
	defer fault.Recover(ctx, s.calls.Log, "calls of tools by code", &err)
	for ctx.Err() == nil && l.serveOne(ctx) {
	}
}

// serveOne answers one request, and reports whether the connection can have another one.
func (c *conn) serveOne(ctx context.Context) bool {
	reservation := c.sandbox.calls.Limits.NewReservation(c.sandbox.owner.ID, limit.RequestBytes)
	defer reservation.Release()
	line, err := c.readLine(ctx, reservation)
	if refused, ok := errors.AsType[refusedLine](err); ok {
		return c.write(ctx, answer{Error: failed(err)}) && refused.skip(ctx, c)
	}
	if err != nil {
		if c.sandbox.calls.ctx.Err() != nil { // there may be a request that was not read, or not whole
			c.write(ctx, answer{Error: stopping})
		}
		return false
	}
	q, err := c.sandbox.calls.decode(line)
	if err != nil {
		return c.write(ctx, answer{Error: &answerError{Code: codeInvalid,
			Message: `a request is one line of JSON, such as {"call": {"server": "NAME", "tool": "NAME", "arguments": {}}}`}})
	}
	switch {
	case q.Call != nil:
		return c.call(ctx, q.Call)
	case q.Search != nil:
		return c.find(ctx, func(who caller, _ *limit.Answers) (answer, error) {
			s := q.Search
			found, err := c.sandbox.calls.Finder.SearchJSON(who.ctx, who.principal, s.Query, s.Server, s.Limit)
			return answer{Found: found}, err
		})
	case q.Describe != nil:
		return c.find(ctx, func(who caller, answers *limit.Answers) (answer, error) {
			described, err := c.sandbox.describe(who, *q.Describe, answers)
			return answer{Described: described}, err
		})
	}
	return c.write(ctx, answer{Error: &answerError{Code: codeInvalid,
		Message: "a request has one of the fields call, search and describe"}})
}

// find answers a request that calls no tool, and reports whether the connection can have another one. It counts as a
// call: memory and time of many at once are bounded.
func (c *conn) find(ctx context.Context, find func(caller, *limit.Answers) (answer, error)) bool {
	s := c.sandbox
	answers := s.calls.Limits.NewAnswers(s.owner.ID)
	defer answers.Release()
	leave, err := s.enter(ctx)
	if err != nil {
		return c.write(ctx, answer{Error: failed(err)})
	}
	found, err := func() (answer, error) {
		defer leave() // before a slow program reads the answer
		who, release := s.callerOf(ctx, c.from())
		defer release()
		return find(who, answers)
	}()
	if err != nil {
		found = answer{Error: failed(err)}
	}
	return c.write(ctx, found)
}

// describe returns the definitions that a request asks for. Those of all tools of a server may have maxDescribed
// bytes.
func (s *sandbox) describe(who caller, q Describe, answers *limit.Answers) ([]Described, error) {
	all, err := s.calls.describe(who.principal, q)
	size := 0
	for _, d := range all {
		size += len(d.Definition)
	}
	if err == nil && q.Tool == "" && size > maxDescribed {
		err = &answerError{Code: codeTooLarge, Message: fmt.Sprintf("the definitions of all %d tools of %q are larger "+
			"than %d MiB: name one of its tools", len(all), fault.Clip(q.Server), maxDescribed>>20)}
	}
	if err == nil {
		err = answers.NewReservation().ReserveAnswer(who.ctx, size)
	}
	return all, err
}

// readLine reads a request. Memory is reserved as it arrives.
func (c *conn) readLine(ctx context.Context, reservation *limit.Reservation) (line []byte, err error) {
	c.net.SetReadDeadline(time.Now().Add(idleLimit))
	if ctx.Err() != nil { // it has set the deadline before
		return nil, ctx.Err()
	}
	if _, err := c.reader.Peek(1); err != nil {
		return nil, err
	}
	if err := c.sandbox.shared.budget.awaitRequest(ctx); err != nil {
		return nil, err
	}
	for {
		part, err := c.readPart(ctx)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		refused := reservation.Add(int64(len(part)))
		if len(line)+len(part) > maxRequest {
			refused = &answerError{Code: codeTooLarge, Message: "a request may have " +
				strconv.Itoa(maxRequest>>20) + " MiB: pass large data in a file"}
		}
		if refused != nil {
			return nil, refusedLine{refused, err == nil}
		}
		if size := len(line) + len(part); size > cap(line) { // append makes it less large, and so copies more often
			line = append(make([]byte, 0, len(line)+size), line...)
		}
		if line = append(line, part...); err == nil {
			return line, nil
		}
	}
}

// readPart reads a part of a line, and waits for the owner's budget. Its error is bufio.ErrBufferFull if more follows.
func (c *conn) readPart(ctx context.Context) ([]byte, error) {
	c.net.SetReadDeadline(time.Now().Add(stallLimit))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	part, err := c.reader.ReadSlice('\n')
	if wait := c.sandbox.shared.budget.awaitBytes(ctx, len(part)); wait != nil {
		return nil, wait
	}
	return part, err
}

// refusedLine is the error of a line that is not read to its end.
type refusedLine struct {
	error
	ended bool // there is no more of it
}

func (r refusedLine) Unwrap() error { return r.error }

// skip reads the rest of the line, since a program that still sends might not see the answer otherwise, and reports
// whether it has ended.
func (r refusedLine) skip(ctx context.Context, c *conn) bool {
	for skipped := 0; !r.ended && skipped < maxAnswer; {
		part, err := c.readPart(ctx)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return false
		}
		skipped += len(part)
		r.ended = err == nil
	}
	return r.ended
}

// call calls a tool, and reports whether the connection can have another request.
func (c *conn) call(ctx context.Context, q *Call) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopWatching := c.watch(cancel)
	progress := c.sendProgress(ctx, cancel)
	raw, answers, err := c.sandbox.makeCall(ctx, c.from, q, progress.add)
	defer answers.Release()
	if err != nil {
		answers.Release() // before a slow program reads what is left
	}
	stop, lost := c.watchLost(len(raw), answers.Lost())
	defer stop()
	if lost != nil {
		raw, err = nil, lost
		answers.Release()
	}
	read := progress.end() // nobody notifies any more: see makeCall
	if !stopWatching() || !read {
		return false
	}
	if err != nil {
		return c.write(ctx, answer{Error: failed(err)})
	}
	return c.writeResult(ctx, raw)
}

// watch calls gone when the program closes the connection, until stop is called, which reports whether it has not. The
// program may send its next requests: if they fill the buffer, what follows is seen when they have been read.
func (c *conn) watch(gone func()) (stop func() bool) {
	done := make(chan struct{})
	closed := false
	c.net.SetReadDeadline(time.Time{})
	go func() {
		defer close(done)
		for {
			_, err := c.reader.Peek(c.reader.Buffered() + 1)
			if isTimeout(err) || errors.Is(err, bufio.ErrBufferFull) {
				return
			}
			if err != nil {
				closed = true
				gone()
				return
			}
		}
	}()
	return func() bool {
		c.net.SetReadDeadline(time.Unix(1, 0))
		<-done
		return !closed
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// makeCall calls a tool. The answers count the memory of the result. When it returns, notify is not called any more.
func (s *sandbox) makeCall(ctx context.Context, from func() agent.Caller, q *Call,
	notify func(string)) (raw json.RawMessage, answers *limit.Answers, err error) {
	answers = s.calls.Limits.NewAnswers(s.owner.ID)
	defer fault.Recover(ctx, s.calls.Log, "a call of a tool by code", &err)
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, answers, err
	}
	defer leave()
	who, done := s.callerOf(ctx, from())
	defer done()
	name, err := s.toolName(who, q)
	if err != nil {
		return nil, answers, err
	}
	n := &notifier{notify: notify}
	defer n.end()
	callCtx, cancel := withTimeout(who.ctx, q.Timeout)
	defer cancel()
	call := tool.NewCall(who.principal, name, q.Arguments, answers.NewReservation())
	call.Client, call.Progress, call.FromSession = s.clientOf(callCtx, who, q, n), n.send, s.session
	var res *tool.Result
	if who.run != nil {
		res, err = s.calls.Door.CallExternal(callCtx, call)
	} else {
		res, err = s.calls.Door.CallInBackground(callCtx, s.session, call)
	}
	switch {
	case err == nil && res.Raw == nil:
		err = ownTool(name)
	case err == nil && len(res.Raw) > maxAnswer:
		err = &answerError{Code: codeTooLarge, Message: "the result is larger than " +
			strconv.Itoa(maxAnswer>>20) + " MiB"}
	case err == nil:
		return res.Raw, answers, nil
	case who.ctx.Err() != nil:
		err = &answerError{Code: codeEnded, Message: "the call was ended, as the code that made it was stopped, or " +
			"Sandlot ends or puts the session to sleep: it is not known whether it was carried out"}
	case callCtx.Err() != nil:
		err = &answerError{Code: codeTimeout, Message: "there was no answer in " +
			strconv.FormatFloat(q.Timeout, 'g', -1, 64) + " seconds; the call was cancelled"}
	}
	return nil, answers, err
}

// toolName returns the name by which clients call the tool of a request, if the caller may call it.
func (s *sandbox) toolName(who caller, q *Call) (string, error) {
	if err := s.mayCall(who, q.Server, q.Tool); err != nil {
		return "", err
	}
	name, err := s.calls.Servers.ToolName(who.ctx, who.principal, q.Server, q.Tool)
	if fault.Is(err, fault.NotFound) && s.calls.Door.Owns(q.Tool) {
		err = ownTool(q.Tool)
	}
	return name, err
}

// clientOf returns the client that a call's server may ask and notify, and sends its progress to n.
func (s *sandbox) clientOf(call context.Context, who caller, q *Call, n *notifier) tool.Client {
	away := &nobody{sandbox: s, call: call, what: who.what, server: q.Server, tool: q.Tool, progress: n.send}
	if who.run == nil {
		return away
	}
	n.also = who.run.progress
	switch c := (client{who.run.client, who.run.questions, n.send}); {
	case c.Client == nil:
		return away
	case tool.CanAsk(tool.User{Client: c.Client}):
		return c
	default:
		return silent{c, away}
	}
}

// ownTool returns the refusal of one of Sandlot's own tools: code would wait for the interpreter that it runs in.
func ownTool(name string) error {
	return fault.New(fault.Forbidden, "%s is a tool of Sandlot itself: use it from the client", fault.Clip(name))
}

// withTimeout returns a context that ends after so many seconds; 0: it does not.
func withTimeout(ctx context.Context, seconds float64) (context.Context, context.CancelFunc) {
	if !(seconds > 0) || seconds > maxTimeout.Seconds() {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second)))
}

// notifier passes progress on until end.
type notifier struct {
	notify, also func(string)

	mu    sync.Mutex
	ended bool
}

func (n *notifier) send(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return
	}
	n.notify(text)
	if n.also != nil {
		n.also(text)
	}
}

func (n *notifier) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
}

// enter waits for a slot of the sandbox, and one of its owner.
func (s *sandbox) enter(ctx context.Context) (leave func(), err error) {
	shared, forget := s.calls.slotsOf(s.owner.ID)
	timer := time.NewTimer(busyAfter)
	defer timer.Stop()
	for _, slots := range []chan struct{}{s.slots, shared} {
		select {
		case slots <- struct{}{}:
			continue
		case <-timer.C:
			err = &answerError{Code: codeBusy, Message: "too many calls of tools are under way: at most " +
				strconv.Itoa(maxCalls) + " of one session, and " + strconv.Itoa(maxPrincipal) + " of one user"}
		case <-ctx.Done():
			if err = ctx.Err(); s.calls.ctx.Err() != nil {
				err = stopping
			}
		}
		if slots == shared {
			<-s.slots
		}
		forget()
		return nil, err
	}
	return func() { <-shared; <-s.slots; forget() }, nil
}

// slotsOf returns the slots of a principal, which are kept until forget is called.
func (cs *Calls) slotsOf(owner string) (slots chan struct{}, forget func()) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	shared := cs.slots[owner]
	if shared == nil {
		shared = &sharedSlots{slots: make(chan struct{}, maxPrincipal)}
		cs.slots[owner] = shared
	}
	shared.users++
	return shared.slots, func() {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		if shared.users--; shared.users == 0 {
			delete(cs.slots, owner)
		}
	}
}

// writeResult writes the result of a tool as an answer, without decoding it.
func (c *conn) writeResult(ctx context.Context, raw json.RawMessage) bool {
	if bytes.IndexByte(raw, '\n') >= 0 {
		var line bytes.Buffer
		if err := json.Compact(&line, raw); err != nil {
			return c.write(ctx, answer{Error: failed(err)})
		}
		raw = line.Bytes()
	}
	before, after := []byte(`{"result":`), []byte("}\n")
	if len(raw) < writePart { // in one, so that the program and the agent wake once
		return c.writeParts(ctx, slices.Concat(before, raw, after))
	}
	return c.writeParts(ctx, before, raw, after)
}

// write writes an answer, and reports whether the program has read what came before.
func (c *conn) write(ctx context.Context, a answer) bool {
	line, err := json.Marshal(a)
	if err != nil { // an answer of the finder
		line, _ = json.Marshal(answer{Error: failed(err)})
	}
	return c.writeParts(ctx, append(line, '\n'))
}

// writePart is how many bytes a program has to read within stallLimit.
const writePart = 64 << 10

func (c *conn) writeParts(ctx context.Context, parts ...[]byte) bool {
	c.writing.Lock()
	defer c.writing.Unlock()
	for _, rest := range parts {
		for len(rest) > 0 {
			n := min(len(rest), writePart)
			limit := stallLimit
			if ctx.Err() != nil {
				limit = lastWord
			}
			c.net.SetWriteDeadline(time.Now().Add(limit))
			if _, err := c.net.Write(rest[:n]); err != nil {
				return false
			}
			rest = rest[n:]
		}
	}
	return true
}
