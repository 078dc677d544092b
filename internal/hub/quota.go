package hub

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/quota"
)

// QuotaOwner is the id or the name of the principal whose quotas are read; empty: the one who asks. Only operators may
// name another.
type QuotaOwner string

// resource implements resourceInput.
func (n QuotaOwner) resource(_ *Hub, p auth.Principal) policy.Resource {
	id := p.ID
	if n != "" && string(n) != id {
		var err error
		if id, err = auth.ParseID(string(n)); err != nil {
			id = string(n)
		}
	}
	return policy.Resource{Kind: "quota", ID: id, Owner: id}
}

// Quotas are the quotas of one principal.
type Quotas struct {
	Principal string      `json:"principal"`
	Quotas    []quota.Use `json:"quotas"`
}

// readQuota returns how much a principal uses of each quota.
func (h *Hub) readQuota(ctx context.Context, p auth.Principal, n QuotaOwner) (Quotas, error) {
	if n != "" && string(n) != p.ID {
		id, err := auth.ParseID(string(n))
		if err != nil {
			return Quotas{}, fault.New(fault.NotFound, "there is no such principal: %v", err)
		}
		p = auth.OnBehalfOf(id)
	}
	limits := h.Quotas.Of(p.ID)
	running, begun := h.Quotas.Calls(p.ID)
	uses := h.Sessions.QuotaUses(p.ID)
	connections := 0
	for _, s := range h.Servers.List(p) {
		if !s.Configured {
			connections++
		}
	}
	secrets, err := h.Vault.List(ctx, p.ID)
	if err != nil {
		return Quotas{}, err
	}
	return Quotas{p.ID, append(uses, quota.NewUse("connections", connections, limits.Connections),
		quota.NewUse("secrets", len(secrets), limits.Secrets), quota.NewUse("calls", running, limits.Calls),
		quota.NewUse("calls_per_minute", begun, limits.CallsPerMinute))}, nil
}
