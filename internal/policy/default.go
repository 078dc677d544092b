package policy

import (
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// builtInDefault is the place of the rules that Sandlot has of its own, behind those of the operator.
const builtInDefault = "built-in default"

// DenyServices returns a rule of Sandlot's own: it denies an operation to services, and to their users only with
// usersToo. It decides nothing about what a rule of the operator decides.
func DenyServices(o Operation, usersToo bool) Rule {
	return Rule{Effect: Refuse, Text: "deny service " + string(o), Place: builtInDefault, builtIn: true,
		byToken: true, operation: string(o),
		who: func(p auth.Principal, _ Operation) bool { return p.Service || usersToo && p.OfService() }}
}

// Opens returns the operator's rule that allows what a built-in default denies; empty: the rule is the
// operator's own.
func (r *Rule) Opens(q Question) string {
	if !r.builtIn {
		return ""
	}
	id := q.Principal.ID
	if service, ok := auth.ServiceOf(id); ok {
		id = service
	}
	who := "service"
	if service, ok := auth.FromID(id); ok {
		who = service.Name
	}
	line := "allow " + who + " " + string(q.Operation)
	if details[q.Operation] == plainText && q.Detail != "" && !strings.ContainsAny(q.Detail, "*? \t") {
		line += " " + q.Detail
	}
	return line
}

// refusedByDefault returns the fault of an operation that a built-in default denies. Unlike a rule of the operator,
// it is the same everywhere, so the fault says what it is.
func refusedByDefault(r *Rule, q Question) *fault.Error {
	return fault.New(fault.Forbidden, "a built-in default of Sandlot denies this to a service (%s), and no rule of "+
		"this server's operator allows it", q.Operation).With("operation", string(q.Operation)).
		With("opened_by", r.Opens(q)).
		Advise("The operator allows it with this line in sandlot.yaml, under policy: and there under rules: - " +
			r.Opens(q))
}
