package api

import (
	"net/http"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/hub"
)

func (s *Server) listTemplates(_ http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
	list, err := hub.ListTemplates.Do(r.Context(), s.Hub, p, hub.None{})
	return protocol.TemplateList{Templates: list}, err
}

func templateName(_ http.ResponseWriter, r *http.Request) (hub.TemplateName, error) {
	return hub.TemplateName(r.PathValue("name")), nil
}
