package api

import (
	"net/http"

	"sandlot/internal/api/protocol"
	"sandlot/internal/hub"
)

// templatesPath is the path of the list of templates.
const templatesPath = "/v1/templates"

func templateName(_ http.ResponseWriter, r *http.Request) (hub.TemplateName, error) {
	return hub.TemplateName(r.PathValue("name")), nil
}

func templateRequested(_ *http.Request, t hub.Template) any {
	return protocol.TemplateRequested{Template: t, Progress: templatesPath}
}
