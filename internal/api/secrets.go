package api

import (
	"errors"
	"io"
	"net/http"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/secret"
)

// SecretList is the answer to GET /v1/secrets.
type SecretList struct {
	Secrets []hub.Secret `json:"secrets"`
}

// SecretRemoved is the answer to DELETE /v1/secrets/{name}.
type SecretRemoved struct {
	Name   string   `json:"name"`
	UsedBy []string `json:"used_by"` // names of servers that still refer to it
}

func (s *Server) listSecrets(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	list, err := hub.ListSecrets.Do(r.Context(), s.Hub, p, hub.None{})
	respond(w, r, http.StatusOK, SecretList{list}, err)
}

// setSecret stores the body, as it is. There is no way to read it back.
func (s *Server) setSecret(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, hub.MaxSecret))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = fault.New(fault.InvalidParameters, "the value of a secret has at most %d bytes", hub.MaxSecret).With("argument", "value")
	}
	if err != nil {
		problem(w, r, err)
		return
	}
	stored, err := hub.SetSecret.Do(r.Context(), s.Hub, p,
		hub.NewSecret{SecretName: hub.SecretName(r.PathValue("name")), Value: secret.Value(value)})
	respond(w, r, http.StatusOK, stored, err)
}

// removeSecret answers with what still refers to it.
func (s *Server) removeSecret(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	name := r.PathValue("name")
	uses, err := hub.RemoveSecret.Do(r.Context(), s.Hub, p, hub.SecretName(name))
	respond(w, r, http.StatusOK, SecretRemoved{name, uses}, err)
}
