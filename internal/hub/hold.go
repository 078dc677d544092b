package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/tool"
)

// asking has the ways in which a person can be asked about hosts: running calls whose clients can ask, and faces that
// watch the questions. It implements egress.Asker.
type asking struct {
	hub *Hub

	mu    sync.Mutex               // before the lock of the questions
	calls map[string][]*askingCall // by principal, the newest last
	faces map[string]*askingFaces  // by principal
}

// askingFaces are the faces of a principal, such as the console, on which a person sees questions. An answer there
// counts for answerSpan, as no call says when what was meant is over.
type askingFaces struct {
	watching int
	gone     chan struct{} // closed when the last one goes; nil: nobody waits for that
	// hosts has the questions that wait, and those that were answered in the last answerSpan, as askingCall has them.
	hosts map[[2]string]*hostQuestion
}

// answerSpan is how long an answer of a face to a question about a host counts for further connections to it.
const answerSpan = time.Minute

// askingCall is a running call. Its answers count until it ends: a program opens several connections to a host.
type askingCall struct {
	ctx  context.Context
	call tool.Call
	turn chan struct{} // held by the question that is asked now
	// hosts has the questions of the call, by session and host. Asking.mu guards it.
	hosts map[[2]string]*hostQuestion
}

// hostQuestion is a question about a host.
type hostQuestion struct {
	done   chan struct{} // closed when the verdict of the ruling is set
	ruling egress.Ruling // Asking.mu guards it until done is closed
	// holders is how many connections wait for the answer. Asking.mu guards it.
	holders int
}

// Asker returns what asks a person about hosts.
func (h *Hub) Asker() egress.Asker { return &h.asking }

// asksHosts reports whether a person may be asked about hosts in calls of a principal.
func (h *Hub) asksHosts(p auth.Principal) bool {
	return h.Questions != nil && h.asking.time() > 0 &&
		(h.asking.asksUnlisted(p) || h.Rules.Load().MayAsk(policy.NetworkReach))
}

// maxHosts is how many hosts a person is asked about in one call and, on faces, how many questions of one session wait.
const maxHosts = 8

// begin notes that a call runs whose client can ask its user. Its end is noted by the function that it returns.
func (a *asking) begin(ctx context.Context, c tool.Call) (end func()) {
	if a.hub.Questions == nil || a.time() == 0 || !tool.CanAsk(c.User()) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	x := &askingCall{ctx: ctx, call: c, turn: make(chan struct{}, 1), hosts: map[[2]string]*hostQuestion{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls == nil {
		a.calls = map[string][]*askingCall{}
	}
	a.calls[c.Principal.ID] = append(a.calls[c.Principal.ID], x)
	return func() {
		cancel()
		a.mu.Lock()
		defer a.mu.Unlock()
		rest := slices.DeleteFunc(a.calls[c.Principal.ID], func(y *askingCall) bool { return x == y })
		if a.calls[c.Principal.ID] = rest; len(rest) == 0 {
			delete(a.calls, c.Principal.ID)
		}
	}
}

// watch notes that a face of a principal shows questions, until the function that it returns is called.
func (a *asking) watch(principal string) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.faces == nil {
		a.faces = map[string]*askingFaces{}
	}
	f := a.faces[principal]
	if f == nil {
		f = &askingFaces{hosts: map[[2]string]*hostQuestion{}}
		a.faces[principal] = f
	}
	f.watching++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if f.watching--; f.watching == 0 && f.gone != nil {
			close(f.gone)
			f.gone = nil
		}
		a.dropFaces(principal, f)
	}
}

// dropFaces forgets the faces of a principal who has none, and no question that one was asked. The caller holds mu.
func (a *asking) dropFaces(principal string, f *askingFaces) {
	if f.watching == 0 && len(f.hosts) == 0 && a.faces[principal] == f {
		delete(a.faces, principal)
	}
}

// reloadTime is how long a face may be gone, as a page that is reloaded, before its questions are given up.
const reloadTime = 5 * time.Second

// awaitNoFace waits until no face of a principal shows questions.
func (a *asking) awaitNoFace(ctx context.Context, principal string) {
	for gone := a.facesGone(principal); gone != nil; gone = a.facesGone(principal) {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(reloadTime):
		case <-ctx.Done():
			return
		}
	}
}

// facesGone returns a channel that is closed when the last face of a principal goes; nil: there is none.
func (a *asking) facesGone(principal string) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.faces[principal]
	if f == nil || f.watching == 0 {
		return nil
	}
	if f.gone == nil {
		f.gone = make(chan struct{})
	}
	return f.gone
}

// mayAskFaces reports whether a face can be asked about one host more of a session. The caller holds mu.
func (a *asking) mayAskFaces(f *askingFaces, session string) bool {
	if f == nil || f.watching == 0 {
		return false
	}
	waiting := 0
	for key, q := range f.hosts {
		if key[0] == session && !q.ruling.Answered {
			waiting++
		}
	}
	return waiting < maxHosts
}

// time is how long a connection waits.
func (a *asking) time() time.Duration {
	if a.hub.NetworkHold == nil {
		return 0
	}
	return a.hub.NetworkHold()
}

// asksUnlisted reports whether a principal is asked about hosts that no rule lists: the one person at the keyboard.
// Others are asked where a rule says so.
func (a *asking) asksUnlisted(p auth.Principal) bool { return a.time() > 0 && p.ID == auth.Local.ID }

// Hold implements egress.Asker.
func (a *asking) Hold(ctx context.Context, o egress.Owner, host string, unlisted bool) egress.Ruling {
	h, p := a.hub, auth.OnBehalfOf(o.Principal)
	nobody := egress.Ruling{Verdict: egress.Asked}
	if !h.isOpen.Load() {
		return nobody
	}
	most := a.time()
	if h.Questions == nil || p.ID == "" || unlisted && !a.asksUnlisted(p) {
		return nobody
	}
	r := Request{Principal: p, Operation: policy.NetworkReach, Detail: host,
		Resource: policy.Resource{Kind: sessionKind, ID: o.Session, Owner: p.ID}}
	q, known := a.question(r, most > 0)
	if q == nil {
		return known
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-q.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	q.holders--
	return q.ruling
}

// knownRuling returns the ruling by an answer that counts for a host already, if there is one.
func (h *Hub) knownRuling(about question.Subject, session string) (r egress.Ruling, known bool) {
	allowed, known := h.answered(about, session)
	r = egress.Ruling{Verdict: egress.Denied, Answered: known}
	if allowed {
		r.Verdict = egress.Granted
	}
	return r, known
}

// MayHold implements egress.Asker.
func (a *asking) MayHold(o egress.Owner, name string) bool {
	p := auth.OnBehalfOf(o.Principal)
	if !a.hub.isOpen.Load() || a.hub.Questions == nil || !a.asksUnlisted(p) {
		return false
	}
	return a.mayAsk(p.ID, o.Session, name) || a.hub.Questions.AllowedBelow(reachSubject(p, name+":"), o.Session)
}

// mayAsk reports whether a principal can be asked about one host more of a session, or was asked about a name already.
func (a *asking) mayAsk(principal, session, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	about := func(hosts map[[2]string]*hostQuestion) bool {
		for key := range hosts {
			if key[0] == session && strings.HasPrefix(key[1], name+":") {
				return true
			}
		}
		return false
	}
	calls, f := a.calls[principal], a.faces[principal]
	for _, c := range calls {
		if about(c.hosts) {
			return true
		}
	}
	switch {
	case f != nil && about(f.hosts):
		return true
	case len(calls) > 0:
		return len(calls[len(calls)-1].hosts) < maxHosts
	}
	return a.mayAskFaces(f, session)
}

// question returns the question about a host for a connection that waits, which it counts; nil: an answer counts already,
// or nobody can be asked, as the ruling says. Without ask, nobody is.
func (a *asking) question(r Request, ask bool) (*hostQuestion, egress.Ruling) {
	a.mu.Lock() // also for the answers: settle moves one there
	defer a.mu.Unlock()
	if known, ok := a.hub.knownRuling(reachSubject(r.Principal, r.Detail), r.Resource.ID); ok {
		return nil, known
	}
	var q *hostQuestion
	if ask {
		q = a.findOrAsk(r, [2]string{r.Resource.ID, r.Detail})
	}
	if q == nil {
		return nil, egress.Ruling{Verdict: egress.Asked}
	}
	q.holders++
	return q, q.ruling
}

// findOrAsk returns the question about a host in the newest call of the principal or, while there is none, on its faces,
// and asks it if it is new; nil: nobody can be asked. The caller holds mu.
func (a *asking) findOrAsk(r Request, key [2]string) *hostQuestion {
	calls := a.calls[r.Principal.ID]
	for _, c := range slices.Backward(calls) {
		if q := c.hosts[key]; q != nil {
			return q
		}
	}
	if f := a.faces[r.Principal.ID]; f != nil && f.hosts[key] != nil && f.hosts[key].ruling.Answered {
		return f.hosts[key] // one that waits is asked in the call, too
	}
	if len(calls) == 0 {
		return a.faceQuestion(r, key)
	}
	if len(calls[len(calls)-1].hosts) >= maxHosts {
		return nil
	}
	c, q := calls[len(calls)-1], &hostQuestion{done: make(chan struct{}), ruling: egress.Ruling{Verdict: egress.Asked}}
	c.hosts[key] = q
	go func() {
		defer close(q.done)
		var failed error
		defer fault.Recover(c.ctx, a.hub.Log, "asking about a host", &failed)
		ruling := a.ask(c, r, q)
		a.mu.Lock()
		defer a.mu.Unlock()
		q.ruling = ruling
	}()
	return q
}

// counts returns the answer of a running call, or of a face, that counts for a host: it was given for an earlier
// connection.
func (a *asking) counts(principal, session, host string) (r egress.Ruling, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := [2]string{session, host}
	for _, c := range slices.Backward(a.calls[principal]) {
		if q := c.hosts[key]; q != nil && q.ruling.Answered {
			return q.ruling, true
		}
	}
	if f := a.faces[principal]; f != nil {
		if q := f.hosts[key]; q != nil && q.ruling.Answered {
			return q.ruling, true
		}
	}
	return r, false
}

// faceQuestion returns the question about a host on the faces of a principal, and asks it if it is new; nil: no face
// watches. A question that was asked stays when its face goes, as a page that is reloaded: it ends by its time. The caller
// holds mu.
func (a *asking) faceQuestion(r Request, key [2]string) *hostQuestion {
	principal := r.Principal.ID
	f := a.faces[principal]
	if f == nil {
		return nil
	}
	if q := f.hosts[key]; q != nil {
		return q
	}
	if !a.mayAskFaces(f, key[0]) {
		return nil
	}
	q := &hostQuestion{done: make(chan struct{}), ruling: egress.Ruling{Verdict: egress.Asked}}
	f.hosts[key] = q
	go func() {
		var failed error
		var open *question.Open
		ruling := egress.Ruling{Verdict: egress.Asked}
		defer func() { a.settle(principal, key, q, ruling, open) }()
		defer fault.Recover(context.Background(), a.hub.Log, "asking about a host", &failed)
		ruling, open = a.askFaces(r, q)
	}()
	return q
}

// settle ends a question on the faces of a principal with a ruling. What somebody has answered counts for answerSpan, but
// a yes for once that no connection waits for is one for the next connection.
func (a *asking) settle(principal string, key [2]string, q *hostQuestion, ruling egress.Ruling, open *question.Open) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer close(q.done)
	q.ruling = ruling
	f := a.faces[principal] // it stays as long as it has a question
	forget := func() {
		delete(f.hosts, key)
		a.dropFaces(principal, f)
	}
	switch late := q.holders == 0 && ruling.Verdict == egress.Granted; {
	case late:
		a.hub.Questions.KeepOnce(open)
		forget()
	case ruling.Answered:
		time.AfterFunc(answerSpan, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			forget()
		})
	default:
		forget()
	}
}

// askFaces puts a question about a host, and waits for the answer.
func (a *asking) askFaces(r Request, of *hostQuestion) (egress.Ruling, *question.Open) {
	h := a.hub
	q := h.reachQuestion(r)
	began := time.Now()
	o, err := h.Questions.Ask(q, min(h.QuestionTimeout(), question.Grace), true)
	if err != nil {
		h.Log.Warn("a question about a host was not put", "principal", r.Principal.ID, "error", err)
		return egress.Ruling{Verdict: egress.Asked}, nil
	}
	a.mu.Lock()
	of.ruling.Question = o.ID // also of one that nobody answers
	a.mu.Unlock()
	reason, err := h.Questions.Wait(context.Background(), o) // it ends by its time, and with the server
	return a.ruled(o, q, reason, err, began), o
}

// ruled returns the ruling by the end of a question about a host, and publishes it.
func (a *asking) ruled(o *question.Open, q question.Question, reason string, err error, began time.Time) egress.Ruling {
	ruling, outcome := egress.Ruling{Verdict: egress.Asked, Question: o.ID}, "declined"
	switch {
	case err == nil && reason == "":
		ruling.Verdict, ruling.Answered, outcome = egress.Granted, true, "given"
	case err == nil && reason == question.No:
		ruling.Verdict, ruling.Answered = egress.Denied, true
	}
	a.hub.publishAnswer(q, outcome, began)
	return ruling
}

// ask asks the user of a call about a host, when the client has shown the questions before it, or takes the answer that
// somebody gives elsewhere.
func (a *asking) ask(c *askingCall, r Request, of *hostQuestion) egress.Ruling {
	h := a.hub
	select {
	case c.turn <- struct{}{}:
	case <-c.ctx.Done():
		return egress.Ruling{Verdict: egress.Asked}
	}
	release := sync.OnceFunc(func() { <-c.turn })
	defer release()
	if r, known := h.knownRuling(reachSubject(r.Principal, r.Detail), r.Resource.ID); known {
		return r
	}
	q := h.reachQuestion(r)
	set, more := presetOf(r.Detail)
	if set != "" {
		q.Text += fmt.Sprintf("\n%q allows these in all sessions: %s", alwaysPreset(set), strings.Join(more, " "))
	}
	began := time.Now()
	o, err := h.Questions.Ask(q, h.QuestionTimeout(), true)
	if err != nil {
		h.Log.Warn("a question about a host was not put", "principal", r.Principal.ID, "error", err)
		return egress.Ruling{Verdict: egress.Asked}
	}
	a.mu.Lock()
	of.ruling.Question = o.ID // also of one that nobody answers
	a.mu.Unlock()
	ctx, cancel := context.WithCancel(c.ctx)
	var client sync.WaitGroup
	client.Go(func() {
		var failed error
		defer fault.Recover(ctx, h.Log, "asking about a host", &failed)
		answered := a.askClient(ctx, c, q, o, set, more)
		if release(); !answered {
			a.awaitNoFace(ctx, r.Principal.ID)
			cancel() // nobody answers there, or on a face
		}
	})
	reason, err := h.Questions.Wait(ctx, o)
	cancel()
	client.Wait()
	return a.ruled(o, q, reason, err, began)
}

// askClient asks through the client of a call what q says, and answers the open question about the same. It reports
// whether it has an answer: a client may not be able to show the question, or its user put it away.
func (a *asking) askClient(ctx context.Context, c *askingCall, q question.Question, o *question.Open, set string,
	more []string) bool {
	h, p := a.hub, c.call.Principal
	choices := []string{allowOnce, allowSession, allowAlways}
	if set != "" {
		choices = append(choices, alwaysPreset(set))
	}
	choices = append(choices, denyOnce)
	choice, err := tool.AskUser(ctx, c.call.User(), tool.Question{Message: q.Text}, choices, h.QuestionTimeout())
	if declined, ok := errors.AsType[*tool.Declined](err); ctx.Err() != nil || err != nil && !(ok && declined.Refused) {
		return false // or somebody else has answered, or the call has ended
	}
	span, allowed := spans[choice], err == nil && choice != denyOnce
	if set != "" && choice == alwaysPreset(set) {
		span = question.Always
		for _, host := range more {
			q := q
			if q.Detail = host; host == o.Detail {
				continue
			}
			if err := h.Questions.Remember(ctx, q, true, question.Always, p); err != nil {
				h.Log.Warn("an answer was not stored", "host", host, "error", err)
			}
		}
	}
	if span == "" {
		span = question.Once
	}
	if _, err := h.Questions.Answer(ctx, o.ID, allowed, span, p); err != nil {
		h.Log.Warn("an answer was not stored", "host", o.Detail, "error", err)
		_, _ = h.Questions.Answer(ctx, o.ID, allowed, question.Once, p)
	}
	return true
}

// presets are hosts that belong together: who allows one of them will need the others.
var presets = map[string][]string{
	"github": {"github.com:443", "api.github.com:443", "codeload.github.com:443", "raw.githubusercontent.com:443",
		"objects.githubusercontent.com:443", "release-assets.githubusercontent.com:443", "gist.githubusercontent.com:443"},
	"huggingface": {"huggingface.co:443", "cdn-lfs.huggingface.co:443", "cdn-lfs.hf.co:443", "cas-bridge.xethub.hf.co:443",
		"cas-server.xethub.hf.co:443", "transfer.xethub.hf.co:443"},
	"browsers":     {"cdn.playwright.dev:443", "playwright.download.prss.microsoft.com:443"},
	"google-fonts": {"fonts.googleapis.com:443", "fonts.gstatic.com:443"},
	"rust": {"sh.rustup.rs:443", "static.rust-lang.org:443", "index.crates.io:443", "static.crates.io:443",
		"crates.io:443"},
	"debian": {"deb.debian.org:80", "deb.debian.org:443", "security.debian.org:80", "security.debian.org:443",
		"archive.ubuntu.com:80", "archive.ubuntu.com:443", "security.ubuntu.com:80", "security.ubuntu.com:443",
		"ports.ubuntu.com:80", "ports.ubuntu.com:443"},
}

// presetOf returns the preset that a host and port is of, and its hosts; empty: there is none.
func presetOf(host string) (name string, hosts []string) {
	for name, hosts := range presets {
		if slices.Contains(hosts, host) {
			return name, hosts
		}
	}
	return "", nil
}

// alwaysPreset is the answer by which a user allows all hosts of a preset.
func alwaysPreset(name string) string { return "always allow " + name }
