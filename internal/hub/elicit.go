package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/question"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// Elicit puts what a server asks as a question, waits for its answer, and returns MCP's ElicitResult.
func (h *Hub) Elicit(ctx context.Context, e tool.Elicitation) (json.RawMessage, error) {
	q, err := h.elicited(e)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	o, err := h.Questions.Ask(q, h.QuestionTimeout(), true)
	if err != nil {
		return nil, err
	}
	h.Log.InfoContext(ctx, "a question of a third-party server waits for an answer", "id", o.ID, "principal",
		q.Principal)
	reason, err := h.Questions.Wait(ctx, o)
	answer, outcome := map[string]any{"action": "accept"}, "given"
	switch content := h.Questions.Content(o); {
	case err != nil:
		outcome = fault.From(err).Code()
	case reason == question.No:
		answer["action"], outcome = "decline", "declined"
	case reason != "":
		answer["action"], outcome = "cancel", "declined"
	case content != nil:
		answer["content"] = content
	}
	h.publishAnswer(q, outcome, began)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

// elicited returns the question that a server asks.
func (h *Hub) elicited(e tool.Elicitation) (q question.Question, err error) {
	var p struct {
		Mode, Message   string
		RequestedSchema json.RawMessage
	}
	cannot := func(why string) error {
		return fault.New(fault.Forbidden, "the server asks its user, no client can ask them, and the "+
			"question cannot wait for an answer: %s", why)
	}
	if h.Questions == nil {
		return q, cannot("this server has no questions")
	}
	if json.Unmarshal(e.Params, &p) != nil {
		return q, cannot("it makes no sense")
	}
	if p.Mode != "" && p.Mode != "form" {
		return q, cannot("it is not a form, but of the mode " + spec.ClipName(p.Mode))
	}
	form, err := question.ParseForm(p.RequestedSchema, spec.SafeText)
	if err != nil {
		return q, cannot(err.Error())
	}
	server := h.Servers.NameOf(auth.OnBehalfOf(e.Owner), e.Server)
	text := fmt.Sprintf("The MCP server %s asks this, as %s of the session %s has called its tool %s:\n%s",
		spec.ExactCommandLine([]string{server}), e.Caller, e.Session, spec.ExactCommandLine([]string{e.Tool}),
		spec.Quoted(p.Message, maxShown))
	if len(p.Message) > maxShown || len(text) > 2*maxShown {
		return q, cannot("it is too long")
	}
	return question.Question{Subject: question.Subject{Principal: e.Owner, Operation: policy.MCPCall,
		Detail: policy.ServerName(server) + "/" + e.Tool, Shown: secret.ID()}, Session: e.Session, Text: text,
		Form: form}, nil
}
