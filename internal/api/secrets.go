package api

import (
	"errors"
	"io"
	"net/http"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
	"sandlot/internal/vault"
)

// Secret is what there is to know of a stored secret, and which connections
// refer to it, by their names.
type Secret struct {
	vault.Info
	UsedBy []string `json:"used_by"`
}

func (s *Server) secretOf(p auth.Principal, i vault.Info) Secret {
	return Secret{i, append([]string{}, s.Connections.UsesOf(p)[i.Name]...)}
}

func (s *Server) listSecrets(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	all, err := s.Secrets.List(r.Context(), p.ID)
	if err != nil {
		problem(w, r, err)
		return
	}
	list, uses := []Secret{}, s.Connections.UsesOf(p)
	for _, i := range all {
		list = append(list, Secret{i, append([]string{}, uses[i.Name]...)})
	}
	writeJSON(w, 200, map[string]any{"secrets": list})
}

// setSecret stores the body, as it is. There is no way to read it back.
func (s *Server) setSecret(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, vault.MaxValue))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = fault.New(fault.InvalidParameters, "the value of a secret has at most %d bytes", vault.MaxValue).With("argument", "value")
	}
	if err != nil {
		problem(w, r, err)
		return
	}
	i, err := s.Secrets.Set(r.Context(), p.ID, r.PathValue("name"), secret.Value(value))
	if err != nil {
		problem(w, r, err)
		return
	}
	s.Connections.Stored(p, i.Name)
	s.Log.InfoContext(r.Context(), "secret stored", "principal", p.ID, "name", i.Name)
	writeJSON(w, 200, s.secretOf(p, i))
}

// removeSecret answers with what still refers to it.
func (s *Server) removeSecret(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	name := r.PathValue("name")
	if err := s.Secrets.Remove(r.Context(), p.ID, name); err != nil {
		problem(w, r, err)
		return
	}
	s.Log.InfoContext(r.Context(), "secret removed", "principal", p.ID, "name", name)
	writeJSON(w, 200, map[string]any{"name": name, "used_by": s.secretOf(p, vault.Info{Name: name}).UsedBy})
}
