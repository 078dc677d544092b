// Package mcpsession owns what is stored of an MCP session of the stateful protocol: what a client has said once, and
// what the next server must know to go on with the session's id.
package mcpsession

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"sandlot/internal/auth"
)

// Record is a stored MCP session. Rights are not in it: a request has those of its own token.
type Record struct {
	ID        string
	Principal string // id of the principal
	Token     string // id of the token; empty: none
	View      string // of third-party tools, from the address; empty: none
	Initialize
	Used time.Time
}

// Initialize is what a client has said in its session.
type Initialize struct {
	Params      json.RawMessage `json:"params"`               // of initialize: revision, capabilities, client
	Initialized bool            `json:"initialized"`          // it has sent notifications/initialized
	Level       string          `json:"level,omitempty"`      // of log messages; empty: none was set
	URIs        []string        `json:"subscribed,omitempty"` // of the resources that it is subscribed to
}

// The bounds of a record. What is larger is not stored: the session works, and ends with the server.
const (
	maxParams   = 32 << 10 // bytes
	maxURIs     = 256
	maxURIBytes = 64 << 10 // of all URIs together
)

// MaxAge is how long after its last use a session can go on.
const MaxAge = 7 * 24 * time.Hour

// New returns the record of a session that begins; false: it is too large to be stored.
func New(id string, p auth.Principal, view string, params json.RawMessage, now time.Time) (Record, bool) {
	r := Record{ID: id, Principal: p.ID, Token: p.Token, View: view, Initialize: Initialize{Params: params}, Used: now}
	return r, len(params) <= maxParams
}

// BelongsTo reports whether the session goes on for requests of a principal at an address with a view.
func (r Record) BelongsTo(p auth.Principal, view string, now time.Time) bool {
	return r.Principal == p.ID && r.Token == p.Token && r.View == view && now.Sub(r.Used) < MaxAge
}

// Subscribe returns the record with a subscription, or without it. The record itself stays as it is.
func (r Record) Subscribe(uri string, cancel bool) Record {
	r.URIs = slices.DeleteFunc(slices.Clone(r.URIs), func(u string) bool { return u == uri })
	if cancel {
		return r
	}
	size := len(uri)
	for _, u := range r.URIs {
		size += len(u)
	}
	if len(r.URIs) < maxURIs && size <= maxURIBytes {
		r.URIs = append(r.URIs, uri)
	}
	return r
}

// How many sessions are stored at most: of one principal, and of all users of one service.
const maxOfPrincipal, maxOfService = 256, 1024

// Group returns the id under which a principal's sessions are counted, and how many of them are stored.
func (r Record) Group() (id string, limit int) {
	if service, ok := auth.ServiceOf(r.Principal); ok {
		return service, maxOfService
	}
	return r.Principal, maxOfPrincipal
}

// Store stores records.
type Store interface {
	// PutMCPSession stores a record, and removes those of its group that were used longest ago, beyond the limit.
	PutMCPSession(ctx context.Context, r Record) error
	// MCPSession returns a record; false: there is none.
	MCPSession(ctx context.Context, id string) (Record, bool, error)
	RemoveMCPSession(ctx context.Context, id string) error
	// RemoveMCPSessions removes the records of sessions that were last used before a time.
	RemoveMCPSessions(ctx context.Context, before time.Time) error
}
