package tool

import (
	"context"

	"sandlot/internal/auth"
)

// Detail is what policy has to know of a call.
type Detail struct {
	Text string // for the patterns of rules
	// Session is the session that the call is for: an id, "home", or "new" for one that it creates; empty: none.
	Session string
	// Server is the name of the third-party server that the call is for; empty: none.
	Server string
}

// Trail has what a call asked policy.
type Trail interface {
	// Recheck asks policy again, for a principal who is to get the result of the call. It asks no person.
	Recheck(ctx context.Context, p auth.Principal) error
	// Size returns about how many bytes it has.
	Size() int
}
