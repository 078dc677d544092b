package api

import (
	"net/http"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/hub"
)

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
