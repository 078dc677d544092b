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
	{"the driver's state", "../drivers/python.py", "        def say(", "        def take(", `self\.(word|fence)`,
		[]string{
			"self.word[STATE] = self.cell | word", // state = …
			"with self.fence:",                    // fence
		}},
	{"the driver's cell", "../drivers/python.py", "            self.cell = (token", "        def warm(",
		`self\.(word|say|end|link)|answer\(|run_cell\(`, []string{
			"self.say(RUNNING)", // dRun, dRunFence
			"while self.word[READS_OUT] or self.word[READS_ERR]:", // dReaders
			`if self.word[SIGNALS] != state["sent"]:`,
			// no step: the cell has begun
			"hear(self.word[SIGNALS])", //
			`reply = run_cell(token, "<code %d>" % state["n"], code.decode("utf-8", "replace"))`, // dCell
			"self.say(FINISHING)", // dFinish, dFinishFence
			"while self.word[ASKED] and not self.word[SUPERVISED]:",  // dAsked, dDecided
			"kept = self.word[SUPERVISED] or self.end(reply, limit)", // dSupervised
			"answer(reply)",                       // dTellAgent
			"self.word[STATE] = self.cell | IDLE", // dIdleAfter
		}},
	{"the driver's end", "../drivers/python.py", "        def end(", "        def waiting(",
		`self\.(word|say|link|streams|waiting|gone)|read\(`, []string{
			"for fd, event in self.streams(0):", // dLook
			"out = self.waiting(6)",
			"err = self.waiting(7)",
			"self.word[NOTIFY] or self.word[KEEPS_OUT] or self.word[KEEPS_ERR] or cut:", // dNotify, dKeeps
			"self.say(RUNNING)",                // dLeave, dLeaveFence
			`self.link.sendall(b"0 0 0\n")`,    // dSayLeave
			"while not self.word[SUPERVISED]:", // dWait
			"if self.now() > until if cut else self.gone():",
			"self.word[STATE] = self.cell | IDLE",
			`out, err = read(6, out) if out else b"", read(7, err) if err else b""`, // dRead
			"self.word[STATE] = self.cell | IDLE",                                   // dIdle
			"self.link.sendall(data)",                                               // dAnswer
		}},
	{"the agent's supervision", "../direct.go", "func (i *Interp) Supervise(", "// Notify",
		`i\.shared|i\.acquire\(|i\.release|i\.supervised|attach|poll|finish|ctx\.Err`, []string{
			"if err := i.acquire(ctx, nil); err != nil {", // aReady
			"defer i.release()",
			"if ctx.Err() != nil && !stop {",
			"return nil, false, ctx.Err() // the host gave it up, and may be at the next cell",
			"p, had := i.proc, i.supervised == id",
			"if p.alive() && !i.shared.Supervise(id) {", // aAsk, aOver, aWithdraw, aLeft, aAdopt
			"defer i.shared.Release()",                  // aLeave, aWithdrawn
			"i.supervised = id",
			"p.out.attach(c.Stdout)", // aAttach
			"p.err.attach(c.Stderr)",
			"p.out.poll()",
			"p.err.poll()",
			"return i.finish(ctx, p, id, began, c), true, nil", // aReply, aFlush
		}},
	{"the agent's decision", "shared.go", "func (s *Shared) Supervise(", "func (s *Shared) ask()",
		`s\.(ask|over|withdraw|adopt|dismiss)`, []string{
			"s.ask()",         // aAsk
			"if s.over(id) {", // aOver
			"s.withdraw()",    // aWithdraw
			"s.adopt()",       // aAdopt
			"s.dismiss()",     // aLeave
			"s.withdraw()",    // aWithdrawn
		}},
	{"the agent's look", "shared.go", "func (s *Shared) BeginRead(", "func (s *Shared) reads(",
		`s\.(reads|Idle|EndRead)`, []string{
			"s.reads(stream)",   // reads = 1
			"if s.Idle() {",     // looks at state
			"s.EndRead(stream)", // reads = 0
		}},
	{"the agent's reader", "../output.go", "func (o *output) next(", "// once", `o\.(shared|mu|once)|sink`, []string{
		"o.mu.Lock()",
		"defer o.mu.Unlock()",
		"if o.sink == nil && o.shared != nil {",
		"if !o.shared.BeginRead(o.stream) {", // reads = 1, looks at state
		"defer o.shared.EndRead(o.stream)",   // reads = 0
		"n, err = o.once(fd)",                // reads, keeps = 1
		"o.mu.Lock()",
		"defer o.mu.Unlock()",
		"n, err := o.once(fd)",
	}},
	{"the host's cell", "../../../agent/direct/way.go", "func (w *Way) Run(", "// How often",
		`Fprintf|Peek|w\.answer|supervise\(`, []string{
			`if _, err := fmt.Fprintf(w.conn, "%d %d %d\n%s", id, len(code), limit, code); err != nil {`, // hSend
			"_, err := w.r.Peek(1)",            // hWait
			"a, err := w.answer(id, limit)",    // hWait, hDriver
			"over, serr := supervise(ctx, id)", // hAsk, hAnswered
			"_, err = w.r.Peek(1)",             // hDriver
		}},
	{"the host's cell that is given up", "../../../agent/direct/way.go", "func (w *Way) Await(", "\n}\n",
		`w\.answer|stop\(`, []string{
			"over, err := stop(ctx, id)",        // hStop, hStopped
			"a, err := w.answer(id, MaxAnswer)", // hStopDriver
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
