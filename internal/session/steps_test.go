package session

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/event"
	"sandlot/internal/sandbox/sandboxtest"
	"sandlot/internal/session/state"
)

// steps compares what is done with a session with what package state says is due after an event: all of it, in that
// order. The session tells it of events, and the fakes of the store and the runtime, and the stream of events, of what
// is done.
type steps struct {
	t *testing.T

	mu      sync.Mutex
	over    bool                       // its server was killed
	of      map[string]string          // the sessions of sandboxes and images, by their ids
	images  map[string]map[string]bool // those that records of a session have had, and that are not removed, by its id
	due     map[string][]*dueSteps     // by session, in the order of the events
	already map[string]bool            // the record of a session was stored, and no event has wanted that yet
}

// dueSteps are the actions after one event that are not done yet.
type dueSteps struct {
	after string
	to    []state.Action
	// beside: whoever ends the sandbox of a session at its user's wish does not wait for its turn.
	beside bool
}

func newSteps(t *testing.T) *steps {
	return &steps{t: t, of: map[string]string{}, images: map[string]map[string]bool{}, due: map[string][]*dueSteps{},
		already: map[string]bool{}}
}

// actionNames are those of the actions that are compared.
var actionNames = map[state.Action]string{state.Boot: "boot", state.Wake: "wake", state.Write: "write",
	state.Destroy: "destroy", state.RemoveImage: "remove image", state.Store: "store", state.Publish: "publish"}

func (d *dueSteps) String() string {
	var names []string
	for _, a := range d.to {
		names = append(names, actionNames[a])
	}
	return fmt.Sprintf("after %s, due are: %s", d.after, strings.Join(names, ", "))
}

// happened implements watcher.
func (x *steps) happened(r Record, was state.State, e state.Event, due []state.Action) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e == state.Leased || e == state.Released {
		return
	}
	x.know(r)
	for _, d := range x.due[r.ID] { // what was tried has ended
		d.to = slices.DeleteFunc(d.to, func(a state.Action) bool {
			return a == state.Boot || a == state.Wake || a == state.Write || e == state.Remove && a == state.Store
		})
	}
	d := &dueSteps{after: fmt.Sprintf("%s in %s", e, was), beside: e == state.Stop && was == state.Live ||
		e == state.Gone && was == state.Stopping}
	for _, a := range due {
		if actionNames[a] != "" && !x.mayWait(r.ID, was, e, a) {
			d.to = append(d.to, a)
		}
	}
	if len(d.to) > 0 && d.to[0] == state.Store && x.already[r.ID] {
		d.to = d.to[1:]
	}
	x.already[r.ID] = false
	x.due[r.ID] = append(x.due[r.ID], d)
	x.tidy(r.ID)
}

// mayWait reports whether an action is another's to do, or there is nothing to do.
func (x *steps) mayWait(id string, was state.State, e state.Event, a state.Action) bool {
	switch a {
	case state.Destroy: // leftovers of a start, and sandboxes of an earlier server, are left to Run
		return was != state.Live && was != state.Freezing || e == state.Unstored
	case state.RemoveImage:
		return len(x.images[id]) == 0
	case state.Store: // the record may say so already
		return e == state.TakenOver
	}
	return false
}

// know notes the sandbox and the image of a record.
func (x *steps) know(r Record) {
	if r.Sandbox != "" {
		x.of[r.Sandbox] = r.ID
	}
	if _, seen := x.of[r.Image]; r.Image == "" || seen {
		return
	}
	x.of[r.Image] = r.ID
	if x.images[r.ID] == nil {
		x.images[r.ID] = map[string]bool{}
	}
	x.images[r.ID][r.Image] = true
}

// tidy forgets the events after which all is done. The caller holds mu.
func (x *steps) tidy(id string) {
	x.due[id] = slices.DeleteFunc(x.due[id], func(d *dueSteps) bool { return len(d.to) == 0 })
}

// done notes that one of these actions is done with a session, and reports whether it was due in its turn. What is done
// once may be due after several events, but for events of the stream.
func (x *steps) done(id string, as ...state.Action) (inTurn bool) {
	defer x.tidy(id)
	is := func(a state.Action) bool { return slices.Contains(as, a) }
	var due []*dueSteps
	var before *dueSteps
	for _, d := range x.due[id] {
		switch i := slices.IndexFunc(d.to, is); {
		case i == 0 && d.beside:
			due = append(due, d)
		case i == 0:
			due, inTurn = append([]*dueSteps{d}, due...), true
		case i > 0:
			before = d
		}
	}
	if as[0] == state.Publish && len(due) > 1 {
		due = due[:1]
	}
	for _, d := range due {
		d.to = d.to[1:]
	}
	if before != nil && len(due) == 0 && as[0] != state.Store {
		x.fail(id, "%s, and %s is done first", before, actionNames[as[0]])
		before.to = slices.DeleteFunc(before.to, is)
	}
	return inTurn
}

func (x *steps) fail(id, format string, args ...any) {
	if !x.over {
		x.t.Errorf("session %s: %s", id, fmt.Sprintf(format, args...))
	}
}

// stored notes that a record was stored, or that this has failed: then the rest may fail too, and is tried again.
func (x *steps) stored(r Record, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.know(r); err != nil {
		delete(x.due, r.ID)
	}
	if !x.done(r.ID, state.Store) {
		x.already[r.ID] = true
	}
}

// published notes an event of the stream.
func (x *steps) published(e event.Event) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e.Kind == event.Session {
		x.done(e.Session, state.Publish)
	}
}

// saw notes a step of the runtime.
func (x *steps) saw(s sandboxtest.Step, of string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := x.of[of]
	switch s {
	case sandboxtest.StepCreate:
		x.done(id, state.Boot, state.Wake)
	case sandboxtest.StepFreeze:
		x.done(id, state.Write)
	case sandboxtest.StepStop:
		x.done(id, state.Destroy)
	case sandboxtest.StepRemove:
		delete(x.images[id], of)
		x.done(id, state.RemoveImage)
	}
}

// turnEnds implements watcher.
func (x *steps) turnEnds(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.already[id] = false
	for _, d := range x.due[id] {
		if !d.beside {
			x.fail(id, "%s, and its turn ends", d)
			d.to = nil
		}
	}
	x.tidy(id)
}

// wantNone wants all to be done.
func (x *steps) wantNone() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, all := range x.due {
		for _, d := range all {
			x.fail(id, "%s, and the test ends", d)
		}
	}
}

// end is called when the server is killed: what it has not done is the next one's.
func (x *steps) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over, x.due = true, map[string][]*dueSteps{}
}
