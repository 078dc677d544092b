package hub

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
	"sandlot/internal/template"
)

// Template describes a template.
type Template = template.Info

// The states in which nothing more happens to a template that was to be built.
const (
	TemplateReady  = template.Ready
	TemplateFailed = template.Failed
)

// TemplateName is the name of a template.
type TemplateName string

// resource implements resourceInput.
func (n TemplateName) resource(*Hub, auth.Principal) policy.Resource {
	return policy.Resource{Kind: "template", ID: string(n)}
}

// detail implements detailInput.
func (n TemplateName) detail(*Hub, auth.Principal) string { return string(n) }

// listTemplates describes the templates. What they are made of, and why one could not be made, is for operators.
func (h *Hub) listTemplates(_ context.Context, p auth.Principal, _ None) ([]Template, error) {
	list := h.Templates.List()
	if !p.HasRole(auth.Operator) {
		for i := range list {
			list[i].Source, list[i].Step, list[i].Problem, list[i].Image = "", "", "", ""
		}
	}
	return list, nil
}

// buildTemplate asks for a template to be built, and does not wait for it. It describes the template.
func (h *Hub) buildTemplate(ctx context.Context, _ auth.Principal, name TemplateName) (Template, error) {
	requested, err := h.Templates.Request(string(name))
	if err == nil {
		h.Log.InfoContext(ctx, "a template is to be built", "template", string(name))
	}
	return requested, err
}
