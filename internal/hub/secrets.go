package hub

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
	"sandlot/internal/vault"
)

// MaxSecret is the largest value of a stored secret, in bytes.
const MaxSecret = vault.MaxValueBytes

// Secret describes a stored secret, and names the third-party servers that refer to it.
type Secret struct {
	vault.Info
	UsedBy []string `json:"used_by"`
}

func (h *Hub) listSecrets(ctx context.Context, p auth.Principal, _ None) ([]Secret, error) {
	stored, err := h.Vault.List(ctx, p.ID)
	if err != nil {
		return nil, err
	}
	list, uses := []Secret{}, h.Servers.UsesOf(p)
	for _, i := range stored {
		list = append(list, Secret{i, append([]string{}, uses[i.Name]...)})
	}
	return list, nil
}

// Binding says where a bound secret goes.
type Binding = vault.Binding

// NewSecret is a secret to be stored. No operation returns its value.
type NewSecret struct {
	SecretName
	Value secret.Value
	Bind  *Binding // nil: as it was, or not bound
}

func (h *Hub) setSecret(ctx context.Context, p auth.Principal, s NewSecret) (Secret, error) {
	i, err := h.Vault.Set(ctx, p.ID, string(s.SecretName), s.Value, s.Bind)
	h.SecretsChanged(p.ID) // also after an error: the store may have the change
	if err != nil {
		return Secret{}, err
	}
	h.Servers.Stored(p, i.Name)
	h.Log.InfoContext(ctx, "secret stored", "principal", p.ID, "name", i.Name)
	return Secret{i, h.serversUsing(p, i.Name)}, nil
}

// removeSecret removes a secret, and returns the names of the third-party servers that still
// refer to it.
func (h *Hub) removeSecret(ctx context.Context, p auth.Principal, name SecretName) ([]string, error) {
	err := h.Vault.Remove(ctx, p.ID, string(name))
	h.SecretsChanged(p.ID)
	if err != nil {
		return nil, err
	}
	h.Log.InfoContext(ctx, "secret removed", "principal", p.ID, "name", string(name))
	return h.serversUsing(p, string(name)), nil
}

// reveal returns variables of a command or a session with the principal's secrets in place of references to them.
func (h *Hub) reveal(ctx context.Context, p auth.Principal, env map[string]string) (map[string]string, error) {
	return spec.RevealEnv(env, func(name string) (string, error) { return h.useSecret(ctx, p, SecretName(name)) })
}

// revealFor returns reveal for a principal.
func (h *Hub) revealFor(p auth.Principal) session.Reveal {
	return func(ctx context.Context, env map[string]string) (map[string]string, error) {
		return h.reveal(ctx, p, env)
	}
}

// useSecret returns the value of a secret for a program, or the placeholder of one that is bound.
func (h *Hub) useSecret(ctx context.Context, p auth.Principal, name SecretName) (string, error) {
	a, err := h.authorize(ctx, Request{Principal: p, Operation: policy.SecretUse, Resource: name.resource(h, p),
		Detail: string(name)})
	if err != nil {
		return "", err
	}
	defer a.Close()
	if h.Vault == nil {
		err = fault.New(fault.NotFound, "this server stores no secrets")
		a.outcome = outcomeOf(err)
		return "", err
	}
	value, err := h.Vault.Reveal(ctx, p.ID, string(name))
	if err == nil {
		a.request.Name = string(name) // a secret has this name, so it is no value that was typed by mistake
	}
	a.outcome = outcomeOf(err)
	return value.Reveal(), err
}

// serversUsing returns the names of the third-party servers that refer to a secret.
func (h *Hub) serversUsing(p auth.Principal, name string) []string {
	return append([]string{}, h.Servers.UsesOf(p)[name]...)
}

// SecretName is the name of a stored secret. The name is not in the event, as a user may type
// the value there by mistake.
type SecretName string

// resource implements resourceInput.
func (n SecretName) resource(_ *Hub, p auth.Principal) policy.Resource {
	return policy.Resource{Kind: "secret", ID: string(n), Owner: p.ID}
}

// detail implements detailInput.
func (n SecretName) detail(*Hub, auth.Principal) string { return string(n) }
