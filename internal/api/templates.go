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

// imagesPath is the path of the list of images, which has the pulls too.
const imagesPath = "/v1/images"

// imageRequest reads which image is to be got.
func imageRequest(w http.ResponseWriter, r *http.Request) (q hub.ImageRequest, err error) {
	err = decode(w, r, 64<<10, &q, "image, and nothing else but platform")
	return q, err
}

func pullBegun(_ *http.Request, p hub.ImagePull) any {
	return protocol.PullBegun{Pull: p, Progress: imagesPath}
}
