package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"sandlot/internal/fault"
)

// plainSealer seals nothing.
type plainSealer struct{}

func (plainSealer) SealVariables(owner, session string, env map[string]string) ([]byte, error) {
	return json.Marshal([]any{owner, session, env})
}

func (plainSealer) OpenVariables(owner, session string, sealed []byte) (env map[string]string, err error) {
	var gotOwner, gotSession string
	if err := json.Unmarshal(sealed, &[]any{&gotOwner, &gotSession, &env}); err != nil || gotOwner != owner ||
		gotSession != session {
		return nil, errors.New("these are another session's")
	}
	return env, nil
}

// A new session gets variables, which are stored with it and are there after a restart; no other session gets any, and
// what is too much, or no variable, is refused without its value.
func TestVariables(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.Sealer = plainSealer{}
		env := map[string]string{"A": "hunter2", "B_2": "${secret:B}"}
		l := w.use(ann, OpenRequest{ID: "new", Env: env})
		id := l.ID()
		l.Release()
		for what, p := range map[string]OpenRequest{"the home": {ID: "home", Env: env}, "the default": {Env: env},
			"a session that exists": {ID: id, Env: env}} {
			_, err := w.Open(t.Context(), ann, p)
			if !fault.Is(err, fault.InvalidParameters) || !strings.Contains(err.Error(), `session_id "new"`) {
				t.Errorf("%s: %v", what, err)
			}
		}
		many := map[string]string{}
		for i := range maxVariables + 1 {
			many[fmt.Sprintf("V%d", i)] = ""
		}
		for what, env := range map[string]map[string]string{"a name": {"A-B": "hunter2"}, "a digit": {"1A": "hunter2"},
			"no name": {"": "hunter2"}, "a long name": {strings.Repeat("A", 129): "hunter2"},
			"NUL":     {"A": "hunter2\x00"},
			"no text": {"A": "hunter2\xff"}, "much": {"A": strings.Repeat("hunter2", 10000)}, "many": many} {
			_, err := w.Open(t.Context(), ann, OpenRequest{ID: "new", Env: env})
			if !fault.Is(err, fault.InvalidParameters) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if n := len(w.store.all); n != 1 {
			t.Errorf("%d sessions are stored", n)
		}
		w.Close(context.Background())
		w.open(nil)
		w.Sealer = plainSealer{}
		got, err := w.VariablesOf(ann.ID, id)
		if err != nil || !maps.Equal(got, env) {
			t.Errorf("after a restart: %v, %v", got, err)
		}
		if got, err := w.VariablesOf(bob.ID, id); err != nil || got != nil {
			t.Errorf("another principal's: %v, %v", got, err)
		}
		l = w.use(bot, OpenRequest{Env: env}) // a service's default session is a new one
		if got, err := l.Variables(); err != nil || !maps.Equal(got, env) {
			t.Errorf("a service's: %v, %v", got, err)
		}
		l.Release()
	})
}

// A session that was created for a call ends when it cannot have its variables; one that was there stays.
func TestRefusedVariables(t *testing.T) {
	in(t, nil, func(t *testing.T, w *testSessions) {
		w.Sealer = plainSealer{}
		refused := fault.New(fault.Forbidden, "refused")
		refuse := func(context.Context, map[string]string) (map[string]string, error) { return nil, refused }
		env := map[string]string{"A": "x"}
		l := w.use(ann, OpenRequest{ID: "new", Env: env})
		if err := l.UseVariables(t.Context(), refuse); !errors.Is(err, refused) {
			t.Error(err)
		}
		if n := len(w.store.all); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
		l = w.use(ann, OpenRequest{ID: "new", Env: env})
		l.Release()
		l = w.use(ann, OpenRequest{ID: l.ID()})
		if err := l.UseVariables(t.Context(), refuse); !errors.Is(err, refused) {
			t.Error(err)
		}
		l.Release()
		if n := len(w.store.all); n != 1 {
			t.Errorf("%d sessions are left", n)
		}
		l = w.use(ann, OpenRequest{ID: "home"})
		if err := l.UseVariables(t.Context(), refuse); err != nil {
			t.Errorf("a session without variables: %v", err)
		}
		l.Release()
	})
}
