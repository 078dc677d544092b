// Package question has the questions that rules ask, until a person answers them, and the answers
// that count for later calls too.
package question

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/secret"
)

// Span says for what an answer counts.
type Span string

const (
	Once    Span = "once"    // for the calls that wait for it
	Session Span = "session" // until the session ends, or the server does
	Always  Span = "always"  // until it is forgotten
)

// Subject is what a question is about. Questions about the same subject in the same session are one question.
type Subject struct {
	Principal string           `json:"principal"` // its id
	Operation policy.Operation `json:"operation"`
	Detail    string           `json:"detail,omitempty"` // exactly
	// Shown is the hash of the text of a call that asks by itself, which says more than the detail: see
	// TextHash. Empty: the detail says everything.
	Shown string `json:"shown,omitempty"`
}

// TextHash returns the hash of a text for Subject.Shown.
func TextHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Question is a question that waits for an answer.
type Question struct {
	ID string `json:"id"`
	Subject
	Session string    `json:"session_id,omitempty"` // empty: the call is in no session that is there
	Text    string    `json:"text"`                 // for people: it hides and shortens nothing
	Asked   time.Time `json:"asked"`
	Until   time.Time `json:"until"` // then the answer is no
	// Form is what a third-party server asks to fill in; nil: a rule asks.
	Form *Form `json:"form,omitempty"`
}

// Answer is an answer that is stored.
type Answer struct {
	ID string `json:"id"`
	Subject
	Allowed bool      `json:"allowed"`
	By      string    `json:"by"` // the id of the principal that answered
	Given   time.Time `json:"given"`
}

// Store stores answers.
type Store interface {
	// PutAnswer replaces the answer about the same subject.
	PutAnswer(ctx context.Context, a Answer) error
	Answers(ctx context.Context) ([]Answer, error)
	// RemoveAnswer returns nil if there is none.
	RemoveAnswer(ctx context.Context, id string) error
}

const (
	// maxOpen is how many questions of one principal wait, and maxStored how many of its answers
	// are stored.
	maxOpen, maxStored = 16, 256
	// maxForms is how many of the open ones are of third-party servers, so that the others find room.
	maxForms = 8
	// maxSession is how many answers for sessions are kept, of all principals; then the oldest go.
	maxSession = 4096
	// Grace is how long a question waits that no call waits for, and how long its answer counts.
	Grace = 10 * time.Minute
	// storeWait is how long the store has for an answer.
	storeWait = 10 * time.Second
)

// Questions has the questions and answers of all principals. New loads the stored answers.
type Questions struct {
	store Store

	storing sync.Mutex // held while an answer is stored or removed; before mu

	mu       sync.Mutex
	open     map[sessionSubject]*Open
	always   map[Subject]Answer
	sessions map[sessionSubject]bool
	order    []sessionSubject             // of sessions, the oldest first
	once     map[sessionSubject]time.Time // answers yes for which no call waited, and until when they count
	watches  map[*Watch]bool
	closed   bool
}

type sessionSubject struct {
	Subject
	session string
}

// New returns the questions, with the answers of the store.
func New(ctx context.Context, store Store) (*Questions, error) {
	s := &Questions{store: store, open: map[sessionSubject]*Open{}, always: map[Subject]Answer{},
		sessions: map[sessionSubject]bool{}, once: map[sessionSubject]time.Time{},
		watches: map[*Watch]bool{}}
	list, err := store.Answers(ctx)
	for _, a := range list {
		s.always[a.Subject] = a
	}
	return s, err
}

// Add adds stored answers, of principals for whom this server acts from now on.
func (s *Questions) Add(stored []Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range stored {
		s.always[a.Subject] = a
	}
}

// Known returns the answer that was given earlier, for always or for a session.
func (s *Questions) Known(about Subject, session string) (allowed, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.always[about]; ok {
		return a.Allowed, true
	}
	allowed, known = s.sessions[sessionSubject{about, session}]
	return allowed, known && session != ""
}

// AllowedBelow reports whether a yes that counts is stored about a detail that begins so: of the subject's principal
// and operation, for always, for the session, or for its next call.
func (s *Questions) AllowedBelow(about Subject, session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	below := func(x Subject) bool {
		return x.Principal == about.Principal && x.Operation == about.Operation && strings.HasPrefix(x.Detail, about.Detail)
	}
	for x, a := range s.always {
		if a.Allowed && below(x) {
			return true
		}
	}
	for k, allowed := range s.sessions {
		if allowed && k.session == session && below(k.Subject) {
			return true
		}
	}
	for k, until := range s.once {
		if k.session == session && below(k.Subject) && time.Now().Before(until) {
			return true
		}
	}
	return false
}

// Open is a question that waits for an answer.
type Open struct {
	Question
	waiting int  // calls
	claimed bool // an answer to it is being stored: no other one counts, and that one ends it
	stays   bool // it was put by nobody who waits: it is open without calls, too
	timer   *time.Timer
	done    chan struct{} // closed when allowed is set
	allowed bool
	reason  string          // of a no
	content json.RawMessage // of a form
}

// key is what the calls that a question's answer counts for have in common.
func (q *Question) key() sessionSubject { return sessionSubject{q.Subject, q.Session} }

// Ask puts a question, or joins the one about the same subject in the same session. If waits is set, the caller calls
// Wait. If no call waits, a yes counts for the next call.
func (s *Questions) Ask(q Question, timeout time.Duration, waits bool) (*Open, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[q.key()]; o != nil {
		if waits {
			o.waiting++
		}
		return o, nil
	}
	n, forms := 0, 0
	for _, o := range s.open {
		if o.Principal == q.Principal {
			n++
			if o.Form != nil {
				forms++
			}
		}
	}
	if n >= maxOpen || q.Form != nil && forms >= maxForms {
		return nil, fault.Limit("questions", int64(n), maxOpen,
			"%d questions of yours wait for an answer, which is the limit; answer them: sandlot questions", n)
	}
	q.ID, q.Asked = "q_"+secret.ID()[:12], time.Now().UTC()
	q.Until = q.Asked.Add(timeout)
	o := &Open{Question: q, done: make(chan struct{}), stays: !waits}
	if waits {
		o.waiting = 1
	}
	s.open[q.key()] = o
	o.timer = time.AfterFunc(timeout, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !o.claimed {
			s.expire(o)
		}
	})
	s.announce(q.Principal, Change{Asked: &q})
	return o, nil
}

func (s *Questions) expire(o *Open) { s.endLocked(o, Expired, false, "nobody answered in time") }

// claim makes the caller the only one to answer a question, until it ends or release is called. It returns false if the
// question has ended, and an error while another answer to it is being stored: that may fail yet.
func (s *Questions) claim(o *Open) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open[o.key()] != o:
		return false, nil
	case o.claimed:
		return false, fault.New(fault.ResourceLimit, "another answer to the question is being stored: try again").
			Advise("Read the question again: it may have been answered")
	}
	o.claimed = true
	return true, nil
}

// release undoes claim.
func (s *Questions) release(o *Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.claimed = false
	switch {
	case !time.Now().Before(o.Until):
		s.expire(o)
	case o.waiting == 0 && !o.stays:
		s.endLocked(o, Withdrawn, false, "the call was given up")
	}
}

// endLocked ends an open question. It returns false if it had ended before. The caller holds mu.
func (s *Questions) endLocked(o *Open, how How, allowed bool, reason string) bool {
	if s.open[o.key()] != o {
		return false
	}
	delete(s.open, o.key())
	o.timer.Stop()
	o.allowed, o.reason = allowed, reason
	close(o.done)
	c := Change{ID: o.ID, How: how}
	if how == Answered {
		c.Answer = answerText(allowed)
	}
	s.announce(o.Principal, c)
	return true
}

// answerText is an answer as people give it.
func answerText(allowed bool) string {
	if allowed {
		return "yes"
	}
	return "no"
}

// Wait waits for the answer, and returns why it is no, or an empty text. When ctx ends, and no
// other call waits, the question ends.
func (s *Questions) Wait(ctx context.Context, o *Open) (reason string, err error) {
	select {
	case <-o.done:
	case <-ctx.Done():
		s.mu.Lock()
		if o.waiting--; o.waiting == 0 && !o.stays && !o.claimed {
			s.endLocked(o, Withdrawn, false, "the call was given up")
		}
		s.mu.Unlock()
		return "", fault.From(ctx.Err())
	}
	return o.reason, nil
}

// TakeOnce returns true if a question of the session for which no call waited was answered with yes. It
// counts once.
func (s *Questions) TakeOnce(about Subject, session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sessionSubject{about, session}
	until, ok := s.once[k]
	delete(s.once, k)
	return ok && time.Now().Before(until)
}

// Remember keeps an answer to a question: for a session in memory, and for always in the store.
func (s *Questions) Remember(ctx context.Context, q Question, allowed bool, span Span, by auth.Principal) error {
	switch {
	case span == Always:
		return s.putAlways(ctx, Answer{ID: "a_" + secret.ID()[:12], Subject: q.Subject, Allowed: allowed, By: by.ID,
			Given: time.Now().UTC().Truncate(time.Millisecond)})
	case span == Session && q.Session != "":
		s.mu.Lock()
		defer s.mu.Unlock()
		k := sessionSubject{q.Subject, q.Session}
		if _, ok := s.sessions[k]; !ok {
			s.order = append(s.order, k)
		}
		s.sessions[k] = allowed
		for len(s.order) > maxSession {
			delete(s.sessions, s.order[0])
			s.order = s.order[1:]
		}
	}
	return nil
}

func (s *Questions) putAlways(ctx context.Context, a Answer) error {
	s.storing.Lock()
	defer s.storing.Unlock()
	if n := len(s.Answers(func(id string) bool { return id == a.Principal })); n >= maxStored {
		return fault.Limit("answers", int64(n), maxStored,
			"%d answers are stored, which is the limit; `sandlot questions forget ID` removes one", n)
	}
	// No other answer to its question counts meanwhile: a store that hangs must not keep it open for ever.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWait)
	defer cancel()
	if err := s.store.PutAnswer(ctx, a); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always[a.Subject] = a
	return nil
}

// No is the reason of a question that somebody has answered with no.
const No = "the answer was no"

// Answer answers an open question. It returns false if there is none with that id, any more.
func (s *Questions) Answer(ctx context.Context, id string, allowed bool, span Span, by auth.Principal) (bool, error) {
	o := s.find(id)
	if o == nil {
		return false, nil
	}
	if o.Form != nil {
		if span != Once {
			return false, fault.Argument("for", "a third-party server asks this: an answer counts once")
		}
		if allowed {
			return s.AnswerForm(id, nil)
		}
	}
	if span == Session && o.Session == "" {
		return false, fault.Argument("for", "the question is in no session: answer it with once or always")
	}
	if claimed, err := s.claim(o); !claimed { // another face was quicker: what it said counts, once it is stored
		return false, err
	}
	if err := s.Remember(ctx, o.Question, allowed, span, by); err != nil {
		s.release(o)
		return false, err
	}
	reason := ""
	if !allowed {
		reason = No
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if allowed && span == Once && o.waiting == 0 && s.open[o.key()] == o {
		s.putOnce(o.key())
	}
	return s.endLocked(o, Answered, allowed, reason), nil
}

// putOnce makes a yes count for the next call. The caller holds mu.
func (s *Questions) putOnce(k sessionSubject) {
	s.once[k] = time.Now().Add(Grace)
	for about, until := range s.once {
		if time.Now().After(until) {
			delete(s.once, about)
		}
	}
}

// KeepOnce makes a yes that counts once, and of which the caller of Wait has no use, count for the next call, unless others
// have waited for it.
func (s *Questions) KeepOnce(o *Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, always := s.always[o.Subject]
	_, session := s.sessions[o.key()]
	if o.allowed && o.waiting <= 1 && !always && !session {
		s.putOnce(o.key())
	}
}

// AnswerForm answers an open question with the content of its form. It returns false if there is none with that id, any
// more.
func (s *Questions) AnswerForm(id string, values map[string]json.RawMessage) (bool, error) {
	o := s.find(id)
	switch {
	case o == nil:
		return false, nil
	case o.Form == nil:
		return false, fault.Argument("content", "the question has no form: answer only yes or no")
	}
	content, err := o.Form.Fill(values)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[o.key()] != o { // it has ended meanwhile, perhaps with a no
		return false, nil
	}
	o.content = content
	return s.endLocked(o, Answered, true, ""), nil
}

// Content returns what a form was filled in with; nil: it was not.
func (s *Questions) Content(o *Open) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.content
}

func (s *Questions) find(id string) *Open {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.open {
		if o.ID == id {
			return o
		}
	}
	return nil
}

// OwnerOf returns the principal of an open question or a stored answer; empty: there is none.
func (s *Questions) OwnerOf(id string) string {
	if o := s.find(id); o != nil {
		return o.Principal
	}
	a, _ := s.answer(id)
	return a.Principal
}

// answer returns a stored answer.
func (s *Questions) answer(id string) (a Answer, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.always {
		if a.ID == id {
			return a, true
		}
	}
	return Answer{}, false
}

// List lists the open questions of the principals for which of returns true, the oldest first;
// nil: of all.
func (s *Questions) List(of func(id string) bool) []Question {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listLocked(of)
}

func (s *Questions) listLocked(of func(id string) bool) []Question {
	list := []Question{}
	for _, o := range s.open {
		if of == nil || of(o.Principal) {
			list = append(list, o.Question)
		}
	}
	slices.SortFunc(list, func(a, b Question) int {
		return cmp.Or(a.Asked.Compare(b.Asked), strings.Compare(a.ID, b.ID))
	})
	return list
}

// Answers lists the stored answers, as List does.
func (s *Questions) Answers(of func(id string) bool) []Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Answer{}
	for _, a := range s.always {
		if of == nil || of(a.Principal) {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b Answer) int {
		return cmp.Or(a.Given.Compare(b.Given), strings.Compare(a.ID, b.ID))
	})
	return list
}

// ErrNone is the error of Forget for an answer that is not there.
var ErrNone = errors.New("there is no such answer")

// Forget removes a stored answer.
func (s *Questions) Forget(ctx context.Context, id string) error {
	s.storing.Lock()
	defer s.storing.Unlock()
	a, found := s.answer(id)
	if !found {
		return ErrNone
	}
	if err := s.store.RemoveAnswer(context.WithoutCancel(ctx), id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.always, a.Subject)
	return nil
}

// Close ends all open questions.
func (s *Questions) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, o := range s.open {
		s.endLocked(o, Withdrawn, false, "the server stops")
	}
	for w := range s.watches {
		w.signal()
	}
}
