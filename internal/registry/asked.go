package registry

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sandlot/internal/fault"
)

const (
	// maxAsked is how many requests to registries one principal causes at once, and askedEvery the time after which one
	// more is possible. What a copy answers is no request, and neither is a page of the copy in the making, which all share.
	maxAsked, askedEvery = 60, time.Second
	// maxAskers bounds the principals whose requests are counted. They are forgotten once they have all of them left.
	maxAskers = 4096
)

// askers bounds the requests to registries that each principal causes, of all registries together. So nobody makes this
// server flood a registry, or be refused there on behalf of the others.
type askers struct {
	mu   sync.Mutex
	left map[string]*rate.Limiter // by the id of the principal
}

type askerKey struct{}

// For returns a context whose requests to registries count as those of a principal, by its id. Without it, requests are the
// server's own, and are not counted.
func For(ctx context.Context, principal string) context.Context {
	return context.WithValue(ctx, askerKey{}, principal)
}

// take counts a request. It returns an error if the principal of ctx has none left.
func (a *askers) take(ctx context.Context) error {
	id, ok := ctx.Value(askerKey{}).(string)
	if !ok {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.left[id]
	if l == nil {
		if len(a.left) >= maxAskers {
			a.forget()
		}
		if l = rate.NewLimiter(rate.Every(askedEvery), maxAsked); len(a.left) < maxAskers {
			a.left[id] = l
		} else {
			return tooMany() // more principals ask at once than are counted
		}
	}
	if !l.Allow() {
		return tooMany()
	}
	return nil
}

// forget removes the principals that have all their requests left. The caller holds mu.
func (a *askers) forget() {
	for id, l := range a.left {
		if l.Tokens() >= maxAsked {
			delete(a.left, id)
		}
	}
}

func tooMany() error {
	return fault.Limit("registry_requests", maxAsked, maxAsked, "you have asked MCP registries too often: what the copy does "+
		"not have can be asked for again in a minute").Advise("Search by words: that reads the copy", "Try again in a minute")
}
