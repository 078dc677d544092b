package hub

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"sandlot/internal/auth"
	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/secret"
	"sandlot/internal/tool"
	"sandlot/internal/vault"
)

// secretStore is a vault.Store in memory.
type secretStore map[[2]string]vault.Record

func (s secretStore) PutSecret(_ context.Context, r vault.Record) error {
	s[[2]string{r.Owner, r.Name}] = r
	return nil
}

func (s secretStore) Secret(_ context.Context, owner, name string) (vault.Record, error) {
	r, ok := s[[2]string{owner, name}]
	if !ok {
		return r, vault.ErrNotFound
	}
	return r, nil
}

func (s secretStore) Secrets(context.Context, string) ([]vault.Record, error) { return nil, nil }

func (s secretStore) RemoveSecret(context.Context, string, string) error { return nil }

// revealing is a source with the tool run, which reveals its variable.
type revealing struct {
	source
	value string
}

func (s *revealing) Find(auth.Principal, string) (tool.Callable, bool) {
	return tool.Callable{Operation: policy.ShellExecute, Call: func(ctx context.Context, c tool.Call) (*tool.Result,
		error) {
		env, err := c.Door().Reveal(ctx, map[string]string{"A": s.value})
		return &tool.Result{Summary: env["A"]}, err
	}}, true
}

// A command's variables get the secrets of its own principal, as far as the scope of the token and the rules allow;
// the event has the name of a secret that exists.
func TestSecretsInCommands(t *testing.T) {
	v := &vault.Vault{Store: secretStore{}, KeyFile: filepath.Join(t.TempDir(), "key"), CreateKey: true}
	ann, bob, bot := auth.User("ann", false), auth.User("bob", false), auth.User("ann", true)
	set := func(p auth.Principal, name, value string, to *vault.Binding) vault.Info {
		t.Helper()
		i, err := v.Set(t.Context(), p.ID, name, secret.Value(value), to)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	set(ann, "KEY", "hunter2 of ann", nil)
	set(ann, "PROD_KEY", "hunter2 of prod", nil)
	set(bob, "KEY", "hunter2 of bob", nil)
	bound := set(ann, "BOUND", "hunter2-bound", &vault.Binding{Hosts: []string{"a.test"}})
	src, events, rules, used := &revealing{}, event.New(), &policy.Current{}, []string{}
	defer events.Close()
	events.ObserveBy(func(e event.Event) {
		if e.Operation == string(policy.SecretUse) {
			used = append(used, e.Principal+" "+e.Name+" "+e.Outcome)
		}
	})
	h := New(Config{Sources: []tool.Source{src}, Vault: v, Events: events, Rules: rules})
	call := func(p auth.Principal, value string) (string, error) {
		src.value = value
		r, err := h.Call(t.Context(), tool.Call{Principal: p, Name: "run"})
		if err != nil {
			return "", err
		}
		return r.Summary, nil
	}
	for p, want := range map[string]string{ann.ID: "a hunter2 of ann", bob.ID: "a hunter2 of bob"} {
		if got, err := call(auth.OnBehalfOf(p), "a ${secret:KEY}"); err != nil || got != want {
			t.Errorf("%s: %q, %v", p, got, err)
		}
	}
	if got, err := call(ann, "${secret:BOUND}"); err != nil || got != bound.Binding.Placeholder {
		t.Errorf("a bound one: %q, %v", got, err)
	}
	if _, err := call(bob, "${secret:PROD_KEY}"); !fault.Is(err, fault.NotFound) || !strings.Contains(err.Error(),
		"sandlot secret set PROD_KEY") {
		t.Errorf("another's: %v", err)
	}
	scoped := ann
	scoped.Scope = "shell.execute"
	if _, err := call(scoped, "${secret:KEY}"); !fault.Is(err, fault.Forbidden) {
		t.Errorf("without the scope: %v", err)
	}
	if _, err := call(scoped, "plain"); err != nil {
		t.Errorf("without the scope, and without a secret: %v", err)
	}
	slices.Sort(used)
	if got := strings.Join(used, ", "); got != "user:ann  FORBIDDEN, user:ann BOUND ok, user:ann KEY ok, "+
		"user:bob  NOT_FOUND, user:bob KEY ok" {
		t.Errorf("the events are %s", got)
	}
	var list []policy.Rule
	for _, text := range []string{"deny ann secret.use PROD_*", "allow service secret.use KEY",
		"deny service secret.use"} {
		r, err := policy.ParseRule(text, "here")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	rules.Set(policy.Compile(list))
	for text, allowed := range map[string]bool{"${secret:KEY}": true, "${secret:PROD_KEY}": false,
		"${secret:KEY}${secret:PROD_KEY}": false} {
		if got, err := call(ann, text); (err == nil) != allowed || err != nil && (!fault.Is(err, fault.Forbidden) ||
			got != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	if _, err := call(bot, "${secret:KEY}"); err != nil {
		t.Errorf("a service that may: %v", err)
	}
	if _, err := call(bot, "${secret:BOUND}"); !fault.Is(err, fault.Forbidden) {
		t.Errorf("a service that may not: %v", err)
	}
}

// A rule may ask before a command gets a secret; the question names it, and a yes is for that one.
func TestSecretIsAskedAbout(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	synctest.Test(t, func(t *testing.T) {
		h := askingHub(t, "ask * secret.use")
		h.Vault = &vault.Vault{Store: secretStore{}, KeyFile: key, CreateKey: true}
		for _, name := range []string{"KEY", "OTHER"} {
			if _, err := h.Vault.Set(t.Context(), ann.ID, name, "hunter2", nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"KEY", "OTHER"} {
			got := make(chan string, 1)
			go func() {
				env, err := h.reveal(t.Context(), ann, map[string]string{"A": "${secret:" + name + "}"})
				got <- env["A"] + fmt.Sprint(err)
			}()
			answerFirst(t, h, 1, "secret.use: "+name, question.Always)
			if env := <-got; env != "hunter2<nil>" {
				t.Errorf("%s: after a yes: %s", name, env)
			}
		}
	})
}

// Who makes a copy of a session needs the right to use each secret that it may have, and to restore the snapshot's
// session if another one gets what that has had.
func TestSecretsInCopies(t *testing.T) {
	events := event.New()
	defer events.Close()
	h := New(Config{Events: events, Rules: &policy.Current{}})
	h.Rules.Set(rulesOf(t, "deny ann secret.use PROD_*"))
	ann := auth.User("ann", false)
	scoped := ann
	scoped.Scope = "session.fork"
	for name, try := range map[string]struct {
		p       auth.Principal
		source  string
		secrets []string
		says    string // empty: it is allowed
	}{
		"without secrets": {ann, "", nil, ""}, "allowed": {ann, "of a snapshot", []string{"KEY"}, ""},
		"denied":                 {ann, "", []string{"KEY", "PROD_KEY"}, "would have the secret PROD_KEY"},
		"out of scope":           {scoped, "", []string{"KEY"}, "would have the secret KEY"},
		"nothing is out of it":   {scoped, "", nil, ""},
		"restoring out of scope": {scoped, "of a snapshot", nil, "snapshot.restore"},
	} {
		err := h.MayCopy(t.Context(), try.p, try.source, try.secrets)
		if (err == nil) != (try.says == "") || err != nil && (!fault.Is(err, fault.Forbidden) ||
			!strings.Contains(err.Error(), try.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
