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

// templatesPath is the path of the list of templates.
const templatesPath = "/v1/templates"

func (s *Server) buildTemplate(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
	requested, err := hub.BuildTemplate.Do(r.Context(), s.Hub, p, hub.TemplateName(r.PathValue("name")))
	if err != nil {
		return nil, err
	}
	w.Header().Set("Location", templatesPath)
	return protocol.TemplateRequested{Template: requested, Progress: templatesPath}, nil
}
