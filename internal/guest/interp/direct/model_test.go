package direct

import (
	"strings"
	"sync/atomic"
	"testing"
)

// The model has a host that sends two cells and may give each up, a driver, an agent
// with the requests to supervise that wait for it, the agent's reader of the output, and
// a program that a cell left behind, which writes at any time. Each step of it touches
// one word or one channel. The agent's steps are methods of Shared, the driver's and the
// host's are checked against their sources (source_test.go).
const cells = 2

// Tokens of output: one of each cell, and one of the program that was left behind.
type tokens uint8

func tokenOf(cell uint8) tokens { return 1 << cell }

const stray tokens = 1

// id is a cell's as the host makes it: a random part, and the cell's number.
func id(cell uint8) int64 { return 0xabcd<<16 | int64(cell) }

type memory [wordCount]uint32

// store is what the driver has written, and its processor has not: word and value.
type store struct {
	word  uint8
	value uint32
}

// request asks the agent to supervise a cell.
type request struct {
	cell uint8 // 0: none
	stop bool
	gone bool // the host does not wait for it any more
}

// answer is one message to the host.
type answer struct {
	cell uint8 // 0: none
	out  tokens
	left bool // there is more to it: the agent has the end, or the driver has it
}

// world is one state of all. It is comparable: equal ones are one.
type world struct {
	memory memory

	// The driver.
	driver  driverAt
	stores  [3]store // oldest first; word is 255 where there is none
	ran     uint8    // the cell it runs
	seen    tokens   // of the output, that it read or is to read
	toAgent [2]uint8 // cells that it has answered to the agent

	// The host.
	host     hostAt
	sent     uint8 // the last cell
	asks     uint8
	gaveUp   bool
	toDriver uint8     // a cell on the way
	toHost   [2]answer // from the driver

	// The agent.
	agent      agentAt
	request    request
	waiting    [3]request
	supervised uint8
	sink       uint8  // the cell that gets the output; 0: none
	got        tokens // by the sink
	kept       tokens // between cells
	fromAgent  answer // on the way to the host
	reader     readerAt

	// The output.
	pipe    tokens
	written tokens

	// What came of it.
	answers [cells + 1]uint8 // by driver, to the host or to the agent
	out     [cells + 1]tokens
	lost    tokens // with a cell that was given up
	wrong   fault
}

// fault is what is wrong with a world; 0: nothing.
type fault uint8

const (
	fNone fault = iota
	fStores
	fToHost
	fAsks
	fTwice
	fNoOutput
	fTurn
	fVain
	fOther
	fLost
	fWait
	fForever
	fEndless
)

var faults = [...]string{"", "the model's driver has too many stores on the way",
	"the driver says more than the host can read",
	"the host asks the agent without end", "a cell is answered twice", "a cell is answered without its output",
	"the driver speaks out of turn",
	"the host asks twice in vain", "the host takes a word for another cell's", "output is lost", "all wait",
	"all wait for ever", "there is no end to it"}

func (f fault) String() string { return faults[f] }

type (
	driverAt uint8
	hostAt   uint8
	agentAt  uint8
	readerAt uint8
)

const (
	dReceive driverAt = iota
	dRun
	dRunFence
	dReaders
	dCell
	dFinish
	dFinishFence
	dAsked
	dDecided
	dSupervised
	dLook
	dNotify
	dKeeps
	dLeave
	dLeaveFence
	dSayLeave
	dWait
	dRead
	dIdle
	dAnswer
	dTellAgent
	dIdleAfter
)

const (
	hSend hostAt = iota
	hWait
	hAsk
	hAnswered
	hDriver
	hStop
	hStopped
	hStopDriver
	hDone
)

const (
	aReady agentAt = iota
	aAsk
	aOver
	aWithdraw
	aLeft
	aAdopt
	aAttach
	aReply
	aFlush
	aLeave
	aWithdrawn
	aTell
)

const (
	rFree readerAt = iota
	rState
	rRead
	rKeep
	rEnd
	rRefused
)

// move is one step that the world can make.
type move struct {
	who  string
	next world
}

// mutant is a mistake that somebody might make; "" is the code as it is.
type mutant string

const (
	noFenceRunning  mutant = "the driver reads on before others see that it runs"
	noFenceFinish   mutant = "the driver reads on before others see that it has finished"
	noReaders       mutant = "the driver does not wait for the agent's reader"
	noAsked         mutant = "the driver does not wait for an agent that has asked"
	leaveFinishing  mutant = "the driver leaves the end to the agent and stays finishing"
	idleBeforeRead  mutant = "the driver is idle before it has read the output"
	bothAnswer      mutant = "the driver answers the host though the agent supervises"
	lookThenAsk     mutant = "the agent looks at the state before it asks"
	noWithdraw      mutant = "the agent does not withdraw what it asked in vain"
	pastIsFuture    mutant = "the agent takes a cell that is past for one that has not begun"
	readAnyway      mutant = "the agent reads between cells whatever the state"
	flushAfterTell  mutant = "the agent forgets what is left in the pipe at the end"
	twiceSupervised mutant = "the agent forgets which cell it has supervised"
	leaveUnread     mutant = "the host takes a late word of the driver for the next cell's answer"
)

// shared runs a step of the real code on the model's memory.
func (w *world) shared(step func(*Shared)) {
	s := &Shared{words: new([wordCount]atomic.Uint32)}
	for i, v := range w.memory {
		s.words[i].Store(v)
	}
	step(s)
	for i := range w.memory {
		w.memory[i] = s.words[i].Load()
	}
}

// put stores the state of the driver, which others see later.
func (w *world) put(value uint32) {
	for i := range w.stores {
		if w.stores[i].word == 255 {
			w.stores[i] = store{state, uint32(w.ran)<<16 | value}
			return
		}
	}
	w.wrong = fStores
}

// settled says that all stores of the driver are seen.
func (w *world) settled() bool { return w.stores[0].word == 255 }

func (w *world) toHostPut(a answer) {
	for i := range w.toHost {
		if w.toHost[i].cell == 0 {
			w.toHost[i] = a
			return
		}
	}
	w.wrong = fToHost
}

func (w *world) toHostTake() answer {
	a := w.toHost[0]
	w.toHost[0], w.toHost[1] = w.toHost[1], answer{}
	return a
}

func (w *world) answered(cell uint8) {
	if w.answers[cell]++; w.answers[cell] > 1 {
		w.wrong = fTwice
	}
}

// finish is the host's end of a cell with its output.
func (w *world) finish(cell uint8, out tokens) {
	w.out[cell] = out
	if w.gaveUp {
		w.lost |= out
	} else if mine := w.written & tokenOf(cell); out&mine != mine {
		w.wrong = fNoOutput
	}
	for other := uint8(1); other < cell; other++ {
		if out&tokenOf(other) != 0 && w.lost&tokenOf(other) == 0 && w.out[other]&tokenOf(other) == 0 && !w.gaveUp {
			w.lost |= tokenOf(other) // of one that was given up: checked when that was not
		}
	}
	w.asks, w.gaveUp = 0, false
	if w.host = hSend; cell == cells {
		w.host = hDone
	}
}

func start() world {
	w := world{}
	for i := range w.stores {
		w.stores[i].word = 255
	}
	return w
}

// moves lists all steps that the world can make.
func (w world) moves(m mutant) []move {
	var list []move
	add := func(who string, step func(*world)) {
		next := w
		step(&next)
		list = append(list, move{who, next})
	}
	if !w.settled() {
		add("processor: the driver's oldest store is seen", func(w *world) {
			w.memory[w.stores[0].word] = w.stores[0].value
			copy(w.stores[:], w.stores[1:])
			w.stores[len(w.stores)-1] = store{255, 0}
		})
	}
	if w.written&stray == 0 && w.ran > 0 {
		add("program: writes", func(w *world) { w.written |= stray; w.pipe |= stray })
	}
	w.driverMoves(m, add)
	w.hostMoves(m, add)
	w.agentMoves(m, add)
	w.readerMoves(m, add)
	return list
}

func (w world) driverMoves(m mutant, add func(string, func(*world))) {
	to := func(name string, at driverAt, step func(*world)) {
		add("driver: "+name, func(w *world) {
			w.driver = at
			if step != nil {
				step(w)
			}
		})
	}
	switch w.driver {
	case dReceive:
		if w.toDriver != 0 {
			to("receives a cell", dRun, func(w *world) { w.ran, w.toDriver, w.seen = w.toDriver, 0, 0 })
		}
	case dRun:
		to("state = running", dRunFence, func(w *world) { w.put(running) })
	case dRunFence:
		if w.settled() || m == noFenceRunning {
			to("fence", dReaders, nil)
		}
	case dReaders:
		if w.memory[readingStdout] == 0 || m == noReaders {
			to("nobody else reads", dCell, nil)
		}
	case dCell:
		to("runs the cell, which says nothing", dFinish, nil)
		to("runs the cell, which writes", dFinish,
			func(w *world) { w.pipe |= tokenOf(w.ran); w.written |= tokenOf(w.ran) })
	case dFinish:
		to("state = finishing", dFinishFence, func(w *world) { w.put(finishing) })
	case dFinishFence:
		if w.settled() || m == noFenceFinish {
			to("fence", dAsked, nil)
		}
	case dAsked:
		if w.memory[requested] == 0 || m == noAsked {
			to("nobody has asked", dSupervised, nil)
		} else {
			to("somebody has asked", dDecided, nil)
		}
	case dDecided:
		if w.memory[supervised] == 0 {
			to("and has not decided", dAsked, nil)
		} else {
			to("and supervises", dSupervised, nil)
		}
	case dSupervised:
		if w.memory[supervised] == 1 && m != bothAnswer {
			to("the agent supervises", dTellAgent, nil)
		} else {
			to("nobody supervises", dLook, nil)
		}
	default:
		w.driverEnds(m, to)
	}
}

// driverEnds is the end of a cell that nobody supervises.
func (w world) driverEnds(m mutant, to func(string, driverAt, func(*world))) {
	switch w.driver {
	case dLook:
		to("sees what was written", dNotify, func(w *world) { w.seen = w.pipe })
		to("sees that it is too much", dLeave, nil)
	case dNotify:
		if w.memory[handover] == 1 {
			to("the agent wants to know", dLeave, nil)
		} else {
			to("the agent need not know", dKeeps, nil)
		}
	case dKeeps:
		if w.memory[bufferedStdout] == 1 {
			to("the agent keeps output", dLeave, nil)
		} else {
			next := dRead
			if m == idleBeforeRead {
				next = dIdle
			}
			to("the agent keeps nothing", next, nil)
		}
	case dLeave:
		to("state = running again", dLeaveFence, func(w *world) {
			if m != leaveFinishing {
				w.put(running)
			}
		})
	case dLeaveFence:
		if w.settled() {
			to("fence", dSayLeave, nil)
		}
	case dSayLeave:
		to("tells the host that the agent has the end", dWait, func(w *world) {
			w.toHostPut(answer{cell: w.ran,
				left: true})
		})
	case dWait:
		if w.memory[supervised] == 1 {
			to("the agent supervises", dTellAgent, nil)
		}
	case dRead:
		to("reads the output", dIdle, func(w *world) { w.seen &= w.pipe; w.pipe &^= w.seen })
	case dIdle:
		to("state = idle", dAnswer, func(w *world) { w.put(idle) })
	case dAnswer:
		if w.settled() { // others see a message no earlier than what was stored before it
			to("answers the host", dReceive, func(w *world) {
				if m == idleBeforeRead {
					w.seen &= w.pipe
					w.pipe &^= w.seen
				}
				w.answered(w.ran)
				w.toHostPut(answer{cell: w.ran, out: w.seen})
				w.seen = 0
			})
		}
	case dTellAgent:
		if w.settled() {
			to("answers the agent", dIdleAfter, func(w *world) {
				w.seen = 0
				w.answered(w.ran)
				if w.toAgent[0] == 0 {
					w.toAgent[0] = w.ran
				} else {
					w.toAgent[1] = w.ran
				}
			})
		}
	case dIdleAfter:
		to("state = idle", dReceive, func(w *world) { w.put(idle) })
	}
}

func (w world) hostMoves(m mutant, add func(string, func(*world))) {
	to := func(name string, at hostAt, step func(*world)) {
		add("host: "+name, func(w *world) {
			w.host = at
			if step != nil {
				step(w)
			}
		})
	}
	ask := func(w *world, stop bool) {
		for i := range w.waiting {
			if w.waiting[i].cell == 0 {
				w.waiting[i] = request{cell: w.sent, stop: stop}
				return
			}
		}
		w.wrong = fAsks
	}
	switch w.host {
	case hSend:
		to("sends a cell", hWait, func(w *world) {
			if w.toHost[0].left && m != leaveUnread {
				w.toHostTake() // it came too late
			}
			if w.toHost[0].cell != 0 && m != leaveUnread {
				w.wrong = fTurn
			}
			w.sent++
			w.toDriver = w.sent
		})
	case hWait:
		to("15 ms are over", hAsk, nil)
		w.hostHears(hAsk, to)
	case hAsk:
		to("asks the agent to supervise", hAnswered, func(w *world) { w.asks++; ask(w, false) })
		to("gives the cell up unasked", hStop, func(w *world) { w.gaveUp = true })
	case hAnswered:
		if a := w.fromAgent; a.cell != 0 && a.left {
			to("hears that the cell is over", hDriver, func(w *world) {
				if w.fromAgent = (answer{}); w.asks > 1 {
					w.wrong = fVain
				}
			})
		} else if a.cell != 0 {
			to("hears the agent's answer", hSend, func(w *world) { w.fromAgent = answer{}; w.finish(a.cell, a.out) })
		}
		to("gives the cell up", hStop, func(w *world) {
			w.gaveUp = true
			w.lost |= w.fromAgent.out
			w.fromAgent = answer{}
			for i := range w.waiting {
				w.waiting[i].gone = w.waiting[i].gone || w.waiting[i].cell == w.sent
			}
			w.request.gone = w.request.gone || w.request.cell == w.sent
		})
	case hDriver:
		w.hostHears(hAsk, to)
	case hStop:
		to("asks the agent to stop the cell", hStopped, func(w *world) { ask(w, true) })
	case hStopped:
		if a := w.fromAgent; a.cell != 0 && a.left {
			to("hears that the cell to stop is over", hStopDriver, func(w *world) { w.fromAgent = answer{} })
		} else if a.cell != 0 {
			to("hears that the cell has stopped", hSend, func(w *world) {
				w.fromAgent = answer{}
				w.finish(a.cell,
					a.out)
			})
		}
	case hStopDriver:
		w.hostHears(hStop, to)
	}
}

// hostHears reads what the driver says.
func (w world) hostHears(left hostAt, to func(string, hostAt, func(*world))) {
	a := w.toHost[0]
	switch {
	case a.cell == 0:
	case a.cell != w.sent:
		to("hears of another cell", hDone, func(w *world) { w.wrong = fOther })
	case a.left:
		to("hears that the agent has the end", left, func(w *world) { w.toHostTake() })
	default:
		to("hears the driver's answer", hSend, func(w *world) { w.toHostTake(); w.finish(a.cell, a.out) })
	}
}

func (w world) agentMoves(m mutant, add func(string, func(*world))) {
	to := func(name string, at agentAt, step func(*world)) {
		add("agent: "+name, func(w *world) {
			w.agent = at
			if step != nil {
				step(w)
			}
		})
	}
	tell := func(w *world, a answer) {
		if !w.request.gone {
			w.fromAgent = a
		} else {
			w.lost |= a.out
		}
		w.request = request{}
	}
	switch w.agent {
	case aReady:
		for i, r := range w.waiting {
			if r.cell == 0 {
				continue
			}
			next := aAsk
			if m == lookThenAsk {
				next = aOver
			}
			if r.cell == w.supervised && m != twiceSupervised {
				next = aTell
			}
			to("takes a request", next, func(w *world) { w.request, w.waiting[i] = r, request{} })
		}
	case aAsk:
		next := aOver
		if m == lookThenAsk {
			next = aAdopt
		}
		to("asked = 1", next, func(w *world) { w.shared((*Shared).request) })
	case aOver:
		next := aAdopt
		w.shared(func(s *Shared) {
			if s.isOver(id(w.request.cell)) && (m != pastIsFuture || uint8(w.memory[state]>>16) == w.request.cell) {
				next = aWithdraw
			}
		})
		if m == lookThenAsk && next == aAdopt {
			next = aAsk
		}
		to("looks at state", next, nil)
	default:
		w.agentDecides(m, to, tell)
	}
}

// agentDecides is what the agent does once it knows where a cell stands.
func (w world) agentDecides(m mutant, to func(string, agentAt, func(*world)), tell func(*world, answer)) {
	switch w.agent {
	case aWithdraw:
		to("asked = 0", aLeft, func(w *world) {
			if m != noWithdraw {
				w.shared((*Shared).withdraw)
			}
		})
	case aLeft:
		to("says that the cell is over", aReady, func(w *world) { tell(w, answer{cell: w.request.cell, left: true}) })
	case aAdopt:
		to("supervised = 1", aAttach, func(w *world) { w.shared((*Shared).adopt); w.supervised = w.request.cell })
	case aAttach:
		if w.reader == rFree {
			to("takes the output", aReply, func(w *world) {
				w.sink, w.got, w.kept = w.request.cell, w.kept, 0
				w.shared(func(s *Shared) { s.SetBuffered(Stdout, false) })
			})
		}
	case aReply:
		if r := w.toAgent[0]; r != 0 {
			next := aReply // of another cell
			if r == w.request.cell {
				next = aFlush
			}
			to("reads an answer", next, func(w *world) { w.toAgent[0], w.toAgent[1] = w.toAgent[1], 0 })
		}
	case aFlush:
		if w.reader == rFree {
			to("reads the rest of the output", aLeave, func(w *world) {
				if m != flushAfterTell {
					w.got |= w.pipe
					w.pipe = 0
				}
				w.sink = 0
			})
		}
	case aLeave:
		to("supervised = 0", aWithdrawn, func(w *world) { w.shared((*Shared).release) })
	case aWithdrawn:
		to("asked = 0", aTell, func(w *world) { w.shared((*Shared).withdraw) })
	case aTell:
		to("answers the host", aReady, func(w *world) {
			tell(w, answer{cell: w.request.cell, out: w.got})
			w.got = 0
		})
	}
}

// readerMoves are those of the agent's reader, which holds the stream's lock from its
// first step to its last.
func (w world) readerMoves(m mutant, add func(string, func(*world))) {
	to := func(name string, at readerAt, step func(*world)) {
		add("reader: "+name, func(w *world) {
			w.reader = at
			if step != nil {
				step(w)
			}
		})
	}
	switch w.reader {
	case rFree:
		switch {
		case w.pipe == 0:
		case w.sink != 0:
			to("reads for the cell", rFree, func(w *world) { w.got |= w.pipe; w.pipe = 0 })
		default:
			to("reads = 1", rState, func(w *world) { w.shared(func(s *Shared) { s.beginReading(Stdout) }) })
		}
	case rState:
		next := rRefused
		w.shared(func(s *Shared) {
			if s.Idle() || m == readAnyway {
				next = rRead
			}
		})
		to("looks at state", next, nil)
	case rRead:
		if w.pipe == 0 {
			to("finds nothing", rEnd, nil)
		} else {
			to("reads between cells", rKeep, func(w *world) { w.kept |= w.pipe; w.pipe = 0 })
		}
	case rKeep:
		to("keeps = 1", rEnd, func(w *world) { w.shared(func(s *Shared) { s.SetBuffered(Stdout, true) }) })
	case rEnd, rRefused:
		to("reads = 0", rFree, func(w *world) { w.shared(func(s *Shared) { s.EndRead(Stdout) }) })
	}
}

// over says that the host has had an end of each cell, and nothing but the output of the
// program that was left behind may still move.
func (w *world) over() bool { return w.host == hDone }

// check finds what is wrong with a world.
func (w *world) check() fault {
	if w.wrong != fNone {
		return w.wrong
	}
	there := w.pipe | w.kept | w.got | w.lost | w.seen | w.fromAgent.out
	for _, a := range w.toHost {
		there |= a.out
	}
	for _, out := range w.out {
		there |= out
	}
	if w.written&^there != 0 {
		return fLost
	}
	return fNone
}

// search goes through all worlds that can come of the first one. It returns the first
// fault with the steps that lead to it, and how many worlds there are.
func search(m mutant) (f fault, steps []string, n int) {
	type node struct {
		world
		from int
		who  string
	}
	var nodes []node
	index := map[world]int{}
	var back [][]int32 // by whom each world was reached
	for _, n := range []uint32{0, 1} {
		first := start()
		first.memory[handover] = n
		index[first] = len(nodes)
		nodes, back = append(nodes, node{world: first, from: -1}), append(back, nil)
	}
	trace := func(i int) (steps []string) {
		for ; nodes[i].from >= 0; i = nodes[i].from {
			steps = append([]string{nodes[i].who}, steps...)
		}
		return steps
	}
	var ends []int32
	for i := 0; i < len(nodes); i++ {
		w := nodes[i].world
		if f := w.check(); f != fNone {
			return f, trace(i), len(nodes)
		}
		if w.over() {
			ends = append(ends, int32(i))
			continue
		}
		moves := w.moves(m)
		if len(moves) == 0 {
			return fWait, trace(i), len(nodes)
		}
		for _, mv := range moves {
			j, ok := index[mv.next]
			if !ok {
				if len(nodes) >= mostWorlds {
					return fEndless, nil, len(nodes)
				}
				j = len(nodes)
				index[mv.next] = j
				nodes = append(nodes, node{mv.next, i, mv.who})
				back = append(back, nil)
			}
			back[j] = append(back[j], int32(i))
		}
	}
	// From each world there is a way to the end.
	ended := make([]bool, len(nodes))
	for len(ends) > 0 {
		i := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		if !ended[i] {
			ended[i] = true
			ends = append(ends, back[i]...)
		}
	}
	for i, e := range ended {
		if !e {
			return fForever, trace(i), len(nodes)
		}
	}
	return fNone, nil, len(nodes)
}

const mostWorlds = 6_000_000

// Every interleaving of the steps answers each cell once, loses no output, and ends.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	f, steps, n := search("")
	if f != fNone {
		t.Fatalf("%s, after %d worlds:\n%s", f, n, strings.Join(steps, "\n"))
	}
	t.Logf("%d worlds", n)
}

// The search finds the mistakes that the protocol is made against.
func TestTheSearchFindsMistakes(t *testing.T) {
	t.Parallel()
	for _, m := range []mutant{noFenceRunning, noFenceFinish, noReaders, noAsked, leaveFinishing, idleBeforeRead,
		bothAnswer, lookThenAsk, noWithdraw,
		pastIsFuture, readAnyway, flushAfterTell, twiceSupervised, leaveUnread} {
		f, steps, n := search(m)
		if f == fNone || steps == nil {
			t.Errorf("%s: nothing was found in %d worlds: %s", m, n, f)
			continue
		}
		t.Logf("%s: %s, after %d steps (%d worlds)", m, f, len(steps), n)
	}
}
