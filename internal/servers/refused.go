package servers

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"

	"sandlot/internal/egress"
	"sandlot/internal/fault"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/session/reason"
	"sandlot/internal/tool"
)

// tellRefused tells the caller of a tool what the tool's server was not allowed to reach: a client with the result, and
// code with the next result of its session, as its result is data for a program.
func (s *server) tellRefused(c tool.Call, result json.RawMessage, list []egress.Refusal) json.RawMessage {
	if len(list) == 0 {
		return result
	}
	if c.FromSession != "" {
		if s.servers.Sessions != nil {
			s.servers.Sessions.AddRefusals(c.FromSession, list)
		}
		return result
	}
	refused := reason.Refusals(list)
	return catalog.WithRefused(result, refused.Text, refused.Hosts)
}

// withRefused adds to the error of a call, or of a start, what the server was not allowed to reach.
func withRefused(err error, list []egress.Refusal) error {
	if err == nil || len(list) == 0 {
		return err
	}
	refused := reason.Refusals(list)
	if answer, ok := errors.AsType[*tool.ExternalError](err); ok {
		copied := *answer
		copied.Message += "\n" + refused.Text
		return &copied
	}
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return err
	}
	copied := *f // others may have the same fault
	var hosts []string
	for _, h := range refused.Hosts {
		hosts = append(hosts, h.Host+": "+h.Reason)
	}
	copied.Message = strings.TrimSuffix(f.Message, ".") + ". Network access was refused: " + strings.Join(hosts, "; ")
	copied.Context = maps.Clone(f.Context)
	if refused.Advice != "" {
		copied.Advice = append([]string{refused.Advice}, f.Advice...)
	}
	return (&copied).With("network_refused", refused.Hosts)
}
