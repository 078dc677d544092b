package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/fault"
)

// Policy reports whether users' agents may do something that the operator restricts, such as
// connecting a third-party server.
type Policy string

const (
	Allow Policy = "allow" // without consent of the user
	Ask   Policy = "ask"   // with consent of the user
	Deny  Policy = "deny"
)

// UserTimeout is how long a user may take to answer a question that a call asks, and so how
// long a call stays suspended.
const UserTimeout = 10 * time.Minute

// maxQuestion is the largest question in bytes; users would not read more.
const maxQuestion = 8 << 10

// Question asks a user for consent to an action.
type Question struct {
	// What names the action in a few words, as the subject of a sentence.
	What string
	// Message says everything that the user consents to. It is never shortened.
	Message string
	// WithoutAgent is the user's own command for the same thing.
	WithoutAgent string
}

// Declined is the error of a call to which the user did not consent. Clients get it as the
// call's result, not as a fault.
type Declined struct {
	Message string
	Refused bool // the user has said no; else there is no answer
}

// Error implements error.
func (d *Declined) Error() string { return d.Message }

// Consent returns nil if a call may do what q asks for. The policy Ask asks the user through
// their client, and refuses if the client cannot ask. It does not ask the local user of a
// server without authentication.
func (p Policy) Consent(ctx context.Context, c Call, q Question) error {
	switch {
	case p == Deny:
		return fault.New(fault.Forbidden, "%s is forbidden by the operator of this server", q.What).
			With("consent", string(p)).Advise("Use the connected servers (list_external_mcp)",
			"Ask the operator of this server to add it to the settings (mcp in sandlot.yaml), "+
				"or to change mcp_consent")
	case p != Ask, !c.Principal.Authenticated:
		return nil
	case len(q.Message) > maxQuestion:
		return fault.Argument("args", "%s needs the user's consent, and what they would have to read has "+
			"%d bytes: at most %d can be shown; put long arguments into a file", q.What, len(q.Message), maxQuestion)
	case !CanAsk(c.User()):
		return cannotAsk(q)
	}
	choice, err := AskUser(ctx, c.User(), q, []string{yes, no}, UserTimeout)
	if err == nil && choice != yes {
		err = &Declined{"The user was asked, and refused", true}
	}
	return err
}

// CanAsk reports whether a call's client can ask its user.
func CanAsk(u User) bool {
	if w, ok := u.Client.(Waiting); ok && w.Waits() {
		return false
	}
	return u.Client != nil && hasForms(u.Client.Capabilities())
}

// Waiting is a Client whose user is not there: what it is asked waits until a person answers it elsewhere.
type Waiting interface{ Waits() bool }

// cannotAsk returns the fault for a client that cannot ask its user.
func cannotAsk(q Question) error {
	return fault.New(fault.Forbidden, "%s needs the user's consent, and this client cannot ask them", q.What).
		With("consent", string(Ask)).
		Advise("The user adds it themselves, on a terminal and with their token in SANDLOT_TOKEN: "+q.WithoutAgent,
			"Use an MCP client that can ask its user (elicitation)",
			"The operator of this server can do without consent: mcp_consent: allow")
}

// hasForms reports whether a client's capabilities include elicitation by a form. A client
// that declares elicitation without a mode supports forms.
func hasForms(capabilities json.RawMessage) bool {
	var c struct {
		Elicitation *struct {
			Form, URL json.RawMessage
		}
	}
	if json.Unmarshal(capabilities, &c) != nil || c.Elicitation == nil {
		return false
	}
	return c.Elicitation.Form != nil || c.Elicitation.URL == nil
}

// The two answers. They are choices of an enumeration and not a boolean: clients show a
// boolean as a checkbox, which has an answer before the user has seen it.
const yes, no = "allow", "deny"

// AskUser asks the user by elicitation, and returns one of the choices, or an error: a user who
// gives no answer has declined.
func AskUser(ctx context.Context, u User, q Question, choices []string, timeout time.Duration) (string, error) {
	decision := map[string]any{"type": "string", "title": "Your decision", "enum": choices}
	params, err := json.Marshal(map[string]any{"message": q.Message, "requestedSchema": map[string]any{
		"type": "object", "required": []string{"decision"}, "properties": map[string]any{"decision": decision}}})
	if err != nil {
		return "", err
	}
	if u.Progress != nil {
		u.Progress("Waiting for the user's consent")
	}
	askCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := u.Client.Ask(askCtx, "elicitation/create", params)
	switch {
	case ctx.Err() != nil:
		return "", fault.From(ctx.Err())
	case errors.Is(askCtx.Err(), context.DeadlineExceeded):
		return "", &Declined{Message: fmt.Sprintf("The user was asked, and did not answer within %s", timeout)}
	case err != nil:
		return "", &Declined{Message: "The user's client was asked, and gave no answer that counts"}
	}
	var answer struct {
		Action  string
		Content struct{ Decision any }
	}
	if json.Unmarshal(raw, &answer) != nil {
		return "", &Declined{Message: "The user was asked, and what their client answered could not be read"}
	}
	choice, _ := answer.Content.Decision.(string)
	switch {
	case answer.Action == "accept" && slices.Contains(choices, choice):
		return choice, nil
	case answer.Action == "cancel":
		return "", &Declined{Message: "The user was asked, and put the question away without an answer"}
	}
	return "", &Declined{"The user was asked, and refused", true}
}
