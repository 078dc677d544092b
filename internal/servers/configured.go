package servers

import "time"

// Kind is how a server is spoken to.
type Kind string

const (
	Stdio Kind = "stdio" // a program; messages are lines on its standard input and output
	HTTP  Kind = "http"  // Streamable HTTP
	SSE   Kind = "sse"   // the older HTTP+SSE
)

// Where a program runs.
type Where string

const (
	InSandbox Where = "sandbox" // in the home of the principal who uses it
	OnHost    Where = "host"    // on the server's machine, unconfined: the operator's own choice
)

// Trust says what happens to a tool whose definition changed after it was approved.
type Trust string

const (
	Hold Trust = "hold" // it is held back until it is approved again
	Warn Trust = "warn" // it is there, and those who look are told
)

// Configured is a server that the operator's settings name.
type Configured struct {
	Name    string
	Kind    Kind
	Command string
	Args    []string
	Env     map[string]string
	URL     string
	Headers map[string]string
	// Timeout bounds connecting, and each call from its last sign of life.
	Timeout  time.Duration
	Disabled bool
	// DisabledTools are left out, and EnabledTools, if there are any, are all
	// that is left: names as the server gives them.
	DisabledTools, EnabledTools []string
	OAuth                       OAuth
	Where                       Where
	// User of the machine as whom a program runs that is OnHost; empty: the
	// server's own, who must not be root then.
	User string
	// Prefix stands before the names of its tools, with a "_" between; nil: the
	// form ext_{name}_{tool}; empty: the tools' own names.
	Prefix *string
	// Principals may use it, by their ids; empty: everyone.
	Principals []string
	Trust      Trust
	// From says where the setting stands, for people.
	From string
	// Broken says why it cannot be used, when its settings cannot be read; the
	// others can.
	Broken string
}

// OAuth is how Sandlot is known to a server that wants users to log in. Issuer is
// the authorization server at which that is so; without it a secret is never sent.
type OAuth struct {
	ClientID, ClientSecret, Issuer string
}
