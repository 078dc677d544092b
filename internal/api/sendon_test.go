package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandlot/internal/api/forward"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// nobody is forward.Owners of servers that are all away.
type nobody struct{ forward.Owners }

func (nobody) Find(context.Context, string) (forward.Place, error) {
	return forward.Place{}, fault.New(fault.Connection, "away")
}

// TestOfThisServer: what belongs to a machine is served by the server that is asked, and all else where its principal is.
func TestOfThisServer(t *testing.T) {
	s := &Server{Config: Config{Log: slog.New(slog.DiscardHandler),
		Forward: forward.New(forward.Config{Owners: nobody{}, Log: slog.New(slog.DiscardHandler)})}}
	operator := auth.Principal{ID: "user:op", Authenticated: true, Roles: auth.NewRoles(auth.Operator)}
	for request, here := range map[string]bool{
		"GET /v1/doctor": true, "POST /v1/doctor": true, "GET /v1/images": true, "DELETE /v1/images/a/b:c": true,
		"DELETE /v1/pulls/1": true, "POST /v1/templates/python/build": true, "GET /v1/backups": true,
		"DELETE /v1/sessions": true, "GET /v1/sessions": false, "GET /v1/questions": false, "POST /mcp": false,
		"GET /v1/doctors": false} {
		method, path, _ := strings.Cut(request, " ")
		w, served := httptest.NewRecorder(), false
		s.atOwner(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }), operator, false).
			ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if served != here || !here && w.Code < 500 {
			t.Errorf("%s: served here: %v, %d", request, served, w.Code)
		}
	}
}
