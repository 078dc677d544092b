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
	"regexp"
	"time"

	"sandlot/internal/fault"
)

// Record is what is stored of a connection: names of variables and headers, and
// of their values those that refer to stored secrets, as they were written.
type Record struct {
	ID         string // short; for a configured server its name
	Owner      string // the principal's id
	Name       string
	Configured bool // the settings say what runs; the rest is what it offered
	Kind       Kind
	Command    string
	Args       []string
	Cwd        string   // empty: /workspace
	Path       []string // folders that stand first in PATH
	URL        string
	EnvKeys    []string
	HeaderKeys []string
	Env        map[string]string // the values that refer to secrets
	Headers    map[string]string // and of headers
	Install    *Install          // how it came here
	Off        bool              // disconnected: it is in the list, and nothing more
	Older      bool              // it spoke the older era the last time
	Asks       bool              // it has asked clients in the middle of a call
	Created    time.Time
	Updated    time.Time
	Catalog    Catalog
}

// Install is what was installed for a connection.
type Install struct {
	Type    string `json:"type"` // npm, pip or git
	Spec    string `json:"spec"`
	Folder  string `json:"folder"` // in the sandbox
	Version string `json:"version,omitempty"`
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

// State is where a connection is.
type State string

const (
	Disabled      State = "disabled"
	Installing    State = "installing"
	Starting      State = "starting"
	Connected     State = "connected"
	Idle          State = "idle"           // stopped; it starts when it is used
	Backoff       State = "backoff"        // it died, and starts again after a pause
	Failed        State = "error"          // it starts when it is told to
	NeedsEnv      State = "needs_env"      // values were not stored, and have to be given again, or a secret is missing
	NeedsAuth     State = "needs auth"     // its user has to log in
	NeedsApproval State = "needs_approval" // connected, but some of its tools are held back
)

// Limits of what one principal, and one server, may have.
const (
	maxConnections = 100
	maxName        = 64
	maxArgs        = 200
	maxArg         = 32 << 10
	maxEnv         = 50
	maxEnvValue    = 32 << 10
	maxDefinitions = 1000 // of each kind, of one server
	logBytes       = 64 << 10
)

var (
	nameForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}$`)
	envForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
)

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

// Ask is what a principal wants to be connected.
type Ask struct {
	Name    string
	Kind    Kind
	Command string
	Args    []string
	Cwd     string
	Path    []string
	URL     string
	Env     map[string]string
	Headers map[string]string
	Install *Install
	Agree   Agree
}

// check says what is wrong with it.
func (a *Ask) check() error {
	wrong := func(argument, format string, args ...any) error {
		return fault.New(fault.InvalidParameters, format, args...).With("argument", argument)
	}
	if !nameForm.MatchString(a.Name) {
		return wrong("name", "name %q: a name has 1 to %d letters, digits, spaces and . _ @ / -, and begins with a letter or digit", clip(a.Name), maxName)
	}
	if (a.Command == "") == (a.URL == "") {
		return wrong("command", "give either a command, which runs in your sandbox, or a url, which is connected to")
	}
	switch {
	case a.Kind == "" && a.URL != "":
		a.Kind = HTTP
	case a.Kind == "":
		a.Kind = Stdio
	case a.Kind == Stdio != (a.Command != ""):
		return wrong("transport", "transport %q goes with %s", a.Kind, map[bool]string{true: "a command", false: "a url"}[a.Kind == Stdio])
	}
	if len(a.Args) > maxArgs {
		return wrong("args", "there are %d args; at most %d are taken", len(a.Args), maxArgs)
	}
	for _, s := range append([]string{a.Command, a.Cwd, a.URL}, a.Args...) {
		if len(s) > maxArg || hasNUL(s) {
			return wrong("args", "command, cwd, url and each of args have at most %d bytes, and no NUL", maxArg)
		}
	}
	if a.Kind != Stdio {
		if err := checkURL(a.URL); err != nil {
			return err
		}
	}
	if len(a.Env) > maxEnv || len(a.Headers) > maxEnv {
		return wrong("env", "at most %d variables and %d headers can be given", maxEnv, maxEnv)
	}
	for k, v := range a.Env {
		if !envForm.MatchString(k) {
			return wrong("env", "env name %q: a name has letters, digits and _, and does not begin with a digit", clip(k))
		}
		if len(v) > maxEnvValue || hasNUL(v) {
			return wrong("env", "the value of env %s has over %d bytes, or a NUL in it", k, maxEnvValue)
		}
		if err := checkReferences("env", k, v); err != nil {
			return err
		}
	}
	for k, v := range a.Headers {
		if !headerForm.MatchString(k) || len(v) > maxEnvValue || hasControl(v) {
			return wrong("headers", "the header %q, or its value, is none that HTTP knows", clip(k))
		}
		if err := checkReferences("headers", k, v); err != nil {
			return err
		}
	}
	return nil
}

// Info is what a principal may know of one of their connections.
type Info struct {
	ID         string          `json:"id"`
	Name       string          `json:"name"`
	Configured bool            `json:"configured"`
	Kind       Kind            `json:"transport"`
	Where      Where           `json:"where"`
	Command    string          `json:"command,omitempty"`
	Args       []string        `json:"args,omitempty"`
	Cwd        string          `json:"cwd,omitempty"`
	URL        string          `json:"url,omitempty"`
	EnvKeys    []string        `json:"envKeys,omitempty"`
	Secrets    []string        `json:"secrets,omitempty"` // stored ones that it refers to
	Created    time.Time       `json:"createdAt"`
	Updated    time.Time       `json:"updatedAt"`
	State      State           `json:"state"`
	LastError  string          `json:"lastError,omitempty"`
	AuthURL    string          `json:"authUrl,omitempty"` // where its user logs in
	Version    string          `json:"protocolVersion,omitempty"`
	Server     json.RawMessage `json:"serverInfo,omitempty"`
	Tools      []Named         `json:"-"`
	Held       []Named         `json:"-"` // tools that are held back
	Prompts    int             `json:"-"`
	Resources  int             `json:"-"`
	Install    *Install        `json:"install,omitempty"`
	Restarts   int             `json:"restarts"`
	Calls      int             `json:"calls"`
	P50        time.Duration   `json:"-"` // of its last calls
	P95        time.Duration   `json:"-"`
	Pid        int             `json:"-"`
}

// Named is a tool under its two names.
type Named struct {
	Exposed, Remote string
	Why             string // why it is held back
}
