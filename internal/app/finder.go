package app

import (
	"context"

	"sandlot/internal/auth"
	"sandlot/internal/finder"
	"sandlot/internal/toolcall"
)

// codeFinder finds tools for code in sandboxes, as search_tools does for clients.
type codeFinder struct {
	*finder.Finder
	toolcall.Matching // describes tools by their servers' own names
}

// Search implements toolcall.Finder.
func (f codeFinder) Search(ctx context.Context, p auth.Principal, q toolcall.Search) (any, error) {
	return f.Finder.Search(ctx, p, q.Query, q.Server, q.Limit)
}

// Describe implements toolcall.Finder.
func (f codeFinder) Describe(ctx context.Context, p auth.Principal, q toolcall.Describe) (any, error) {
	return f.Matching.Describe(ctx, p, q)
}
