// Package servers owns third-party MCP servers: which ones a principal has, where they run, when they
// start and end, and under which names clients see their tools, prompts and resources. Their messages are
// hostile: they are bounded and made safe before a client gets them, and a tool whose definition changed
// is held back until its user approves it.
package servers

import (
	"context"
	"encoding/json"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Record is the stored part of a server.
type Record struct {
	ID         string // short; for a configured server its name
	Owner      string // the principal's id
	Configured bool   // it is a server of the operator's settings, which define it; Spec has only its name
	spec.Spec
	Off bool // its user has disconnected it: it is listed, and not started
	// Stateful: it spoke a stateful revision the last time. Elicits: it has asked its client's user
	// for input in the middle of a call. The names in JSON are older.
	Stateful         bool       `json:"Older"`
	Elicits          bool       `json:"Asks"`
	Scope            auth.Scope `json:",omitempty"` // of the tokens that have defined it
	Created, Updated time.Time
	Catalog          catalog.Catalog
}

// Store stores records.
type Store interface {
	PutConnection(ctx context.Context, r Record) error
	// Connections returns the records of one owner.
	Connections(ctx context.Context, owner string) ([]Record, error)
	// Connected returns owner and id of each record that is not Configured and not Off.
	Connected(ctx context.Context) ([][2]string, error)
	RemoveConnection(ctx context.Context, owner, id string) error
}

// maxConnections is how many servers one principal may add.
const maxConnections = 100

// Info is the part of a server that its owner may see.
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
	Secrets    []string    `json:"secrets,omitempty"` // names of the stored secrets that it refers to
	Created    time.Time   `json:"createdAt"`
	Updated    time.Time   `json:"updatedAt"`
	State      state.State `json:"state"`
	LastError  string      `json:"lastError,omitempty"`
	AuthURL    string      `json:"authUrl,omitempty"` // where its user has to log in
	Running
	Offers
	Install *spec.Install `json:"install,omitempty"`
	Usage
}

// Running has what a running server said of itself in its handshake.
type Running struct {
	Version string          `json:"protocolVersion,omitempty"`
	Server  json.RawMessage `json:"serverInfo,omitempty"`
}

// Offers has what a server offers.
type Offers struct {
	Tools, Held        []Named `json:"-"` // Held are held back until their user approves them
	Prompts, Resources int     `json:"-"` // how many; resources with templates
	LeftOut            int     `json:"-"` // how many definitions are not offered, as clients could not read them
	// Omissions say which definitions, and which parts of others, are not offered: the first ones.
	Omissions []string `json:"-"`
}

// Usage counts what a server has done since the Sandlot server started.
type Usage struct {
	Restarts int           `json:"restarts"`
	Calls    int           `json:"calls"`
	P50, P95 time.Duration `json:"-"` // the median and the 95th percentile of the durations of its last calls
}

// Named has the names of a tool: the one that clients use, and the server's own.
type Named struct {
	Exposed, Remote string
	Why             string // why it is held back; empty: it is not
}
