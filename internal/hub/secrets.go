package hub

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
	"sandlot/internal/secret"
	"sandlot/internal/vault"
)

// MaxSecret bounds the value of a stored secret, in bytes.
const MaxSecret = vault.MaxValue

// Secret is what there is to know of a stored secret, and which third-party servers
// refer to it, by their names.
type Secret struct {
	vault.Info
	UsedBy []string `json:"used_by"`
}

func (h *Hub) secret(p auth.Principal, i vault.Info) Secret {
	return Secret{i, append([]string{}, h.Servers.UsesOf(p)[i.Name]...)}
}

// Secrets lists the principal's stored secrets.
func (h *Hub) Secrets(ctx context.Context, p auth.Principal) ([]Secret, error) {
	return Do(ctx, h, Request{Principal: p, Operation: policy.SecretList}, func(ctx context.Context) ([]Secret, error) {
		all, err := h.Vault.List(ctx, p.ID)
		if err != nil {
			return nil, err
		}
		list, uses := []Secret{}, h.Servers.UsesOf(p)
		for _, i := range all {
			list = append(list, Secret{i, append([]string{}, uses[i.Name]...)})
		}
		return list, nil
	})
}

// SetSecret stores a secret. There is no way to read it back.
func (h *Hub) SetSecret(ctx context.Context, p auth.Principal, name string, value secret.Value) (Secret, error) {
	return Do(ctx, h, ofSecret(policy.SecretSet, p, name), func(ctx context.Context) (Secret, error) {
		i, err := h.Vault.Set(ctx, p.ID, name, value)
		if err != nil {
			return Secret{}, err
		}
		h.Servers.Stored(p, i.Name)
		h.Log.InfoContext(ctx, "secret stored", "principal", p.ID, "name", i.Name)
		return h.secret(p, i), nil
	})
}

// RemoveSecret removes a secret. It returns which third-party servers still refer to
// it.
func (h *Hub) RemoveSecret(ctx context.Context, p auth.Principal, name string) ([]string, error) {
	return Do(ctx, h, ofSecret(policy.SecretRemove, p, name), func(ctx context.Context) ([]string, error) {
		if err := h.Vault.Remove(ctx, p.ID, name); err != nil {
			return nil, err
		}
		h.Log.InfoContext(ctx, "secret removed", "principal", p.ID, "name", name)
		return h.secret(p, vault.Info{Name: name}).UsedBy, nil
	})
}

// ofSecret is a request about one secret. Its name is not in the event: a user may
// have typed the value in its place.
func ofSecret(o policy.Operation, p auth.Principal, name string) Request {
	return Request{Principal: p, Operation: o, Resource: policy.Resource{Kind: "secret", ID: name, Owner: p.ID}}
}
