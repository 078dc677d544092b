package hub

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session/property"
)

// maxTokens is how many tokens a user may have who makes them without the operator.
const maxTokens = 100

// TokenOwner is the id or the name of the user whose tokens are read; empty: the one who asks. Only operators may name
// another.
type TokenOwner string

// resource implements resourceInput.
func (n TokenOwner) resource(_ *Hub, p auth.Principal) policy.Resource {
	return ofPrincipal(p, string(n))
}

// TokenList is the tokens of a user, without their values.
type TokenList struct {
	Tokens []TokenRow `json:"tokens"`
}

// TokenRow describes a token, without its value.
type TokenRow struct {
	auth.Token
	// Current: the request has this token.
	Current bool `json:"current,omitempty" jsonschema:"The request has this token."`
}

func (h *Hub) listTokens(ctx context.Context, p auth.Principal, n TokenOwner) (TokenList, error) {
	list := TokenList{Tokens: []TokenRow{}}
	all, err := h.tokensOf(ctx, ownerID(p, string(n)))
	for _, t := range all {
		list.Tokens = append(list.Tokens, TokenRow{t, t.ID == p.Token})
	}
	return list, err
}

// tokensOf returns the tokens of a principal.
func (h *Hub) tokensOf(ctx context.Context, owner string) ([]auth.Token, error) {
	if h.Tokens == nil {
		return nil, nil
	}
	all, err := h.Tokens.Tokens(ctx)
	return slices.DeleteFunc(all, func(t auth.Token) bool { return t.Owner != owner }), err
}

// NewToken is a token to be made. It never allows more than the one with which it is made.
type NewToken struct {
	User    string      `json:"user,omitempty" jsonschema:"Whose token it is; for operators. Default: yours."`
	Service bool        `json:"service,omitempty" jsonschema:"It is a service's; for operators. Default: as your token."`
	ActsFor bool        `json:"acts_for,omitempty" jsonschema:"The service names its user for each request; for operators."`
	Roles   []auth.Role `json:"roles,omitempty" jsonschema:"Roles, of those that your token has."`
	Scope   []string    `json:"scope,omitempty" jsonschema:"The only operations it is for, such as code.execute or file.*."`
	Expires string      `json:"expires_in,omitempty" jsonschema:"When it ends, from now: 12h or 90d. Default: as your token."`
}

// resource implements resourceInput.
func (n NewToken) resource(_ *Hub, p auth.Principal) policy.Resource { return ofPrincipal(p, n.User) }

// MadeToken is a new token. Its value is in no other answer.
type MadeToken struct {
	auth.Token
	Value string `json:"token" jsonschema:"Its value, which is shown this once."`
}

// createToken makes a token that allows at most what the request's token allows, for at most as long.
func (h *Hub) createToken(ctx context.Context, p auth.Principal, in NewToken) (MadeToken, error) {
	owner, ok := auth.FromID(ownerID(p, in.User))
	_, isUsers := auth.ServiceOf(owner.ID)
	if h.Tokens == nil || !ok || isUsers || owner != auth.User(owner.Name, false) {
		return MadeToken{}, fault.Argument("user", "%s cannot have tokens: only users with a name can",
			fault.Clip(ownerID(p, in.User))).
			Advise("The operator makes tokens on the server's machine: sandlot token create --user NAME")
	}
	n := auth.NewToken{User: owner.Name, Service: in.Service || p.Service && owner.ID == p.ID, ActsFor: in.ActsFor,
		Roles: in.Roles, MadeBy: p.Token}
	if ((in.Service && !p.Service) || in.ActsFor) && !p.HasRole(auth.Operator) {
		return MadeToken{}, fault.New(fault.Forbidden, "only an operator makes tokens of services")
	}
	var err error
	if n.Scope, err = scopeWithin(p, in.Scope); err != nil {
		return MadeToken{}, err
	}
	if err := h.rolesWithin(p, owner.ID, n); err != nil {
		return MadeToken{}, err
	}
	h.tokenMu.Lock()
	defer h.tokenMu.Unlock()
	if n.Expires, err = h.lifeWithin(ctx, p, in.Expires); err != nil {
		return MadeToken{}, err
	}
	has, err := h.tokensOf(ctx, owner.ID)
	if err != nil {
		return MadeToken{}, err
	}
	if valid := len(validTokens(has)); valid >= maxTokens && !p.HasRole(auth.Operator) {
		return MadeToken{}, fault.Limit("tokens", valid, maxTokens, "you have %d tokens, and %d are allowed: revoke "+
			"one first", valid, maxTokens)
	}
	t, value, err := auth.IssueToken(ctx, h.Tokens, n)
	if err != nil {
		return MadeToken{}, err
	}
	h.Log.InfoContext(ctx, "a token was made", "token", t.ID, "principal", t.Owner, "by", p.ID, "made_by", t.MadeBy,
		"roles", t.Roles.String(), "scope", string(t.Scope))
	for _, old := range has { // after the new one is there: without any token, a server on loopback needs none
		if !old.Valid(time.Now()) {
			if err := h.Tokens.RemoveToken(ctx, old.ID); err != nil && !errors.Is(err, auth.ErrNoToken) {
				h.Log.WarnContext(ctx, "could not remove an expired token", "token", old.ID, "error", err)
			}
		}
	}
	return MadeToken{t, value.Reveal()}, nil
}

// validTokens returns the tokens that have not expired.
func validTokens(all []auth.Token) []auth.Token {
	now := time.Now()
	return slices.DeleteFunc(slices.Clone(all), func(t auth.Token) bool { return !t.Valid(now) })
}

// rolesWithin returns a fault if a principal may not make a token: it has a role that the principal's own one does not
// have, or it would escape a rule about the principal's own roles.
func (h *Hub) rolesWithin(p auth.Principal, owner string, n auth.NewToken) error {
	for _, r := range n.Roles {
		if _, err := auth.ParseRole(string(r)); err != nil {
			return err
		}
		if err := p.Require(r, "make a token with the role "+string(r)); err != nil {
			return err
		}
	}
	if owner != p.ID {
		return nil
	}
	child := p
	child.Service, child.Roles, child.Scope = n.Service, auth.NewRoles(n.Roles...), n.Scope
	if r := h.Rules.Load().Evaded(p, child); r != nil {
		return fault.New(fault.Forbidden, "a rule about a role of your token asks or denies: a token that you make has to "+
			"have the role, too, or a scope without what the rule is about (%s)", r.Anonymous())
	}
	return nil
}

// scopeWithin returns the scope of a new token: as wanted, or else that of the principal's own token. It never has an
// operation that the principal's own token does not have, of this version or a later one.
func scopeWithin(p auth.Principal, wanted []string) (auth.Scope, error) {
	if len(wanted) == 0 {
		return p.Scope, nil
	}
	scope, err := policy.ParseScope(wanted)
	if err != nil {
		return "", err
	}
	for _, o := range policy.Operations() {
		if scope.Allows(o) && !policy.InScope(p, policy.Operation(o)) {
			return "", fault.New(fault.Forbidden, "%s is not in the scope of your token, and so a token that you make "+
				"cannot have it", o).With("operation", o).With("scope", string(p.Scope))
		}
	}
	return policy.Narrow(p.Scope, scope), nil
}

// lifeWithin returns how long a new token is valid: as wanted, and at most as long as the principal's own one; 0: without
// end. The caller holds tokenMu.
func (h *Hub) lifeWithin(ctx context.Context, p auth.Principal, wanted string) (time.Duration, error) {
	var life time.Duration
	if wanted != "" {
		var ok bool
		if life, ok = property.Duration(wanted); !ok || life < time.Second {
			return 0, fault.Argument("expires_in", "expires_in is %q: it has to be a duration such as 12h or 90d, of a "+
				"second at least", fault.Clip(wanted))
		}
	}
	end := p.Expires
	if p.Token != "" && end.IsZero() {
		all, err := h.Tokens.Tokens(ctx)
		if err != nil {
			return 0, err
		}
		i := slices.IndexFunc(all, func(t auth.Token) bool { return t.ID == p.Token })
		if i < 0 {
			return 0, auth.ErrEnded
		}
		if all[i].Expires != nil {
			end = *all[i].Expires
		}
	}
	if end.IsZero() {
		return life, nil
	}
	left := time.Until(end)
	switch {
	case left <= 0:
		return 0, auth.ErrEnded
	case life > left:
		return 0, fault.New(fault.Forbidden, "your own token ends at %s: one that you make cannot be valid for longer",
			end.Format(time.RFC3339))
	case life == 0:
		return left, nil
	}
	return life, nil
}

// TokenID is the id of a token.
type TokenID string

// resource implements resourceInput.
func (id TokenID) resource(h *Hub, _ auth.Principal) policy.Resource {
	r := policy.Resource{Kind: "token", ID: string(id)}
	if h.Tokens == nil {
		return r
	}
	all, err := h.Tokens.Tokens(context.Background())
	if err != nil {
		r.Owner = auth.User("", false).ID // nobody's, so that nobody but an operator may do it
	}
	for _, t := range all {
		if t.ID == string(id) {
			r.Owner = t.Owner
		}
	}
	return r
}

// revokeToken revokes a token, and what its user has made with it. Only operators revoke the last one: without any token,
// a server on loopback needs none.
func (h *Hub) revokeToken(ctx context.Context, p auth.Principal, id TokenID) (None, error) {
	if h.Tokens == nil {
		return None{}, fault.New(fault.NotFound, "there is no such token")
	}
	h.tokenMu.Lock()
	defer h.tokenMu.Unlock()
	all, err := h.Tokens.Tokens(ctx)
	if err != nil {
		return None{}, err
	}
	if n := len(auth.RevokedWith(all, string(id))); n > 0 && n == len(all) && !p.HasRole(auth.Operator) {
		return None{}, fault.New(fault.Forbidden, "this server would have no token left: only an operator revokes the last").
			Advise("On the server's machine: sandlot token revoke " + string(id))
	}
	err = auth.Revoke(ctx, h.Tokens, string(id))
	if errors.Is(err, auth.ErrNoToken) {
		return None{}, fault.New(fault.NotFound, "there is no such token")
	}
	if err == nil {
		h.Log.InfoContext(ctx, "a token was revoked", "token", string(id), "by", p.ID)
	}
	return None{}, err
}

// UserList is all users who have tokens or sessions.
type UserList struct {
	Users []UserRow `json:"users"`
}

// UserRow is a user, and what there is of theirs.
type UserRow struct {
	Principal string     `json:"principal"`
	Name      string     `json:"name"`
	Tokens    []TokenRow `json:"tokens"`
	Sessions  int        `json:"sessions" jsonschema:"How many sessions the user has, asleep ones too."`
}

// listUsers lists the users, sorted by their ids.
func (h *Hub) listUsers(ctx context.Context, p auth.Principal, _ None) (UserList, error) {
	users := map[string]*UserRow{}
	row := func(id string) *UserRow {
		u := users[id]
		if u == nil {
			who, _ := auth.FromID(id)
			u = &UserRow{Principal: id, Name: who.Name, Tokens: []TokenRow{}}
			users[id] = u
		}
		return u
	}
	if h.Tokens != nil {
		all, err := h.Tokens.Tokens(ctx)
		if err != nil {
			return UserList{}, err
		}
		for _, t := range all {
			u := row(t.Owner)
			u.Tokens = append(u.Tokens, TokenRow{t, t.ID == p.Token})
		}
	}
	for owner, n := range h.Sessions.CountByOwner() {
		row(owner).Sessions = n
	}
	list := UserList{Users: []UserRow{}}
	for _, u := range users {
		list.Users = append(list.Users, *u)
	}
	slices.SortFunc(list.Users, func(a, b UserRow) int { return cmp.Compare(a.Principal, b.Principal) })
	return list, nil
}
