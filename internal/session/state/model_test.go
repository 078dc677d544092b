package state

import (
	"errors"
	"fmt"
	"testing"
)

// TestInterleavings goes through all that two calls, a user who stops, pauses, resumes and removes, the idle clock, the removal of what
// is left, and crashes of the server can do to a session in any order, whatever the outcome of each action. The world
// is a session of a server that carries actions out one at a time; requests wait for that, but for the end of a sandbox
// that is live.
func TestInterleavings(t *testing.T) {
	var g graph
	g.add(world{mem: Of(Opened)}, -1)
	g.add(world{mem: Of(Taken), rec: record{box: true}, box: runs}, -1)
	g.add(world{mem: Of(Copied), rec: record{image: true}, image: true}, -1)
	reached := map[State]bool{}
	for i := 0; i < len(g.worlds); i++ {
		w := g.worlds[i]
		reached[w.mem.State] = true
		if err := w.wrong(); err != nil {
			t.Fatalf("%s: %+v", err, w)
		}
		for _, m := range w.moves() {
			if m.wrong != "" {
				t.Fatalf("%s, after %s: %+v, to do %q", m.wrong, m.what, w, w.todo)
			}
			if (w.mem.State == Removed && m.what != "crash" || w.rec.removed) && m.to.mem.State != Removed {
				t.Fatalf("%s gives back what was removed: %+v, to do %q", m.what, w, w.todo)
			}
			if why := w.unpaused(m); why != "" {
				t.Fatalf("%s, after %s: %+v, to do %q", why, m.what, w, w.todo)
			}
			g.add(m.to, i)
		}
	}
	t.Logf("%d worlds", len(g.worlds))
	for s := New; s <= Removed; s++ {
		if !reached[s] {
			t.Errorf("nothing leads to %s", s)
		}
	}
	for i, good := range g.end() {
		if !good {
			t.Fatalf("no way leads to a sandbox, or to the end: %+v", g.worlds[i])
		}
	}
}

// unpaused says what is wrong with a move by which a session is not paused any more; empty: nothing. Only Resume ends a
// pause, or the end of the session. A pause that is stored outlives the server.
func (w world) unpaused(m move) string {
	ends := m.what == "user: "+Resume.String() || m.to.mem.State == Removed
	switch {
	case w.mem.State.IsPaused() && w.todo == "" && !w.rec.paused:
		return "it is paused, and the record does not say so"
	case w.mem.State.IsPaused() && !m.to.mem.State.IsPaused() && !ends && (m.what != "crash" || w.rec.paused):
		return "it is not paused any more"
	case w.rec.paused && m.what == "crash" && !m.to.mem.State.IsPaused() && m.to.mem.State != Removed:
		return "the next server does not know that it is paused"
	case m.to.mem.State.IsPaused() && (m.to.rec.box || m.to.box == runs) && m.to.todo == "":
		return "it is paused, and has a sandbox"
	}
	return ""
}

// graph is the worlds that were found, and which lead to each.
type graph struct {
	worlds []world
	at     map[world]int
	before [][]int
}

// add adds a world to which another leads; -1: none does.
func (g *graph) add(w world, before int) {
	i, there := g.at[w]
	if !there {
		if i = len(g.worlds); i == 0 {
			g.at = map[world]int{}
		}
		g.at[w], g.worlds, g.before = i, append(g.worlds, w), append(g.before, nil)
	}
	if before >= 0 {
		g.before[i] = append(g.before[i], before)
	}
}

// end says of each world whether a way leads to one whose session can be used, or is removed.
func (g *graph) end() []bool {
	good := make([]bool, len(g.worlds))
	var queue []int
	for i, w := range g.worlds {
		if w.todo == "" && (w.mem.State == Live || w.mem.State == Removed) {
			good[i], queue = true, append(queue, i)
		}
	}
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		for _, b := range g.before[i] {
			if !good[b] {
				good[b], queue = true, append(queue, b)
			}
		}
	}
	return good
}

// box is what there is of a sandbox.
type box uint8

const (
	nothing box = iota
	half        // it was being made
	runs
	still
)

// caller is where a call is.
type caller uint8

const (
	away caller = iota
	waits
	calls // it runs in the sandbox
	cut   // the sandbox ended meanwhile
)

// record is what the store has of the session.
type record struct{ box, image, ends, paused, removed bool }

// world is a session, and all that is there of it.
type world struct {
	mem     Status
	todo    string // actions, each a byte
	rec     record
	box     box // which the record names, or is about to
	stray   box // nobody's: to be removed
	image   bool
	stale   bool // a sandbox that was made of the image has run
	forfeit bool // it was decided that the image goes
	callers [2]caller
}

// move is something that can happen in a world.
type move struct {
	what  string
	to    world
	wrong string
}

// wrong returns what may never be.
func (w world) wrong() error {
	using := 0
	for _, c := range w.callers {
		if c != away {
			using++
		}
		if c == calls && (w.mem.State != Live || w.box != runs) {
			return errors.New("a call runs in a session that is not live")
		}
	}
	switch {
	case using != w.mem.Calls:
		return errors.New("calls are lost")
	case w.box != nothing && w.stray == runs && w.mem.State != Removed:
		return errors.New("the session has two sandboxes")
	case w.rec.image && !w.rec.box && !w.image:
		return errors.New("the only copy of the session's state is gone")
	case w.mem.State == Live && w.box != runs:
		return errors.New("it is live without a sandbox")
	}
	return nil
}

// on is the world after an event; false: the event is refused. One that cannot happen is wrong.
func (w world) on(e Event) (world, bool, string) {
	next, actions, err := Next(w.mem, e)
	if errors.Is(err, ErrNever) {
		return w, false, err.Error()
	}
	if err != nil {
		return w, false, ""
	}
	if e == Died || e == Stop { // the calls that run end with their sandbox
		for i, c := range w.callers {
			if c == calls {
				w.callers[i] = cut
			}
		}
	}
	switch e {
	case Stop, Remove, ImageLost, WakeLost, WakeLostRemains:
		w.forfeit = true
	}
	w.mem = next
	for _, a := range actions {
		w.todo += string(rune(a))
	}
	return w, true, ""
}

// moves are all things that can happen.
func (w world) moves() (all []move) {
	add := func(what string, to world, wrong string) { all = append(all, move{what, to, wrong}) }
	event := func(what string, to world, e Event) {
		if next, ok, wrong := to.on(e); ok || wrong != "" {
			add(fmt.Sprintf("%s: %s", what, e), next, wrong)
		}
	}
	for _, torn := range w.torn() {
		to, wrong := torn.restarted()
		add("crash", to, wrong)
	}
	if w.todo != "" {
		all = append(all, w.does(Action(w.todo[0]))...)
	}
	for i := range w.callers {
		to := w
		switch w.callers[i] {
		case away:
			if w.mem.State != Removed {
				to.callers[i] = waits
				event("call", to, Leased)
			}
			continue
		case waits:
			if w.mem.State == Live {
				to.callers[i] = calls
				add("call runs", to, "")
			} else if w.todo == "" {
				event("call", w, Needed)
			}
		}
		to = w
		to.callers[i] = away
		event("call ends", to, Released)
	}
	if w.mem.State == Live {
		dead := w
		dead.box = nothing
		event("sandbox", dead, Died)
	}
	if w.todo == "" || w.mem.State == Live {
		event("user", w, Stop)
	}
	if w.todo == "" {
		event("user", w, Remove)
		event("user", w, Pause) // of a live one, Freeze comes first
		event("user", w, Resume)
		event("clock", w, Freeze)
		event("clock", w, Evict)
		event("clock", w, ImageLost)
		if w.mem.State.Untaken() {
			event("run", w, Needed)
		}
	}
	if w.stray != nothing {
		to := w
		to.stray = nothing
		add("run removes", to, "")
	}
	return all
}

// does are the ways in which the next action can end.
func (w world) does(a Action) (all []move) {
	w.todo = w.todo[1:]
	end := func(to world, events ...Event) {
		wrong := ""
		for _, e := range events {
			next, ok, why := to.on(e)
			if to = next; !ok && wrong == "" {
				wrong = fmt.Sprintf("%s is refused, %s", e, why)
			}
		}
		all = append(all, move{fmt.Sprintf("action %d", a), to, wrong})
	}
	with := func(b box) world {
		to := w
		to.box = b
		return to
	}
	switch a {
	case Store:
		w.rec = w.stored()
		end(w)
	case Boot:
		if w.box != nothing || w.stray == runs {
			return []move{{"boot", w, "a second sandbox is made"}}
		}
		end(with(runs), Booted)
		end(w, BootFailed)
		end(with(half), BootRemains)
	case Wake:
		if w.box != nothing || w.stray == runs {
			return []move{{"wake", w, "a second sandbox is made"}}
		}
		if !w.image {
			return []move{{"wake", w, "there is no image"}}
		}
		woken := with(runs)
		woken.stale = true
		end(woken, Woken)
		end(w, WakeLater)
		end(with(half), WakeRemains)
		end(w, WakeLost)
		end(with(half), WakeLostRemains)
	case Adopt:
		return w.adopts()
	case Write:
		written := with(still)
		written.image, written.stale, written.forfeit = true, false, false
		end(written, Frozen)
		end(written, FrozenPaused)
		end(with(runs), Thawed)
		end(with(still), StandsStill)
		end(with(runs), Thawed, Died)
	case Destroy:
		return w.destroys()
	case RemoveImage:
		to, wrong := w.withoutImage()
		all = append(all, move{"remove image", to, wrong})
	default:
		end(w)
	}
	return all
}

// adopts are the ways in which taking a sandbox over can end, if that is still to be done.
func (w world) adopts() (all []move) {
	event := func(b box, e Event) {
		to := w
		to.box = b
		next, ok, why := to.on(e)
		if !ok {
			why = "refused " + why
		}
		all = append(all, move{"adopt", next, why})
	}
	all = append(all, move{"adopt later", w, ""})
	if w.mem.State != Adopting {
		return all
	}
	if w.box == runs || w.box == still {
		event(runs, TakenOver)
	}
	if w.rec.image && (w.box == half || !w.stale) { // it was never made of the image
		event(nothing, GoneAsleep)
	} else {
		event(nothing, Gone)
	}
	return all
}

// destroys are the ways in which the end of a sandbox can end.
func (w world) destroys() (all []move) {
	later, gone := w, w
	gone.box = nothing
	why, ok := "", true
	switch w.mem.State {
	case Stopping:
		gone, ok, why = gone.on(Gone)
	case Clearing:
		gone, ok, why = gone.on(GoneAsleep)
	case Asleep, Paused, Removed: // it is not the session's any more
		if w.mem.State != Removed && w.box != nothing && (w.rec.box || !w.image) {
			why = "the sandbox ends before the record has the image"
		}
		later.stray, later.box = max(w.box, w.stray), nothing
	default:
		return []move{{"destroy", w, ""}}
	}
	if !ok {
		why = "refused " + why
	}
	return []move{{"destroy", gone, why}, {"destroy later", later, ""}}
}

// withoutImage is the world whose image is removed.
func (w world) withoutImage() (to world, wrong string) {
	held := w.box == runs || w.box == still
	if w.image && !held && !w.stale && !w.forfeit {
		wrong = "the only copy of the session's state is removed"
	}
	w.image, w.stale, w.forfeit = false, false, false
	return w, wrong
}

// stored is the record of the state.
func (w world) stored() record {
	switch w.mem.State {
	case Booting, Live:
		return record{box: true}
	case Waking:
		return record{box: true, image: true}
	case Asleep:
		return record{image: true}
	case Paused:
		return record{image: true, paused: true}
	case Held:
		return record{paused: true}
	case Stopping:
		return record{box: true, ends: true}
	case New, Stopped:
		return record{}
	case Removed:
		return record{removed: true}
	}
	return w.rec
}

// torn are the worlds that a crash can leave, in the middle of the next action too.
func (w world) torn() []world {
	all := []world{w}
	with := func(b box, image, stale bool) {
		to := w
		to.box, to.image, to.stale = b, image, stale
		all = append(all, to)
	}
	if w.todo == "" {
		return all
	}
	switch Action(w.todo[0]) {
	case Boot:
		with(half, w.image, w.stale)
		with(runs, w.image, w.stale)
	case Wake:
		with(half, w.image, w.stale)
		with(runs, w.image, true)
	case Write:
		with(still, w.image, w.stale)
		with(still, true, false)
	case Destroy:
		with(nothing, w.image, w.stale)
	}
	return all
}

// restarted is the world of the next server, which reads the record, and removes what no record has.
func (w world) restarted() (to world, wrong string) {
	w.callers, w.todo = [2]caller{}, ""
	if w.rec.removed {
		w.mem, w.stray, w.box, w.image = Status{State: Removed}, max(w.box, w.stray), nothing, false
		return w, ""
	}
	w.mem = Status{}
	if w.image && !w.rec.image {
		w, wrong = w.withoutImage()
	}
	if !w.rec.box {
		w.stray, w.box = max(w.box, w.stray), nothing
	}
	w.rec.box = w.box != nothing
	e := FoundStopped
	switch {
	case w.rec.box && w.rec.ends:
		e = FoundStopping
	case w.rec.box:
		e = FoundRunning
	case w.rec.paused && w.rec.image:
		e = FoundPaused
	case w.rec.paused:
		e = FoundHeld
	case w.rec.image:
		e = FoundAsleep
	}
	w, _, why := w.on(e)
	return w, wrong + why
}
