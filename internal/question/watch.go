package question

import (
	"context"
	"errors"
)

// How says how a question ended.
type How string

const (
	Answered  How = "answered"
	Withdrawn How = "withdrawn" // nobody waits for the answer any more
	Expired   How = "expired"
)

// Change is what happened to one question: it was asked, or it ended.
type Change struct {
	Asked *Question // nil: the question ended
	// The following are of a question that ended.
	ID     string
	How    How
	Answer string // yes or no; empty: nobody answered
}

// maxChanges is how many changes wait for a watcher. One that is later gets all questions anew.
const maxChanges = 64

// ErrClosed is the error of Watch.Next when the server stops.
var ErrClosed = errors.New("the server stops")

// Watch sees the changes of open questions, until Close. Only one goroutine may use it at a time.
type Watch struct {
	questions *Questions
	of        func(id string) bool // whose; nil: everyone's
	wake      chan struct{}

	// The following are guarded by mu of questions.
	changes []Change
	anew    bool // changes are missing
}

// Watch begins to watch the questions of the principals for which of returns true; nil: of all. It also returns those
// that are open, as List does: no change is missing between them and the first one that Next returns.
func (s *Questions) Watch(of func(id string) bool) (*Watch, []Question) {
	w := &Watch{questions: s, of: of, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[w] = true
	if s.closed {
		w.signal()
	}
	return w, s.listLocked(of)
}

// Close ends the watch.
func (w *Watch) Close() {
	w.questions.mu.Lock()
	defer w.questions.mu.Unlock()
	delete(w.questions.watches, w)
}

// Next waits for changes, and returns them in their order. If some are missing, it returns all open questions instead,
// and anew is true.
func (w *Watch) Next(ctx context.Context) (changes []Change, all []Question, anew bool, err error) {
	for {
		if changes, all, anew, err = w.take(); len(changes) > 0 || anew || err != nil {
			return changes, all, anew, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil, nil, false, context.Cause(ctx)
		}
	}
}

func (w *Watch) take() (changes []Change, all []Question, anew bool, err error) {
	s := w.questions
	s.mu.Lock()
	defer s.mu.Unlock()
	changes, anew = w.changes, w.anew
	w.changes, w.anew = nil, false
	switch {
	case anew:
		return nil, s.listLocked(w.of), true, nil
	case len(changes) == 0 && s.closed:
		err = ErrClosed
	}
	return changes, nil, false, err
}

func (w *Watch) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// announce tells the watches of a principal's questions about a change. The caller holds mu.
func (s *Questions) announce(principal string, c Change) {
	for w := range s.watches {
		switch {
		case w.of != nil && !w.of(principal):
			continue
		case len(w.changes) >= maxChanges:
			w.changes, w.anew = nil, true
		case !w.anew:
			w.changes = append(w.changes, c)
		}
		w.signal()
	}
}
