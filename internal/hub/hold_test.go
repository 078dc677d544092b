package hub

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/egress"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/tool"
)

// person is a client whose user answers each question after a while with what a function returns; empty: never.
type person struct {
	after  time.Duration
	answer func(message string, choices []string) string

	mu    sync.Mutex
	asked []string
}

func (p *person) Capabilities() json.RawMessage { return json.RawMessage(`{"elicitation":{}}`) }

func (*person) ID() string { return "person" }

func (*person) Retries() bool { return false }

func (*person) Notify(string, json.RawMessage) {}

func (p *person) Ask(ctx context.Context, _ string, params json.RawMessage) (json.RawMessage, error) {
	var q struct {
		Message         string
		RequestedSchema struct {
			Properties struct{ Decision struct{ Enum []string } }
		}
	}
	if err := json.Unmarshal(params, &q); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.asked = append(p.asked, q.Message)
	p.mu.Unlock()
	answer := p.answer(q.Message, q.RequestedSchema.Properties.Decision.Enum)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(p.after):
	}
	switch answer {
	case "":
		<-ctx.Done()
		return nil, ctx.Err()
	case "cancel", "decline":
		return json.RawMessage(`{"action":"` + answer + `"}`), nil
	case "error":
		return nil, errors.New("the client cannot show it")
	}
	return json.Marshal(map[string]any{"action": "accept", "content": map[string]any{"decision": answer}})
}

func (p *person) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

func always(answer string) func(string, []string) string {
	return func(string, []string) string { return answer }
}

// holdingHub is a hub that asks, and the function by which a program of a principal's session s1 connects.
func holdingHub(t *testing.T, rules ...string) (*Hub, func(p auth.Principal, host string, unlisted bool) egress.Verdict) {
	h := askingHub(t, rules...)
	h.NetworkHold = func() time.Duration { return 20 * time.Second }
	return h, func(p auth.Principal, host string, unlisted bool) egress.Verdict {
		return h.Asker().Hold(t.Context(), egress.Owner{Principal: p.ID, Session: "s1"}, host, unlisted).Verdict
	}
}

// begin begins a call of a client.
func begunCall(t *testing.T, h *Hub, p auth.Principal, c *person) (end func()) {
	return h.asking.begin(t.Context(), tool.Call{Principal: p, Client: c})
}

// TestHold: the person at the keyboard is asked once about a host, and the answer counts for what they chose.
func TestHold(t *testing.T) {
	for answer, want := range map[string]struct{ first, sameCall, later, laterElsewhere egress.Verdict }{
		allowOnce:    {egress.Granted, egress.Granted, egress.Asked, egress.Asked},
		allowSession: {egress.Granted, egress.Granted, egress.Granted, egress.Asked},
		allowAlways:  {egress.Granted, egress.Granted, egress.Granted, egress.Granted},
		denyOnce:     {egress.Denied, egress.Denied, egress.Asked, egress.Asked},
		"cancel":     {egress.Asked, egress.Asked, egress.Asked, egress.Asked},
		"decline":    {egress.Denied, egress.Denied, egress.Asked, egress.Asked},
		"error":      {egress.Asked, egress.Asked, egress.Asked, egress.Asked},
	} {
		t.Run(answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, connect := holdingHub(t)
				c := &person{after: 5 * time.Second, answer: always(answer)}
				end := begunCall(t, h, auth.Local, c)
				var all sync.WaitGroup
				for range 5 { // a program opens several connections
					all.Go(func() {
						if got := connect(auth.Local, "new.example:443", true); got != want.first {
							t.Errorf("at first %v, want %v", got, want.first)
						}
					})
				}
				all.Wait()
				if got := connect(auth.Local, "new.example:443", true); got != want.sameCall || c.count() != 1 {
					t.Errorf("in the same call %v after %d questions", got, c.count())
				}
				end()
				if got := connect(auth.Local, "new.example:443", true); got != want.later {
					t.Errorf("later %v, want %v", got, want.later)
				}
				if got := h.Asker().Hold(t.Context(), egress.Owner{Principal: auth.Local.ID, Session: "s2"},
					"new.example:443", true).Verdict; got != want.laterElsewhere {
					t.Errorf("in another session %v, want %v", got, want.laterElsewhere)
				}
				if list := h.Questions.List(nil); len(list) != 0 {
					t.Errorf("questions are left: %v", list)
				}
			})
		})
	}
}

// TestHoldOthers: nobody is asked whom no rule asks, who has no client that can ask, or by another's client.
func TestHoldOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := holdingHub(t, "ask * network.reach ruled.example:443")
		c := &person{answer: always(allowOnce)}
		end := begunCall(t, h, ann, c)
		if got := connect(auth.Local, "new.example:443", true); got != egress.Asked {
			t.Errorf("by the client of another: %v", got)
		}
		if got := connect(ann, "new.example:443", true); got != egress.Asked {
			t.Errorf("a user with a token, about a host of no rule: %v", got)
		}
		if c.count() != 0 {
			t.Errorf("asked: %q", c.asked)
		}
		if got := connect(ann, "ruled.example:443", false); got != egress.Granted || c.count() != 1 {
			t.Errorf("about a host of a rule: %v, %d questions", got, c.count())
		}
		end()
		h.NetworkHold = func() time.Duration { return 0 }
		defer begunCall(t, h, auth.Local, c)()
		if got := connect(auth.Local, "new.example:443", true); got != egress.Asked || c.count() != 1 {
			t.Errorf("with hold: 0: %v, %d questions", got, c.count())
		}
	})
}

// TestHoldIsBounded: a connection does not wait for ever, an answer after that counts for the next one, and a program
// cannot flood a person with questions.
func TestHoldIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := holdingHub(t)
		c := &person{after: 30 * time.Second, answer: always(allowOnce)}
		end := begunCall(t, h, auth.Local, c)
		began := time.Now()
		if got := connect(auth.Local, "slow.example:443", true); got != egress.Asked || time.Since(began) != 20*time.Second {
			t.Errorf("%v after %s", got, time.Since(began))
		}
		time.Sleep(15 * time.Second)
		if got := connect(auth.Local, "slow.example:443", true); got != egress.Granted {
			t.Errorf("after the answer: %v", got)
		}
		c.after = 0
		for n := range 30 {
			connect(auth.Local, strings.Repeat("x", n+1)+".example:443", true)
		}
		if c.count() != maxHosts {
			t.Errorf("%d questions", c.count())
		}
		end()
		// The call ends while its question waits.
		silent := &person{answer: always("")}
		end = begunCall(t, h, auth.Local, silent)
		done := make(chan egress.Verdict, 1)
		go func() { done <- connect(auth.Local, "late.example:443", true) }()
		synctest.Wait()
		end()
		if got := <-done; got != egress.Asked {
			t.Errorf("after the end of the call: %v", got)
		}
		// Somebody answers on a terminal.
		defer begunCall(t, h, auth.Local, silent)()
		go func() { done <- connect(auth.Local, "elsewhere.example:443", true) }()
		answerFirst(t, h, 1, "elsewhere.example", question.Session)
		if got := <-done; got != egress.Granted {
			t.Errorf("answered elsewhere: %v", got)
		}
	})
}

// TestHoldOnFaces: while a face of a person shows questions, connections wait for its answers, though no client can ask.
func TestHoldOnFaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := holdingHub(t, "ask ann network.reach ruled.example:443")
		watch := func(p auth.Principal) Live {
			l, err := h.WatchQuestions(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		waits := func(p auth.Principal, host string, unlisted bool) chan egress.Verdict {
			done := make(chan egress.Verdict, 1)
			go func() { done <- connect(p, host, unlisted) }()
			synctest.Wait()
			return done
		}
		mayHold := func(p auth.Principal) bool {
			return h.Asker().MayHold(egress.Owner{Principal: p.ID, Session: "s1"}, "new.example")
		}
		// Faces of others, and operators who look at everyone's questions, are not asked.
		for _, p := range []auth.Principal{auth.User("bob", false), {ID: "user:op", Name: "op", Roles: auth.NewRoles(auth.Operator)}} {
			defer watch(p).Close()
		}
		if got := connect(ann, "ruled.example:443", false); got != egress.Asked || mayHold(auth.Local) {
			t.Errorf("with the faces of others: %v", got)
		}
		face, second := watch(ann), watch(ann)
		local := watch(auth.Local)
		began := time.Now()
		all := []chan egress.Verdict{waits(ann, "ruled.example:443", false), waits(ann, "ruled.example:443", false)}
		answerFirst(t, h, 1, "ruled.example", question.Once)
		for _, done := range all {
			if got := <-done; got != egress.Granted || time.Since(began) > 0 {
				t.Errorf("after a yes on a face: %v after %s", got, time.Since(began))
			}
		}
		if got := connect(ann, "ruled.example:443", false); got != egress.Granted {
			t.Errorf("the next connection: %v", got)
		}
		// A rule asks before it is known that the connection waits: what was answered is not asked again.
		if got := h.Reach(egress.Owner{Principal: ann.ID, Session: "s1"}, "ruled.example:443", egress.Connecting); got.Verdict !=
			egress.Granted || len(h.Questions.List(nil)) > 0 {
			t.Errorf("the rule says %v, and asks %v", got, h.Questions.List(nil))
		}
		if got := connect(ann, "new.example:443", true); got != egress.Asked || mayHold(ann) {
			t.Errorf("a user with a token, about a host of no rule: %v", got)
		}
		// The answer counts for a minute. Nobody answers the next question: the connection does not wait for ever.
		time.Sleep(answerSpan)
		synctest.Wait()
		began = time.Now()
		if got := connect(ann, "ruled.example:443", false); got != egress.Asked || time.Since(began) != 20*time.Second {
			t.Errorf("without an answer: %v after %s", got, time.Since(began))
		}
		// The page is reloaded meanwhile: the question stays, and its answer counts for the next connection.
		face.Close()
		second.Close()
		answerFirst(t, h, 1, "ruled.example", question.Once)
		if got := connect(ann, "ruled.example:443", false); got != egress.Granted {
			t.Errorf("after a late yes: %v", got)
		}
		// The person at the keyboard is asked about what no rule lists, and about so many hosts at once.
		if !mayHold(auth.Local) {
			t.Error("names are not held")
		}
		for n := range maxHosts {
			all = append(all, waits(auth.Local, strings.Repeat("x", n+1)+".example:443", true))
		}
		if got := connect(auth.Local, "one-more.example:443", true); got != egress.Asked || mayHold(auth.Local) {
			t.Errorf("one host more: %v", got)
		}
		for n := range maxHosts {
			answerFirst(t, h, maxHosts-n, "example", question.Session)
		}
		for _, done := range all[2:] {
			if got := <-done; got != egress.Granted {
				t.Errorf("after a yes: %v", got)
			}
		}
		local.Close()
		time.Sleep(answerSpan)
		synctest.Wait()
		if len(h.asking.faces) != 2 { // of bob and of the operator
			t.Errorf("faces are left: %v", h.asking.faces)
		}
	})
}

// facedHub is a hub that asks the person at the keyboard on a face, the function by which a program of a session connects,
// and the one that says whether its names resolve.
func facedHub(t *testing.T) (h *Hub, face Live, connect func(session, host string) egress.Verdict,
	resolves func(session, name string) bool) {
	h, _ = holdingHub(t)
	face, err := h.WatchQuestions(t.Context(), auth.Local)
	if err != nil {
		t.Fatal(err)
	}
	return h, face, func(session, host string) egress.Verdict {
			return h.Asker().Hold(t.Context(), egress.Owner{Principal: auth.Local.ID, Session: session}, host, true).Verdict
		}, func(session, name string) bool {
			return h.Asker().MayHold(egress.Owner{Principal: auth.Local.ID, Session: session}, name)
		}
}

// TestHoldLateOnFaces: a yes that a face gives when no connection waits any more is for the next connection, once, and is
// there without the face.
func TestHoldLateOnFaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, face, connect, resolves := facedHub(t)
		if got := connect("s1", "new.example:443"); got != egress.Asked {
			t.Errorf("without an answer: %v", got)
		}
		answerFirst(t, h, 1, "new.example", question.Once)
		synctest.Wait()
		face.Close()
		time.Sleep(2 * answerSpan)
		if !resolves("s1", "new.example") || resolves("s2", "new.example") || resolves("s1", "ew.example") {
			t.Error("the name does not resolve, or others do")
		}
		if got := connect("s1", "new.example:443"); got != egress.Granted {
			t.Errorf("the next connection: %v", got)
		}
		if got := connect("s1", "new.example:443"); got != egress.Asked || resolves("s1", "new.example") {
			t.Errorf("the one after it: %v", got)
		}
	})
}

// TestHoldAnsweredOnFaces: what a face has answered counts for a minute, also for lookups of the name and in a call that
// begins then, and leaves room for other questions; those of one session leave room for those of another.
func TestHoldAnsweredOnFaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, face, connect, resolves := facedHub(t)
		defer face.Close()
		var all sync.WaitGroup
		for n := range 2 * maxHosts {
			host := strings.Repeat("x", n+1) + ".example"
			if !resolves("s1", host) {
				t.Fatalf("%s does not resolve", host)
			}
			all.Go(func() {
				if got := connect("s1", host+":443"); got != egress.Granted {
					t.Errorf("%s: %v", host, got)
				}
			})
			answerFirst(t, h, 1, host, question.Once)
			all.Wait()
		}
		for n := range maxHosts {
			all.Go(func() { connect("s1", strings.Repeat("y", n+1)+".example:443") })
		}
		synctest.Wait()
		if resolves("s1", "z.example") || !resolves("s2", "z.example") {
			t.Error("the questions of a session are not bounded, or bound another's")
		}
		if !resolves("s1", "x.example") {
			t.Error("an answered name does not resolve")
		}
		c := &person{answer: always("cancel")}
		end := begunCall(t, h, auth.Local, c)
		if got := connect("s1", "x.example:443"); got != egress.Granted || c.count() != 0 {
			t.Errorf("in a call: %v after %d questions", got, c.count())
		}
		for n := range maxHosts {
			all.Go(func() { connect("s3", strings.Repeat("z", n+1)+".example:443") })
		}
		synctest.Wait()
		if !resolves("s1", "x.example") || !resolves("s3", "z.example") || resolves("s3", "new.example") {
			t.Error("in a call with many hosts, names about which somebody was asked do not resolve, or others do")
		}
		end()
		all.Wait()
	})
}

// TestHoldInCallsAndOnFaces: what a client cannot show is asked on faces, one host beside the other, and given up when the last
// face is gone for longer than a page takes to reload.
func TestHoldInCallsAndOnFaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, face, connect, _ := facedHub(t)
		c := &person{answer: always("error")}
		defer begunCall(t, h, auth.Local, c)()
		first, second := make(chan egress.Verdict, 1), make(chan egress.Verdict, 1)
		go func() { first <- connect("s1", "first.example:443") }()
		go func() { second <- connect("s1", "second.example:443") }()
		answerFirst(t, h, 2, "first.example", question.Once)
		if got := <-first; got != egress.Granted || c.count() != 2 {
			t.Errorf("the first: %v, after %d questions in the client", got, c.count())
		}
		face.Close()
		time.Sleep(reloadTime / 2)
		again, err := h.WatchQuestions(t.Context(), auth.Local)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(reloadTime)
		if n := len(h.Questions.List(nil)); n != 1 {
			t.Errorf("when the page was reloaded: %d questions", n)
		}
		again.Close()
		began := time.Now()
		if got := <-second; got != egress.Asked || time.Since(began) != reloadTime || len(h.Questions.List(nil)) > 0 {
			t.Errorf("without a face: %v after %v", got, time.Since(began))
		}
	})
}

// TestHoldOff: without a time to wait, nobody is asked.
func TestHoldOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := holdingHub(t, "ask ann network.reach ruled.example:443")
		h.NetworkHold = func() time.Duration { return 0 }
		face, err := h.WatchQuestions(t.Context(), ann)
		if err != nil {
			t.Fatal(err)
		}
		defer face.Close()
		got := connect(ann, "ruled.example:443", false)
		synctest.Wait()
		if list := h.Questions.List(nil); got != egress.Asked || len(list) > 0 {
			t.Errorf("%v, with the questions %v", got, list)
		}
	})
}

// TestHoldForgetsPanics: a question that fails inside the server does not stay.
func TestHoldForgetsPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, face, connect, _ := facedHub(t)
		timeout := h.QuestionTimeout
		h.QuestionTimeout = func() time.Duration { panic("a fault") }
		if got := connect("s1", "new.example:443"); got != egress.Asked {
			t.Errorf("at first: %v", got)
		}
		h.QuestionTimeout = timeout
		done := make(chan egress.Verdict, 1)
		go func() { done <- connect("s1", "new.example:443") }()
		answerFirst(t, h, 1, "new.example", question.Session)
		if got := <-done; got != egress.Granted {
			t.Errorf("then: %v", got)
		}
		face.Close()
		time.Sleep(answerSpan)
		synctest.Wait()
		if len(h.asking.faces) > 0 {
			t.Errorf("faces are left: %v", h.asking.faces)
		}
	})
}

// TestHoldOfARule: what a rule asks stays a question when nobody has answered within the call, and the person who answers
// it later is heard; the client is shown all that an answer allows.
func TestHoldOfARule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, connect := holdingHub(t, "ask * network.reach")
		o := egress.Owner{Principal: auth.Local.ID, Session: "s1"}
		if got := h.Reach(o, "github.com:443", egress.Connecting); got.Verdict != egress.Asked || got.Rule == "" ||
			got.Question == "" {
			t.Fatalf("the rule says %v", got)
		}
		silent := &person{answer: always("")}
		end := begunCall(t, h, auth.Local, silent)
		if got := connect(auth.Local, "github.com:443", false); got != egress.Asked {
			t.Errorf("without an answer: %v", got)
		}
		end()
		if !strings.Contains(silent.asked[0], "codeload.github.com:443") {
			t.Errorf("the question does not say all: %s", silent.asked[0])
		}
		answerFirst(t, h, 1, "github.com", question.Once)
		if got := connect(auth.Local, "github.com:443", false); got != egress.Granted {
			t.Errorf("after an answer on a terminal: %v", got)
		}
		// What a client has answered counts until its call ends, and is not asked again.
		end = begunCall(t, h, auth.Local, &person{answer: always(allowOnce)})
		if got := connect(auth.Local, "pypi.org:443", false); got != egress.Granted {
			t.Errorf("after an answer in a client: %v", got)
		}
		if got := h.Reach(egress.Owner{Principal: auth.Local.ID, Session: "s1"}, "pypi.org:443", egress.Connecting); got.Verdict !=
			egress.Granted || len(h.Questions.List(nil)) > 0 {
			t.Errorf("the rule says %v, and asks %v", got, h.Questions.List(nil))
		}
		end()
		if got := connect(auth.Local, "github.com:443", false); got != egress.Asked {
			t.Errorf("an answer for once counts twice: %v", got)
		}
	})
}

// TestHoldPresets: one answer allows all hosts of a preset, and none of another.
func TestHoldPresets(t *testing.T) {
	for name, host := range map[string]string{"github": "codeload.github.com", "huggingface": "cdn-lfs.huggingface.co",
		"browsers": "cdn.playwright.dev", "google-fonts": "fonts.gstatic.com", "rust": "static.rust-lang.org",
		"debian": "archive.ubuntu.com"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, connect := holdingHub(t)
				c := &person{answer: func(message string, choices []string) string {
					if !strings.Contains(message, host+":443") || choices[3] != "always allow "+name {
						t.Errorf("the question does not say all: %s, %q", message, choices)
					}
					return choices[3]
				}}
				end := begunCall(t, h, auth.Local, c)
				for _, host := range presets[name] {
					if got := connect(auth.Local, host, true); got != egress.Granted {
						t.Errorf("%s: %v", host, got)
					}
				}
				end()
				if got := connect(auth.Local, host+":443", true); got != egress.Granted || c.count() != 1 {
					t.Errorf("later %v, %d questions", got, c.count())
				}
				o := egress.Owner{Principal: auth.Local.ID, Session: "s9"}
				if !h.Asker().MayHold(o, host) || h.Asker().MayHold(o, "other.example") {
					t.Error("names: what was allowed, and nothing else, is looked up")
				}
			})
		})
	}
	of := map[string]string{}
	for name, hosts := range presets {
		for _, host := range hosts {
			if r, err := egress.ParseRule(host); err != nil || r.String() != host || of[host] != "" {
				t.Errorf("%s of %s: %v, also of %s", host, name, err, of[host])
			}
			of[host] = name
		}
	}
}

// TestHoldNamesItsQuestion: a ruling has the id of the question that was asked, answered or not.
func TestHoldNamesItsQuestion(t *testing.T) {
	for answer, want := range map[string]egress.Ruling{
		allowOnce: {Verdict: egress.Granted, Answered: true}, denyOnce: {Verdict: egress.Denied, Answered: true},
		"cancel": {Verdict: egress.Asked}, "late": {Verdict: egress.Asked},
	} {
		t.Run(answer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, _ := holdingHub(t)
				c := &person{answer: always(answer)}
				if answer == "late" {
					c.after, c.answer = time.Minute, always(allowOnce)
				}
				end := begunCall(t, h, auth.Local, c)
				defer end()
				got := h.Asker().Hold(t.Context(), egress.Owner{Principal: auth.Local.ID, Session: "s1"}, "new.example:443", true)
				id := got.Question
				if got.Question = ""; got != want || !strings.HasPrefix(id, "q_") {
					t.Errorf("%+v with the question %q, want %+v", got, id, want)
				}
			})
		})
	}
	h, _ := holdingHub(t)
	o := egress.Owner{Principal: auth.Local.ID, Session: "s1"}
	if got := h.Asker().Hold(t.Context(), o, "new.example:443", true); got != (egress.Ruling{Verdict: egress.Asked}) {
		t.Errorf("where nobody can be asked: %+v", got)
	}
}

// TestAsksHosts: the tools that run programs ask where somebody can be asked.
func TestAsksHosts(t *testing.T) {
	h, _ := holdingHub(t)
	if h.Look(auth.Local, "no_such_tool").Hosts {
		t.Error("a tool that is not there")
	}
	h.Sources = []tool.Source{toolsOf{"run": policy.ShellExecute, "read": policy.FileRead}}
	for name, want := range map[string]bool{"run": true, "read": false} {
		if here, there := h.Look(auth.Local, name).Hosts, h.Look(ann, name).Hosts; here != want || there {
			t.Errorf("%s: %v, of a user with a token %v", name, here, there)
		}
	}
}

// toolsOf has tools, by their names.
type toolsOf map[string]policy.Operation

func (s toolsOf) Tools(context.Context, auth.Principal) []tool.Tool { return nil }

func (s toolsOf) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	o, ok := s[name]
	return tool.Callable{Operation: o}, ok
}
