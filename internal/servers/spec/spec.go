// Package spec says what a third-party MCP server is: what runs or is reached,
// with which values, and what a principal has to agree to before it does. It
// knows nothing of servers that run.
package spec

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

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

// Trusts is what happens to tools that changed: Hold, where nothing is said.
func (c Configured) Trusts() Trust {
	if c.Trust == Warn {
		return Warn
	}
	return Hold
}

// Admits says whether the principal with that id may use the server; nobody, who
// has none, may not.
func (c Configured) Admits(principal string) bool {
	return principal != "" && (len(c.Principals) == 0 || slices.Contains(c.Principals, principal))
}

// Allows says whether the settings let a tool of the server through, by its own name.
func (c Configured) Allows(tool string) bool {
	if slices.Contains(c.DisabledTools, tool) {
		return false
	}
	return len(c.EnabledTools) == 0 || slices.Contains(c.EnabledTools, tool)
}

// Spec is what runs, or is reached, for a user's own server: names of variables
// and headers, and of their values those that refer to stored secrets, as they
// were written. It is what is stored.
type Spec struct {
	Name       string
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
}

// Install is what was installed for a server.
type Install struct {
	Type    string `json:"type"` // npm, pip or git
	Spec    string `json:"spec"`
	Folder  string `json:"folder"` // in the sandbox
	Version string `json:"version,omitempty"`
}

// Configured is a user's server in the form of the settings' ones.
func (s Spec) Configured() Configured {
	return Configured{Name: s.Name, Kind: s.Kind, Command: s.Command, Args: s.Args, URL: s.URL, Where: InSandbox}
}

// Same says whether two run, or reach, the same.
func (s Spec) Same(o Spec) bool {
	return s.Kind == o.Kind && s.Command == o.Command && slices.Equal(s.Args, o.Args) && s.URL == o.URL &&
		s.Cwd == o.Cwd && slices.Equal(s.Path, o.Path)
}

// Covers says whether what s runs is known to be agreed to as o runs it: the same,
// with no variables, headers or stored secrets that s has not.
func (s Spec) Covers(o Spec) bool {
	return o.Same(s) && within(o.EnvKeys, s.EnvKeys) && within(o.HeaderKeys, s.HeaderKeys) &&
		within(o.SecretNames(), s.SecretNames())
}

func within(some, all []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// Runs is what runs, or is reached, as it would be typed.
func (s Spec) Runs() string {
	if s.Kind != Stdio {
		return Exactly([]string{s.URL})
	}
	return Exactly(append([]string{s.Command}, s.Args...))
}

// SetValues takes up what is stored of values: their names, and those that refer
// to stored secrets.
func (s *Spec) SetValues(v Values) {
	s.EnvKeys, s.HeaderKeys = slices.Sorted(maps.Keys(v.Env)), slices.Sorted(maps.Keys(v.Headers))
	s.Env, s.Headers = references(v.Env), references(v.Headers)
}

// Values are those that are stored, and whether these are all.
func (s Spec) Values() Values {
	v := Values{Env: maps.Clone(s.Env), Headers: maps.Clone(s.Headers)}
	env, headers := s.Missing(v)
	v.Known = len(env)+len(headers) == 0
	return v
}

// Missing are the names of variables and headers for which there is no value.
func (s Spec) Missing(v Values) (env, headers []string) {
	lacks := func(keys []string, values map[string]string) (some []string) {
		for _, k := range keys {
			if _, ok := values[k]; !ok {
				some = append(some, k)
			}
		}
		return some
	}
	return lacks(s.EnvKeys, v.Env), lacks(s.HeaderKeys, v.Headers)
}

// SecretNames are the stored secrets that the values refer to, in order.
func (s Spec) SecretNames() []string {
	names := map[string]bool{}
	for _, values := range []map[string]string{s.Env, s.Headers} {
		for _, v := range values {
			for _, m := range reference.FindAllStringSubmatch(v, -1) {
				names[m[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// CallLimit is how long a call may take since the server's last sign of life,
// where limit is how long calls may that no setting bounds.
func (c Configured) CallLimit(limit time.Duration) time.Duration {
	return cmp.Or(max(c.Timeout, 0), limit)
}
