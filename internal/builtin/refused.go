package builtin

import (
	"sandlot/internal/session"
	"sandlot/internal/session/reason"
	"sandlot/internal/tool"
)

// addRefusals adds a text to a result on the hosts that the session's programs were not allowed to reach
// since the previous result, and on how the operator can allow them. It returns both as fields.
func addRefusals(l *session.Lease, r *tool.Result) ([]reason.RefusedHost, string) {
	refused := reason.Refusals(l.Refusals())
	if refused.Text != "" {
		r.Content = append(r.Content, tool.Text(refused.Text))
	}
	return refused.Hosts, refused.Advice
}
