package api

import (
	"errors"
	"io"
	"net/http"

	"sandlot/internal/api/protocol"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/secret"
)

// newSecret reads a secret: the value is the unchanged body. The query binds it to hosts. No route returns it.
func newSecret(w http.ResponseWriter, r *http.Request) (hub.NewSecret, error) {
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, hub.MaxSecret))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = fault.Argument("value", "the value of a secret has at most %d bytes", hub.MaxSecret)
	}
	s := hub.NewSecret{SecretName: hub.SecretName(r.PathValue("name")), Value: secret.Value(value)}
	q := r.URL.Query()
	if q.Has("host") || q.Has("header") || q.Has("basic") {
		s.Bind = &hub.Binding{Hosts: q["host"], Header: q.Get("header"), Basic: q.Get("basic") == "true"}
	}
	return s, err
}

// secretRemoved says which servers still refer to the secret.
func secretRemoved(r *http.Request, uses []string) any {
	return protocol.SecretRemoved{Name: r.PathValue("name"), UsedBy: uses}
}
