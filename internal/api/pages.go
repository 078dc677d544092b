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

// list serves an operation whose output is a list. cut makes the page of it that a request asks for, or all of it.
func list[In, Out any](s *Server, o hub.Op[In, Out], in input[In], cut func(q page.Request, all Out) any) http.HandlerFunc {
	return s.respond(func(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
		q, err := s.cursors.Request(r, p.ID)
		if err != nil {
			return nil, err
		}
		given, err := in(w, r)
		if err != nil {
			return nil, err
		}
		all, err := o.Do(r.Context(), s.Hub, p, given)
		if err != nil {
			return nil, err
		}
		return cut(q, all), nil
	})
}

func sessionPage(q page.Request, fields any) any {
	all, ok := fields.(*hub.SessionList)
	if !ok {
		return fields
	}
	answer := protocol.SessionPage{SessionList: *all}
	answer.Sessions, answer.NextCursor = page.Cut(q, all.Sessions, sessionKey)
	return answer
}

func serverPage(q page.Request, fields any) any {
	all, ok := fields.(*hub.ServerList)
	if !ok {
		return fields
	}
	answer := protocol.ServerPage{ServerList: *all}
	answer.Servers, answer.NextCursor = page.Cut(q, all.Servers, serverKey)
	return answer
}

func promptPage(q page.Request, all []hub.ServerPromptRow) any {
	answer := protocol.PromptPage{}
	answer.Prompts, answer.NextCursor = page.Cut(q, all, func(p hub.ServerPromptRow) string { return p.Name })
	return answer
}

func secretPage(q page.Request, all []hub.Secret) any {
	answer := protocol.SecretList{}
	answer.Secrets, answer.NextCursor = page.Cut(q, all, func(s hub.Secret) string { return s.Name })
	return answer
}

func templatePage(q page.Request, all []hub.Template) any {
	answer := protocol.TemplateList{}
	answer.Templates, answer.NextCursor = page.Cut(q, all, func(t hub.Template) string { return t.Name })
	return answer
}

// questionPage has two lists, of which pages have first the questions, then the answers.
func questionPage(q page.Request, all hub.QuestionList) any {
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
	return answer
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
