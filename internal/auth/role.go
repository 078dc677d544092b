package auth

import (
	"encoding/json"
	"slices"
	"strings"

	"sandlot/internal/fault"
)

// Role is a right beyond the principal's own sessions and data.
type Role string

const (
	// Operator has the rights of the server's owner: to see and change the network access of all users'
	// sessions, to end all sessions, and those of all other roles.
	Operator Role = "operator"
	// Metrics may read /metrics, which count the calls of all users.
	Metrics Role = "metrics"
	// Logs may read the logs of the operator's MCP servers that run on the machine, and why a server of
	// the settings does not start.
	Logs Role = "logs"
)

// allRoles are all roles. A role's index is its bit in Roles: add new ones at the end.
var allRoles = []Role{Operator, Metrics, Logs}

// ParseRole returns the role of that name.
func ParseRole(name string) (Role, error) {
	r := Role(name)
	if !slices.Contains(allRoles, r) {
		return "", fault.Argument("role", "role %q: must be one of %s", name, NewRoles(allRoles...)).
			With("allowed", allRoles)
	}
	return r, nil
}

// Roles is a set of roles; its zero value is empty. Equal sets are ==.
type Roles uint8

// NewRoles returns a set of roles. It leaves out unknown ones.
func NewRoles(list ...Role) (set Roles) {
	for _, r := range list {
		if i := slices.Index(allRoles, r); i >= 0 {
			set |= 1 << i
		}
	}
	return set
}

// ParseRoles parses the result of String. It leaves out unknown roles, which a later version may have
// stored.
func ParseRoles(text string) Roles {
	var list []Role
	for name := range strings.SplitSeq(text, ", ") {
		list = append(list, Role(name))
	}
	return NewRoles(list...)
}

// Has reports whether the set has the role. A set with Operator has all roles.
func (s Roles) Has(r Role) bool {
	i := slices.Index(allRoles, r)
	return i >= 0 && (s&1 != 0 || s&(1<<i) != 0)
}

// List returns the roles in the set, without those that only Operator implies.
func (s Roles) List() (list []Role) {
	for i, r := range allRoles {
		if s&(1<<i) != 0 {
			list = append(list, r)
		}
	}
	return list
}

// String returns the names, separated by ", ".
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
