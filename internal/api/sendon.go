package api

import (
	"net/http"
	"slices"
	"strings"

	"sandlot/internal/api/forward"
	"sandlot/internal/auth"
)

// ofThisServer are the paths of what belongs to the server that is asked, and not to a principal: its metrics, its files,
// and the log-ins of browsers. A path that ends with a slash stands for all below it.
var ofThisServer = []string{"/metrics", "/console/", "/v1/console/", "/v1/principal", "/v1/database", "/v1/backups",
	"/v1/network", "/v1/users", "/v1/usage/all", "/v1/doctor", "/v1/images", "/v1/images/", "/v1/pulls/", "/v1/templates/",
	"/install", "/install/"}

// atOwner returns the handler of a principal's requests: next, here or at the server that acts for the principal. sentOn:
// another server has sent the request to this one.
func (s *Server) atOwner(next http.Handler, p auth.Principal, sentOn bool) http.Handler {
	if s.Forward == nil || sentOn {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// An operator stops the sessions of the server that is asked.
		stops := r.Method == http.MethodDelete && r.URL.Path == "/v1/sessions" && p.HasRole(auth.Operator)
		if stops || slices.ContainsFunc(ofThisServer, func(path string) bool {
			return r.URL.Path == path || strings.HasSuffix(path, "/") && strings.HasPrefix(r.URL.Path, path)
		}) {
			next.ServeHTTP(w, r)
			return
		}
		address, _ := requestURL(r)
		s.Forward.Serve(w, r, forward.Call{Principal: p, Address: address, Begin: func() { markUnbuffered(r) },
			Fail: func(err error) { s.problem(w, r, err) }}, next)
	})
}

// ReplicaHandler returns the handler of requests that other servers send to this one, for the listener on which only they
// get a connection: they have checked origin and token.
func (s *Server) ReplicaHandler() http.Handler {
	return count(s.Metrics, s.Log, withoutSlash(s.mux))
}
