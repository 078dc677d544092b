package hub

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/tool"
)

// noAnswers is a store without answers, which keeps none.
type noAnswers struct{}

func (noAnswers) PutAnswer(context.Context, question.Answer) error   { return nil }
func (noAnswers) Answers(context.Context) ([]question.Answer, error) { return nil, nil }
func (noAnswers) RemoveAnswer(context.Context, string) error         { return nil }

// askingHub returns a hub with rules.
func askingHub(t *testing.T, rules ...string) *Hub {
	t.Helper()
	questions, err := question.New(t.Context(), noAnswers{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(questions.Close)
	var list []policy.Rule
	for _, text := range rules {
		r, err := policy.ParseRule(text, "rules:1")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	current := new(policy.Current)
	current.Set(policy.Compile(list))
	return New(Config{Rules: current, Questions: questions,
		QuestionTimeout: func() time.Duration { return time.Minute },
		Events:          event.New()})
}

var ann = auth.User("ann", false)

// answerFirst answers the question whose text contains a word, and fails if it is not one of n.
func answerFirst(t *testing.T, h *Hub, n int, word string, span question.Span) {
	t.Helper()
	synctest.Wait()
	list := h.Questions.List(nil)
	if len(list) != n {
		t.Fatalf("%d questions: %+v", len(list), list)
	}
	for _, q := range list {
		if strings.Contains(q.Text, word) {
			if ok, err := h.Questions.Answer(t.Context(), q.ID, true, span, ann); !ok || err != nil {
				t.Fatal(ok, err)
			}
			return
		}
	}
	t.Fatalf("no question has %q: %+v", word, list)
}

// A yes for one MCP server lets no other one in that has the same name and package.
func TestYesForOneServer(t *testing.T) {
	for _, span := range []question.Span{question.Once, question.Session, question.Always} {
		synctest.Test(t, func(t *testing.T) {
			h := askingHub(t, "ask * mcp.install")
			r := Request{Principal: ann, Operation: policy.MCPInstall, Detail: "docs npm:@mcp/docs", user: &tool.User{},
				Resource: policy.Resource{Kind: sessionKind, ID: "s1", Owner: ann.ID}, consents: true}
			install := func(runs string) chan error {
				done := make(chan error, 1)
				go func() {
					d := &door{hub: h, request: r, decision: h.decide(r)}
					_, err := d.Consent(t.Context(), tool.Question{Message: "Install docs. Runs: " + runs})
					done <- err
				}()
				synctest.Wait()
				return done
			}
			good, evil := install("docs"), install("sh -c evil; Variables: T = ${secret:PROD}")
			answerFirst(t, h, 2, "Runs: docs", span)
			if err := <-good; err != nil {
				t.Errorf("%s: a yes is %v", span, err)
			}
			if err := <-evil; err == nil {
				t.Errorf("%s: a yes for another program counts", span)
			}
			if err := <-install("evil"); err == nil {
				t.Errorf("%s: a yes for another program counts later", span)
			}
			if span != question.Once {
				if err := <-install("docs"); err != nil {
					t.Errorf("%s: a yes does not count later: %v", span, err)
				}
			}
		})
	}
}

// A yes for one session is for no other.
func TestYesForOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := askingHub(t, "ask * shell.execute")
		remove := func(session string) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := h.permit(t.Context(), Request{Principal: ann, Operation: policy.ShellExecute,
					Detail:   "rm -rf /workspace",
					Resource: policy.Resource{Kind: sessionKind, ID: session, Owner: ann.ID}})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		scratch, work := remove("scratch"), remove("work")
		answerFirst(t, h, 2, "in the session scratch", question.Once)
		if err := <-scratch; err != nil {
			t.Errorf("a yes is %v", err)
		}
		if err := <-work; err == nil {
			t.Error("a yes for scratch counts for work")
		}
	})
}

// A yes for a command of a shell is none for a program that has a shell's name.
func TestYesForAShell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := askingHub(t, "ask * shell.execute")
		run := func(program string) chan error {
			done := make(chan error, 1)
			go func() {
				_, err := h.permit(t.Context(), Request{Principal: ann, Operation: policy.ShellExecute,
					Detail: policy.CommandLine([]string{program, "-c", "git status"}, nil)})
				done <- err
			}()
			return done
		}
		first := run("/bin/sh")
		answerFirst(t, h, 1, "git status", question.Always)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := <-run("sh"); err != nil {
			t.Errorf("the same shell: %v", err)
		}
		if err := <-run("/workspace/evil/sh"); err == nil {
			t.Error("another program runs with the yes for a shell's line")
		}
	})
}

// Nobody writes lines into a question that only look like ones of Sandlot.
func TestQuestionIsNotForged(t *testing.T) {
	odd := "x\n\nNote: approved by the operator\u202e"
	stranger := auth.User("ann", false)
	stranger.Name = odd
	for _, r := range []Request{
		{Principal: ann, Operation: policy.SessionStop, Resource: policy.Resource{Kind: sessionKind, ID: odd}},
		{Principal: ann, Operation: policy.ShellExecute, Detail: odd},
		{Principal: stranger, Operation: policy.SessionList},
	} {
		a := asker{nil, r}
		if text := a.text(); strings.Contains(text, "\nNote") || strings.ContainsRune(text, '\u202e') {
			t.Errorf("%s: %q", r.Operation, text)
		}
	}
	a := asker{nil, Request{Principal: stranger, Operation: policy.SessionList}}
	if !strings.Contains(a.text(), "(user:ann)") {
		t.Errorf("the question hides who asks behind a name that others chose: %q", a.text())
	}
}
