package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// The answers that a user can choose in their client, and what each counts for.
const (
	allowOnce    = "allow"
	allowSession = "allow for this session"
	allowAlways  = "always allow"
	denyOnce     = "deny"
)

var spans = map[string]question.Span{allowOnce: question.Once, allowSession: question.Session,
	allowAlways: question.Always, denyOnce: question.Once}

// maxShown is the largest text of a question in bytes; people would not read more.
const maxShown = 8 << 10

// asker asks a person about one request.
type asker struct {
	hub     *Hub
	request Request
}

type userKey struct{}

// withUser returns a context from which requests that a tool's call makes on the way, such as one
// for a new session, ask the user of the call.
func withUser(ctx context.Context, u *tool.User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// snapshot has the rules that were in effect at one moment; nil: there were none.
type snapshot struct{ rules *policy.Rules }

func (h *Hub) takeSnapshot() *snapshot { return &snapshot{h.Rules.Load()} }

// decide asks policy about a request.
func (h *Hub) decide(r Request) policy.Decision {
	q := policy.Question{Principal: r.Principal, Operation: r.Operation, Resource: r.Resource, Detail: r.Detail,
		DetailFollows: r.DetailFollows}
	if h.Decide != nil {
		return h.Decide(q)
	}
	return h.rulesFor(r).Decide(q)
}

// rulesFor returns the rules that decide about a request.
func (h *Hub) rulesFor(r Request) *policy.Rules {
	if r.snapshot != nil {
		return r.snapshot.rules
	}
	return h.Rules.Load()
}

// indifferent reports whether a request need not be put to policy: a principal may do such a thing to what they own, as
// nothing can say no, and no trail is to have it. A part of a call, such as its session, is asked about only if not.
func (h *Hub) indifferent(ctx context.Context, r Request) bool {
	return h.Decide == nil && r.Principal.Scope == "" && !h.rulesFor(r).Any(r.Operation) && trailOf(ctx) == nil
}

// permit returns no error if policy allows a request, or a person does whom a rule asks. The decision is the one of
// policy.
func (h *Hub) permit(ctx context.Context, r Request) (policy.Decision, error) {
	trailOf(ctx).add(r)
	d := h.decide(r)
	if d.Effect != policy.Ask {
		return d, d.Err()
	}
	if r.consents {
		return d, nil // the call asks, by door.Consent
	}
	return d, h.askAbout(ctx, r)
}

// askAbout asks a person about a request as it is.
func (h *Hub) askAbout(ctx context.Context, r Request) error {
	if err := h.unknownSession(r); err != nil {
		return err
	}
	a := asker{h, r}
	return a.ask(ctx, a.text(), "")
}

// unknownSession returns the error of a request for a session that the principal does not have: nobody is asked
// about it, and the name that a client made up for it is shown to nobody.
func (h *Hub) unknownSession(r Request) error {
	id := r.Resource.ID
	if r.Resource.Kind != sessionKind || r.Resource.Owner != "" || h.Sessions == nil || isAlias(id) {
		return nil
	}
	_, err := h.Sessions.Find(r.Principal, id)
	return err
}

// text returns the question for people. It has the detail with escapes for all characters that are
// invisible or may look like others.
func (a *asker) text() string {
	p := a.request.Principal
	name := spec.ExactCommandLine([]string{p.Name})
	if known, _ := auth.FromID(p.ID); known.Name != p.Name {
		name += " (" + spec.ExactCommandLine([]string{p.ID}) + ")" // others chose the name
	}
	text := fmt.Sprintf("May an agent of %s do this?\n%s", name, a.request.Operation)
	if a.request.Detail != "" {
		text += ": " + spec.ExactCommandLine([]string{a.request.Detail})
	}
	if a.request.Resource.Kind == sessionKind && a.request.Resource.ID != "" {
		text += "\nin the session " + spec.ExactCommandLine([]string{a.request.Resource.ID})
	}
	return text
}

// ask asks a person, and returns nil for a yes. The hash is that of a text which says more than the request's
// detail: an answer counts for that text only.
func (a *asker) ask(ctx context.Context, text, hash string) error {
	h, r := a.hub, a.request
	if h.Questions == nil {
		return policy.Decision{Effect: policy.Ask}.Err()
	}
	if len(text) > maxShown || len(r.Detail) > policy.MaxDetail || !utf8.ValidString(r.Detail) ||
		strings.ContainsRune(r.Detail, 0) {
		return fault.New(fault.InvalidParameters,
			"a person has to agree to this, and what they would have to read has "+
				"%d bytes: at most %d can be shown", max(len(text), len(r.Detail)), maxShown).
			With("operation", string(r.Operation))
	}
	q := question.Question{Subject: question.Subject{Principal: r.Principal.ID, Operation: r.Operation,
		Detail: r.Detail, Shown: hash}, Text: text}
	q.Session = h.askedIn(r)
	began := time.Now()
	allowed, known := h.answered(q.Subject, q.Session)
	var err error
	switch {
	case allowed:
		return nil
	case known:
		err = a.declined("it was answered with no before")
	default:
		err = a.askNow(ctx, q)
	}
	h.publishAnswer(q, consentOutcome(err), began)
	return err
}

// publishAnswer publishes how a question ended that was put at a time.
func (h *Hub) publishAnswer(q question.Question, outcome string, began time.Time) {
	h.Events.Publish(event.Event{Kind: event.Consent, Principal: q.Principal, Session: q.Session,
		Operation: event.ConsentAsk, Name: string(q.Operation), Outcome: outcome, Duration: time.Since(began)})
}

// askedIn returns the session for which an answer may count: that of the request, or the home, in which third-party
// servers run; empty: it is not there yet.
func (h *Hub) askedIn(r Request) string {
	switch {
	case r.Resource.Kind == sessionKind && !isAlias(r.Resource.ID):
		return r.Resource.ID
	case r.Resource.Kind == connectionKind && h.Sessions != nil:
		home, _ := h.Sessions.Find(r.Principal, "home")
		return home
	}
	return ""
}

// answered returns the answer that counts for a request, if there is one. A yes that counts once is used up.
func (h *Hub) answered(about question.Subject, session string) (allowed, known bool) {
	if allowed, known = h.Questions.Known(about, session); known {
		return allowed, true
	}
	once := h.Questions.TakeOnce(about, session)
	return once, once
}

// askNow asks through the client of the call, or else puts a question and waits.
func (a *asker) askNow(ctx context.Context, q question.Question) error {
	h, timeout := a.hub, a.hub.QuestionTimeout()
	user := a.request.user
	if user == nil {
		user, _ = ctx.Value(userKey{}).(*tool.User)
	}
	if user == nil {
		user = &tool.User{}
	}
	if !tool.CanAsk(*user) {
		return a.wait(ctx, q, user.Progress, timeout)
	}
	choices := []string{allowOnce, allowSession, allowAlways, denyOnce}
	if q.Session == "" {
		choices = []string{allowOnce, allowAlways, denyOnce}
	}
	choice, err := tool.AskUser(ctx, *user, tool.Question{Message: q.Text}, choices, timeout)
	if declined, ok := errors.AsType[*tool.Declined](err); ok {
		return a.declined(declined.Message)
	}
	if err != nil {
		return err
	}
	if err := h.Questions.Remember(ctx, q, choice != denyOnce, spans[choice], a.request.Principal); err != nil {
		return err
	}
	if choice == denyOnce {
		return a.declined("the user was asked, and refused")
	}
	return nil
}

// wait puts a question, and waits for its answer.
func (a *asker) wait(ctx context.Context, q question.Question, progress func(string), timeout time.Duration) error {
	o, err := a.hub.Questions.Ask(q, timeout, true)
	if err != nil {
		return err
	}
	if progress != nil {
		progress("Waiting for a person's answer: sandlot questions answer " + o.ID + " yes")
	}
	a.hub.Log.InfoContext(ctx, "a question waits for an answer", "id", o.ID, "principal", q.Principal, "operation",
		q.Operation)
	reason, err := a.hub.Questions.Wait(ctx, o)
	if err != nil || reason == "" {
		return err
	}
	return a.declined(reason).With("question", o.ID)
}

// declined returns the fault of a request to which nobody agreed.
func (a *asker) declined(why string) *fault.Error {
	return fault.New(fault.Forbidden, "a person has to agree to this (%s): %s", a.request.Operation,
		strings.TrimSuffix(why, ".")).With("operation", string(a.request.Operation)).With("consent", "ask").
		Advise("Do not try again unless the user asks for it",
			"The user, or an operator of this server, answers questions by `sandlot questions`")
}

// consentOutcome returns the outcome of a question for its event.
func consentOutcome(err error) string {
	f := fault.From(err)
	switch {
	case err == nil:
		return "given"
	case f.Context["consent"] != nil:
		return "declined"
	}
	return f.Code()
}
