package tool

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// user is a client whose user answers what a test wants.
type user struct {
	can    string
	answer func(ctx context.Context) (string, error)
	asked  []string
}

func (u *user) ID() string                     { return "u" }
func (u *user) Capabilities() json.RawMessage  { return json.RawMessage(u.can) }
func (u *user) Retries() bool                  { return false }
func (u *user) Notify(string, json.RawMessage) {}

func (u *user) Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	u.asked = append(u.asked, method+" "+string(params))
	a, err := u.answer(ctx)
	return json.RawMessage(a), err
}

func says(answer string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return answer, nil }
}

var (
	anna = auth.User("anna", false)
	q    = Question{What: "starting it", Message: "Start it?", WithoutAgent: "sandlot mcp add it"}
)

const able = `{"elicitation":{}}`

func TestConsent(t *testing.T) {
	const allowed, declined, forbidden, invalid = "", "declined", "FORBIDDEN", "INVALID_PARAMETERS"
	for name, tt := range map[string]struct {
		policy      Policy
		who         auth.Principal
		can, answer string
		question    Question
		want        string
		asked       bool
	}{
		"allow":                  {Allow, anna, able, "", q, allowed, false},
		"no policy":              {"", anna, able, "", q, allowed, false},
		"deny":                   {Deny, anna, able, "", q, forbidden, false},
		"deny the local user":    {Deny, auth.Local, able, "", q, forbidden, false},
		"the local user is told": {Ask, auth.Local, able, "", q, allowed, false},
		"yes": {Ask, anna, able, `{"action":"accept","content":{"decision":"allow"}}`, q, allowed,
			true},
		"form and url": {Ask, anna, `{"elicitation":{"form":{},"url":{}}}`,
			`{"action":"accept","content":{"decision":"allow"}}`, q, allowed, true},
		"no": {Ask, anna, able, `{"action":"accept","content":{"decision":"deny"}}`, q, declined,
			true},
		"accepted without a word": {Ask, anna, able, `{"action":"accept"}`, q, declined, true},
		"accepted with true": {Ask, anna, able, `{"action":"accept","content":{"decision":true}}`, q, declined,
			true},
		"accepted with another": {Ask, anna, able, `{"action":"accept","content":{"decision":"Allow it"}}`, q,
			declined, true},
		"declined with a yes": {Ask, anna, able, `{"action":"decline","content":{"decision":"allow"}}`, q,
			declined, true},
		"canceled with a yes": {Ask, anna, able, `{"action":"cancel","content":{"decision":"allow"}}`, q, declined,
			true},
		"no object":                {Ask, anna, able, `"accept"`, q, declined, true},
		"nothing":                  {Ask, anna, able, ``, q, declined, true},
		"cannot":                   {Ask, anna, `{}`, "", q, forbidden, false},
		"cannot, and says null":    {Ask, anna, `{"elicitation":null}`, "", q, forbidden, false},
		"can open links alone":     {Ask, anna, `{"elicitation":{"url":{}}}`, "", q, forbidden, false},
		"capabilities of nonsense": {Ask, anna, `{"elicitation":7}`, "", q, forbidden, false},
		"more than can be read": {Ask, anna, able, "",
			Question{What: "w", Message: strings.Repeat("x", maxQuestion+1)}, invalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			u := &user{can: tt.can, answer: says(tt.answer)}
			err := tt.policy.Consent(t.Context(), Call{Principal: tt.who, Client: u}, tt.question)
			got := allowed
			if _, ok := errors.AsType[*Declined](err); ok {
				got = declined
			} else if err != nil {
				got = fault.From(err).Code()
			}
			if got != tt.want || (len(u.asked) == 1) != tt.asked {
				t.Errorf("%q (%v), want %q; asked %q", got, err, tt.want, u.asked)
			}
			if tt.asked && !strings.HasPrefix(u.asked[0], `elicitation/create {"message":"Start it?",`) {
				t.Errorf("asked %s", u.asked[0])
			}
		})
	}
}

// Who cannot be asked is told what to do.
func TestConsentWithoutClient(t *testing.T) {
	err := Ask.Consent(t.Context(), Call{Principal: anna}, q)
	f := fault.From(err)
	if f.Kind != fault.Forbidden || f.Context["consent"] != "ask" ||
		!strings.Contains(strings.Join(f.Data().RecoverySuggestions, "\n"), "sandlot mcp add it") {
		t.Errorf("%v %+v", err, f.Data())
	}
}

// A client that fails is no yes, and an answer that never comes is none after a
// time.
func TestConsentFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failing := &user{can: able, answer: func(context.Context) (string, error) { return "", errors.New("no") }}
		if _, ok := errors.AsType[*Declined](Ask.Consent(t.Context(), Call{Principal: anna, Client: failing}, q)); !ok {
			t.Error("a client that fails")
		}
		waits := func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		began := time.Now()
		err := Ask.Consent(t.Context(), Call{Principal: anna, Client: &user{can: able, answer: waits}}, q)
		if _, ok := errors.AsType[*Declined](err); !ok || time.Since(began) != UserTimeout {
			t.Errorf("nobody answers: %v after %s", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := Ask.Consent(ctx, Call{Principal: anna, Client: &user{can: able, answer: waits}}, q); err == nil ||
			fault.From(err).Kind == fault.Internal {
			t.Errorf("the call is given up: %v", err)
		}
	})
}
