package servers

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/state"
)

// Any reports whether a principal has servers. It starts none.
func (servers *Servers) Any(p auth.Principal) bool {
	servers.viewOf(p)
	return len(servers.all(p.ID)) > 0
}

// Offered returns what a principal's servers offer, for code, and which are disconnected. It starts no server.
func (servers *Servers) Offered(p auth.Principal) (all []catalog.Offered) {
	servers.viewOf(p)
	for _, s := range servers.all(p.ID) {
		s.mu.Lock()
		switch {
		case s.Removed || s.State == state.Disabled && s.Configured && !s.rec.Off: // the operator's to decide
		case s.State == state.Disabled || s.rec.Off:
			all = append(all, catalog.Offered{Name: s.Name, State: string(state.Disabled)})
		default:
			all = append(all, catalog.Offered{Name: s.Name, Instructions: s.rec.Catalog.Instructions,
				State: string(s.shown()), Tools: catalog.ToolsOf(s.rec.Catalog, s.Settings.TrustMode())})
		}
		s.mu.Unlock()
	}
	return all
}

// ToolName returns the name by which clients call a tool of one server, which is given by the server's own name for
// it. It starts the server if its lists have never been read.
func (servers *Servers) ToolName(ctx context.Context, p auth.Principal, what, remote string) (string, error) {
	s, c, err := servers.withCatalog(ctx, p, what)
	if err != nil {
		return "", err
	}
	if d, ok := c.ToolNamed(remote); ok {
		if _, ok := servers.viewOf(p).Tools[d.Exposed]; ok {
			return d.Exposed, nil
		} else if why := servers.WhyMissing(p, d.Exposed); why != nil {
			return "", why
		}
	}
	return "", c.NoTool(s.Name, remote)
}
