package api

import (
	"net/http"

	"sandlot/internal/api/protocol"
	"sandlot/internal/hub"
)

// templatesPath is the path of the list of templates.
const templatesPath = "/v1/templates"

func templateRequested(_ *http.Request, t hub.Template) any {
	return protocol.TemplateRequested{Template: t, Progress: templatesPath}
}
