package api

import (
	"fmt"
	"net/http"
	"strings"

	"sandlot/internal/api/openapi"
	"sandlot/internal/api/page"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/hub"
)

// pageParameters are the parameters of the query of every list that has pages.
var pageParameters = []openapi.Parameter{
	openapi.Query("limit", "At most so many entries; without it, all of them.", openapi.Between(1, page.MaxLimit)),
	openapi.Query("cursor", "Continue where the answer ended that has this `next_cursor`. A cursor is for the same "+
		"list and the same user alone, until the server starts again.", openapi.Text("^[A-Za-z0-9_-]+$")),
}

// A lister returns a list, or the page of it that a request asks for.
type lister func(w http.ResponseWriter, r *http.Request, p auth.Principal, q page.Request) (any, error)

// list serves a list that has pages.
func (s *Server) list(l lister) http.HandlerFunc {
	return s.respond(func(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
		q, err := s.cursors.Request(r, p.ID)
		if err != nil {
			return nil, err
		}
		return l(w, r, p, q)
	})
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request, p auth.Principal, q page.Request) (any, error) {
	args := map[string]any{}
	if labels := r.URL.Query()["label"]; len(labels) > 0 {
		args["labels"] = labels
	}
	fields, err := s.structured(w, r, p, "get_sessions", args)
	all, ok := fields.(*hub.SessionList)
	if err != nil || !ok {
		return fields, err
	}
	answer := protocol.SessionPage{SessionList: *all}
	answer.Sessions, answer.NextCursor = page.Cut(q, all.Sessions, sessionKey)
	return answer, nil
}

func (s *Server) listConnections(w http.ResponseWriter, r *http.Request, p auth.Principal,
	q page.Request) (any, error) {
	fields, err := s.structured(w, r, p, "list_external_mcp", map[string]any{})
	all, ok := fields.(*hub.ServerList)
	if err != nil || !ok {
		return fields, err
	}
	answer := protocol.ServerPage{ServerList: *all}
	answer.Servers, answer.NextCursor = page.Cut(q, all.Servers, serverKey)
	return answer, nil
}

func (s *Server) listSecrets(_ http.ResponseWriter, r *http.Request, p auth.Principal, q page.Request) (any, error) {
	all, err := hub.ListSecrets.Do(r.Context(), s.Hub, p, hub.None{})
	if err != nil {
		return nil, err
	}
	answer := protocol.SecretList{}
	answer.Secrets, answer.NextCursor = page.Cut(q, all, func(s hub.Secret) string { return s.Name })
	return answer, nil
}

func (s *Server) listTemplates(_ http.ResponseWriter, r *http.Request, p auth.Principal, q page.Request) (any, error) {
	all, err := hub.ListTemplates.Do(r.Context(), s.Hub, p, hub.None{})
	if err != nil {
		return nil, err
	}
	answer := protocol.TemplateList{}
	answer.Templates, answer.NextCursor = page.Cut(q, all, func(t hub.Template) string { return t.Name })
	return answer, nil
}

// listQuestions answers with two lists, of which pages have first the questions, then the answers.
func (s *Server) listQuestions(_ http.ResponseWriter, r *http.Request, p auth.Principal, q page.Request) (any, error) {
	all, err := hub.ListQuestions.Do(r.Context(), s.Hub, p, hub.None{})
	if err != nil {
		return nil, err
	}
	type entry struct {
		key   string
		index int // in its list
	}
	var entries []entry
	for i, question := range all.Questions {
		entries = append(entries, entry{fmt.Sprintf("q%020d%s", question.Asked.UnixNano(), question.ID), i})
	}
	for i, stored := range all.Answers {
		entries = append(entries, entry{fmt.Sprintf("s%020d%s", stored.Given.UnixNano(), stored.ID), i})
	}
	entries, next := page.Cut(q, entries, func(e entry) string { return e.key })
	answer := protocol.QuestionPage{Page: protocol.Page{NextCursor: next}}
	answer.Questions, answer.Answers = all.Questions[:0:0], all.Answers[:0:0]
	for _, e := range entries {
		if e.key[0] == 'q' {
			answer.Questions = append(answer.Questions, all.Questions[e.index])
		} else {
			answer.Answers = append(answer.Answers, all.Answers[e.index])
		}
	}
	return answer, nil
}

// sessionKey orders sessions by their age, the oldest first.
func sessionKey(s hub.SessionRow) string { return s.Created + " " + s.ID }

// serverKey puts the configured servers first, then those of the principal, the newest first.
func serverKey(s hub.ServerRow) string {
	if s.Configured {
		return "0" + s.Created + " " + s.ID
	}
	inverted := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return '0' + '9' - c
		}
		return c
	}, s.Created)
	return "1" + inverted + " " + s.ID
}
