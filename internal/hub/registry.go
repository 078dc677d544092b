package hub

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/registry"
)

// What is known of the servers in registries.
type (
	RegistryFound = registry.Found
	RegistryEntry = registry.Entry
	RegistryWay   = registry.Way
	RegistryInput = registry.Input
	RegistryPlan  = registry.Plan
)

// MaxRegistryResults is how many entries a search may return.
const MaxRegistryResults = registry.MaxResults

// RegistrySearch is a search in registries.
type RegistrySearch struct{ registry.Query }

// RegistryReference names an entry of a registry.
type RegistryReference struct{ registry.Reference }

// detail implements detailInput.
func (r RegistryReference) detail(*Hub, auth.Principal) string { return r.Text() }

// RegistryChoice is what a user chose of an entry.
type RegistryChoice struct {
	registry.Reference
	registry.Choice
}

// detail implements detailInput. The user's values are not in it.
func (c RegistryChoice) detail(*Hub, auth.Principal) string { return c.Text() }

var errNoRegistry = fault.New(fault.NotFound, "this server has no MCP registry")

func (h *Hub) searchRegistry(ctx context.Context, p auth.Principal, s RegistrySearch) (RegistryFound, error) {
	if h.Registries == nil {
		return RegistryFound{}, errNoRegistry
	}
	return h.Registries.Search(registry.For(ctx, p.Payer()), s.Query)
}

func (h *Hub) readRegistry(ctx context.Context, p auth.Principal, r RegistryReference) (RegistryEntry, error) {
	if h.Registries == nil {
		return RegistryEntry{}, errNoRegistry
	}
	return h.Registries.Get(registry.For(ctx, p.Payer()), r.Reference)
}

func (h *Hub) planRegistry(ctx context.Context, p auth.Principal, c RegistryChoice) (RegistryPlan, error) {
	if h.Registries == nil {
		return RegistryPlan{}, errNoRegistry
	}
	return h.Registries.Plan(registry.For(ctx, p.Payer()), c.Reference, c.Choice)
}
