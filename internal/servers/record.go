// Package servers owns third-party MCP servers: which ones a principal has,
// where they run, when they start and end, and what of theirs is offered under
// which name. What comes from them is hostile: it is bounded and made safe
// before anyone sees it, and a definition that changes is held back until it
// is approved.
package servers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"time"

	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Record is what is stored of a server.
type Record struct {
	ID         string // short; for a configured server its name
	Owner      string // the principal's id
	Configured bool   // the settings say what runs; the rest is what it offered
	spec.Spec
	Off bool // disconnected: it is in the list, and nothing more
	// It spoke a stateful revision the last time, and it has elicited in the middle of a
	// call: under the names that they are stored with.
	Stateful bool `json:"Older"`
	Elicits  bool `json:"Asks"`
	Created  time.Time
	Updated  time.Time
	Catalog  catalog.Catalog
}

// Store keeps records.
type Store interface {
	PutConnection(ctx context.Context, r Record) error
	// Connections returns those of one owner.
	Connections(ctx context.Context, owner string) ([]Record, error)
	// Connected lists owner and id of all that users have registered and not
	// disconnected.
	Connected(ctx context.Context) ([][2]string, error)
	RemoveConnection(ctx context.Context, owner, id string) error
}

// maxConnections bounds the servers that one principal registers.
const maxConnections = 100

// newID returns an id of 6 letters and digits, for names of tools that are read
// by models and people. It is no secret: it is looked up among its owner's own.
func newID() string {
	const letters = "abcdefghijkmnpqrstuvwxyz23456789"
	b := make([]byte, 6)
	rand.Read(b)
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b)
}

// Info is what a principal may know of one of their connections.
type Info struct {
	ID         string      `json:"id"`
	Name       string      `json:"name"`
	Configured bool        `json:"configured"`
	Kind       spec.Kind   `json:"transport"`
	Where      spec.Where  `json:"where"`
	Command    string      `json:"command,omitempty"`
	Args       []string    `json:"args,omitempty"`
	Cwd        string      `json:"cwd,omitempty"`
	URL        string      `json:"url,omitempty"`
	EnvKeys    []string    `json:"envKeys,omitempty"`
	Secrets    []string    `json:"secrets,omitempty"` // stored ones that it refers to
	Created    time.Time   `json:"createdAt"`
	Updated    time.Time   `json:"updatedAt"`
	State      state.State `json:"state"`
	LastError  string      `json:"lastError,omitempty"`
	AuthURL    string      `json:"authUrl,omitempty"` // where its user logs in
	Running
	Offers
	Install *spec.Install `json:"install,omitempty"`
	Usage
}

// Running is what a server says of itself while it runs.
type Running struct {
	Version string          `json:"protocolVersion,omitempty"`
	Server  json.RawMessage `json:"serverInfo,omitempty"`
}

// Offers is what a server offers.
type Offers struct {
	Tools     []Named `json:"-"`
	Held      []Named `json:"-"` // tools that are held back
	Prompts   int     `json:"-"`
	Resources int     `json:"-"` // with templates
}

// Usage is how a server was used.
type Usage struct {
	Restarts int           `json:"restarts"`
	Calls    int           `json:"calls"`
	P50      time.Duration `json:"-"` // of its last calls
	P95      time.Duration `json:"-"`
}

// Named is a tool under its two names.
type Named struct {
	Exposed, Remote string
	Why             string // why it is held back
}
