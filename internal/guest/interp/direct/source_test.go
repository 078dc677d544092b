package direct

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// side is a part of the protocol that the model has steps of its own for: those lines of
// a source, between two marks, that touch a shared word, a connection or the output.
type side struct {
	name, file, from, to string
	touches              string
	lines                []string
}

var sides = []side{
	{"the driver's state", "../drivers/python.py", "        def set_state(", "        def run_next(",
		`self\.(words|fence)`,
		[]string{
			"self.words[STATE] = self.cell | value", // state = …
			"with self.fence:",                      // fence
		}},
	{"the driver's cell", "../drivers/python.py", "            self.cell = (token", "        def warm_up(",
		`self\.(words|set_state|finish|conn)|send_reply\(|await_signals\(|run_cell\(`, []string{
			"self.set_state(RUNNING)", // dRun, dRunFence
			"while self.words[READING_STDOUT] or self.words[READING_STDERR]:", // dReaders
			`if self.words[SIGNALS_SENT] != state["signals_sent"]:`,
			// no step: the cell has begun
			"await_signals(self.words[SIGNALS_SENT])",                                               //
			`reply = run_cell(token, "<code %d>" % state["cell"], code.decode("utf-8", "replace"))`, // dCell
			// dFinish, dFinishFence
			"self.set_state(FINISHING)",
			"while self.words[REQUESTED] and not self.words[SUPERVISED]:",   // dAsked, dDecided
			"outcome = self.words[SUPERVISED] or self.finish(reply, limit)", // dSupervised
			"send_reply(reply)",                                             // dTellAgent
			"self.words[STATE] = self.cell | IDLE",                          // dIdleAfter
		}},
	{"the driver's end", "../drivers/python.py", "        def finish(", "        def host_gone(",
		`self\.(words|set_state|conn|poll|unread|host_gone)|read\(`, []string{
			"for fd, event in self.poll(0):", // dLook
			"out = unread(6)",
			"err = unread(7)",
			// dNotify, dKeeps
			"self.words[HANDOVER] or self.words[BUFFERED_STDOUT] or self.words[BUFFERED_STDERR] or conn_closed:",
			"self.set_state(RUNNING)",           // dLeave, dLeaveFence
			`self.conn.sendall(b"0 0 0\n")`,     // dSayLeave
			"while not self.words[SUPERVISED]:", // dWait
			"if clock.monotonic() > deadline if conn_closed else self.host_gone():",
			"self.words[STATE] = self.cell | IDLE",
			`out, err = read(6, out) if out else b"", read(7, err) if err else b""`, // dRead
			"self.words[STATE] = self.cell | IDLE",                                  // dIdle
			"self.conn.sendall(data)",                                               // dAnswer
		}},
	{"the agent's supervision", "../direct.go", "func (i *Interp) Supervise(", "// SetHandover",
		`i\.shared|i\.acquire\(|i\.release|i\.lastSupervised|attach|poll|finish|ctx\.Err`, []string{
			"if err := i.acquire(ctx, nil); err != nil {", // aReady
			"defer i.release()",
			"if ctx.Err() != nil && !stop {",
			"return nil, false, ctx.Err() // the host has given the cell up, and may have sent the next one",
			"p, supervisedBefore := i.process, i.lastSupervised == id",
			"if p.alive() && !i.shared.Supervise(id) {", // aAsk, aOver, aWithdraw, aLeft, aAdopt
			"defer i.shared.Release()",                  // aLeave, aWithdrawn
			"i.lastSupervised = id",
			"p.out.attach(c.Stdout)", // aAttach
			"p.err.attach(c.Stderr)",
			"p.out.poll()",
			"p.err.poll()",
			"return i.finish(ctx, p, id, began, c), true, nil", // aReply, aFlush
		}},
	{"the agent's decision", "shared.go", "func (s *Shared) Supervise(", "func (s *Shared) request()",
		`s\.(request|isOver|withdraw|adopt|release)`, []string{
			"s.request()",       // aAsk
			"if s.isOver(id) {", // aOver
			"s.withdraw()",      // aWithdraw
			"s.adopt()",         // aAdopt
			"s.release()",       // aLeave
			"s.withdraw()",      // aWithdrawn
		}},
	{"the agent's look", "shared.go", "func (s *Shared) BeginRead(", "func (s *Shared) beginReading(",
		`s\.(beginReading|Idle|EndRead)`, []string{
			"s.beginReading(stream)", // reads = 1
			"if s.Idle() {",          // looks at state
			"s.EndRead(stream)",      // reads = 0
		}},
	{"the agent's reader", "../output.go", "func (o *output) next(", "// readOnce",
		`o\.(shared|mu|readOnce)|writer|sink`, []string{
			"o.mu.Lock()",
			"defer o.mu.Unlock()",
			"if o.sink == nil && o.shared != nil {",
			"if !o.shared.BeginRead(o.stream) {", // reads = 1, looks at state
			"defer o.shared.EndRead(o.stream)",   // reads = 0
			"n, err = o.readOnce(fd)",            // reads, keeps = 1
			"o.mu.Lock()",
			"defer o.mu.Unlock()",
			"n, err := o.readOnce(fd)",
		}},
	{"the host's cell", "../../../agent/direct/conn.go", "func (c *Conn) Run(", "// How often",
		`Fprintf|Peek|c\.readAnswer|supervise\(`, []string{
			`if _, err := fmt.Fprintf(c.conn, "%d %d %d\n%s", id, len(code), limit, code); err != nil {`, // hSend
			"_, err := c.reader.Peek(1)",               // hWait
			"a, err := c.readAnswer(id, limit)",        // hWait, hDriver
			"over, superviseErr := supervise(ctx, id)", // hAsk, hAnswered
			"_, err = c.reader.Peek(1)",                // hDriver
		}},
	{"the host's cell that is given up", "../../../agent/direct/conn.go", "func (c *Conn) AwaitEnd(", "\n}\n",
		`c\.readAnswer|stop\(`, []string{
			"over, err := stop(ctx, id)",            // hStop, hStopped
			"a, err := c.readAnswer(id, MaxAnswer)", // hStopDriver
		}},
}

// The model has the steps of the sources, in their order: who changes one, changes the
// other.
func TestTheModelIsTheCode(t *testing.T) {
	for _, s := range sides {
		text, err := os.ReadFile(s.file)
		if err != nil {
			t.Fatal(err)
		}
		_, part, ok := strings.Cut(string(text), s.from)
		part, _, ok2 := strings.Cut(part, s.to)
		if !ok || !ok2 {
			t.Errorf("%s: %s has no longer %q before %q", s.name, s.file, s.from, s.to)
			continue
		}
		touches := regexp.MustCompile(s.touches)
		var lines []string
		for line := range strings.Lines(part) {
			if line = strings.TrimSpace(line); touches.MatchString(line) && !strings.HasPrefix(line, "#") &&
				!strings.HasPrefix(line, "//") {
				lines = append(lines, line)
			}
		}
		if !slices.Equal(lines, s.lines) {
			t.Errorf("%s is no longer what the model has. It is\n\t%s\nand was\n\t%s", s.name, strings.Join(lines,
				"\n\t"), strings.Join(s.lines, "\n\t"))
		}
	}
}
