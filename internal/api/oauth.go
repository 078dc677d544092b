package api

import (
	"context"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"sandlot/internal/api/forward"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
)

// Resource describes this server to OAuth clients. The zero value: no issuer's tokens are accepted.
type Resource struct {
	Issuers []string // whose tokens this server accepts
	Scopes  []string // that clients ask of an issuer
}

// resourceMetadata is the path of the metadata of a protected resource (RFC 9728). The path of the resource, empty
// or /mcp, follows.
const resourceMetadata = "/.well-known/oauth-protected-resource"

// protectedResource is the metadata of a protected resource.
type protectedResource struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	BearerMethods        []string `json:"bearer_methods_supported"`
	Scopes               []string `json:"scopes_supported,omitempty"`
	Name                 string   `json:"resource_name"`
}

// describeResource serves the metadata by which clients find out where their users log in.
func (s *Server) describeResource(w http.ResponseWriter, r *http.Request) {
	metadata, err := hub.Do(r.Context(), s.Hub, hub.Request{Operation: policy.ClientDiscover},
		func(context.Context) (protectedResource, error) {
			base, ok := s.baseURL(r)
			if len(s.Resource.Issuers) == 0 || !ok {
				return protectedResource{}, fault.New(fault.NotFound, "this server accepts no tokens of OIDC issuers")
			}
			return protectedResource{Resource: base + strings.TrimPrefix(r.URL.Path, resourceMetadata),
				AuthorizationServers: s.Resource.Issuers, BearerMethods: []string{"header"}, Scopes: s.Resource.Scopes,
				Name: "Sandlot"}, nil
		})
	if err != nil {
		s.problem(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, metadata)
}

// allowAnyOrigin lets pages of any origin read the metadata, which is public, and answers preflights. It returns
// true when the request is one.
func allowAnyOrigin(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if r.Method != http.MethodOptions {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Accept, Content-Type, Mcp-Protocol-Version")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

func isResourceMetadata(path string) bool {
	return path == resourceMetadata || strings.HasPrefix(path, resourceMetadata+"/")
}

// challenge returns the WWW-Authenticate header for a request without a valid token. With issuers, a client
// finds out by it where its user logs in.
func (s *Server) challenge(r *http.Request) string {
	parts := []string{`realm="sandlot"`}
	if r.Header.Get("Authorization") != "" {
		parts = append(parts, `error="invalid_token"`)
	}
	if base, ok := s.baseURL(r); ok && len(s.Resource.Issuers) > 0 {
		path := resourceMetadata
		if r.URL.Path == "/mcp" {
			path += "/mcp"
		}
		parts = append(parts, `resource_metadata="`+base+path+`"`)
		if len(s.Resource.Scopes) > 0 {
			parts = append(parts, `scope="`+strings.Join(s.Resource.Scopes, " ")+`"`)
		}
	}
	return "Bearer " + strings.Join(parts, ", ")
}

// hostPattern matches what may stand for a host and a port in a URL that the server prints.
var hostPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?$`)
})

// baseURL returns the URL at which the client of a request reaches this server, without a slash at its end:
// PublicURL, or else the address of the request, by what a trusted proxy says. It returns false when the request
// does not show it, as over the owner's socket.
func (s *Server) baseURL(r *http.Request) (string, bool) {
	if s.PublicURL != "" {
		return s.PublicURL, true
	}
	return requestURL(r)
}

// requestURL returns the scheme and the host to which a request was sent, by what a trusted proxy says. It returns false
// when the request does not show them.
func requestURL(r *http.Request) (string, bool) {
	if address, sentOn := forward.Address(r.Context()); sentOn {
		return address, address != ""
	}
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() == "unix" {
		return "", false
	}
	scheme, host := "http", r.Host
	if r.TLS != nil {
		scheme = "https"
	}
	if f, ok := r.Context().Value(forwardedKey{}).(forwarded); ok {
		if f.scheme != "" {
			scheme = f.scheme
		}
		if f.host != "" {
			host = f.host
		}
	}
	return scheme + "://" + host, hostPattern().MatchString(host)
}
