package auth

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sandlot/internal/fault"
)

// Role is what a principal may do beside what is their own.
type Role string

const (
	// Operator may do what the owner of the server may: see and change what all
	// users' sessions may reach, end all sessions, and all that the other roles may.
	Operator Role = "operator"
	// Metrics may read /metrics, which count what all users do.
	Metrics Role = "metrics"
	// Logs may read what the operator's own MCP servers print that run on the machine,
	// and why one of the settings does not start.
	Logs Role = "logs"
)

// known are all roles. A role's place is its bit in Roles: new ones come at the end.
var known = []Role{Operator, Metrics, Logs}

// ParseRole returns the role of that name.
func ParseRole(name string) (Role, error) {
	r := Role(name)
	if !slices.Contains(known, r) {
		return "", fault.New(fault.InvalidParameters, "role %q: must be one of %s", name, NewRoles(known...)).
			With("argument", "role").With("allowed", known)
	}
	return r, nil
}

// Roles is a set of roles; its zero value is empty. Equal sets are ==.
type Roles uint8

// NewRoles returns the set of those roles. One that is not known is not in it.
func NewRoles(list ...Role) (set Roles) {
	for _, r := range list {
		if i := slices.Index(known, r); i >= 0 {
			set |= 1 << i
		}
	}
	return set
}

// StoredRoles reads what String has written. A role that a later version has
// stored gives nothing here.
func StoredRoles(text string) Roles {
	var list []Role
	for name := range strings.SplitSeq(text, ", ") {
		list = append(list, Role(name))
	}
	return NewRoles(list...)
}

// Has says whether the role is in the set; all roles are in one with Operator.
func (s Roles) Has(r Role) bool {
	i := slices.Index(known, r)
	return i >= 0 && (s&1 != 0 || s&(1<<i) != 0)
}

// List returns the roles by name, as they were given.
func (s Roles) List() (list []Role) {
	for i, r := range known {
		if s&(1<<i) != 0 {
			list = append(list, r)
		}
	}
	return list
}

// String returns the names, with ", " between them; empty for none.
func (s Roles) String() string {
	var names []string
	for _, r := range s.List() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

// MarshalJSON implements json.Marshaler: a list of names.
func (s Roles) MarshalJSON() ([]byte, error) { return json.Marshal(append([]Role{}, s.List()...)) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *Roles) UnmarshalJSON(text []byte) error {
	var list []Role
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	*s = NewRoles(list...)
	return nil
}

// Require returns a fault when p does not have the role; what says what may not be
// done: the end of a sentence after "you may not".
func (p Principal) Require(r Role, what string) error {
	if p.Has(r) {
		return nil
	}
	f := fault.New(fault.Forbidden, "you may not %s: that needs the role %s", what, r).With("role", string(r))
	f.Advice = []string{
		fmt.Sprintf("The operator makes a token that has it: sandlot token create --user NAME --role %s", r),
		"On the server's machine, who can open the socket api.sock in the state folder needs no token",
	}
	return f
}
