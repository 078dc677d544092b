// Package spec describes third-party MCP servers: the program or URL, its variables and
// headers, and the change that a principal has to consent to. It knows nothing about
// running servers.
package spec

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Kind is the transport of a server.
type Kind string

const (
	Stdio Kind = "stdio" // a program; messages are lines on its standard input and output
	HTTP  Kind = "http"  // Streamable HTTP
	SSE   Kind = "sse"   // the older HTTP+SSE
)

// Where says where a program runs.
type Where string

const (
	InSandbox Where = "sandbox" // in a sandbox of the principal who uses it
	OnHost    Where = "host"    // on the host, without a sandbox; only the operator's settings can say so
)

// Trust says what happens to a tool whose definition changed after it was approved.
type Trust string

const (
	TrustHold Trust = "hold" // the tool is not offered until it is approved again
	TrustWarn Trust = "warn" // the tool is offered, and its description says that it has changed
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
	// Timeout bounds connecting, and each call from its start or last progress.
	Timeout  time.Duration
	Disabled bool
	// DisabledTools are not offered; EnabledTools, if there are any, are the only ones
	// that are. Both have the server's names.
	DisabledTools, EnabledTools []string
	OAuth                       OAuth
	Where                       Where
	// User is the user of the host as whom a program with Where OnHost runs; empty:
	// the server's own user, who must not be root then.
	User string
	// Prefix and a "_" precede the names of its tools; nil: they are
	// ext_{name}_{tool}; empty: they have no prefix.
	Prefix *string
	// Principals are the ids of those who may use the server; empty: everyone may.
	Principals []string
	Trust      Trust
	// Source is the file that has the settings, for messages.
	Source string
	// Invalid says why the settings of this server are invalid; empty: they are valid.
	// Invalid settings of one server do not affect the others.
	Invalid string
}

// OAuth is Sandlot's client registration for a server at which users log in. Issuer is
// the authorization server that knows the client; without it no secret is ever sent.
type OAuth struct {
	ClientID, ClientSecret, Issuer string
}

// TrustMode returns what happens to tools that changed; the default is Hold.
func (c Configured) TrustMode() Trust {
	if c.Trust == TrustWarn {
		return TrustWarn
	}
	return TrustHold
}

// AllowsPrincipal reports whether the principal with that id may use the server. An empty id may
// not.
func (c Configured) AllowsPrincipal(principal string) bool {
	return principal != "" && (len(c.Principals) == 0 || slices.Contains(c.Principals, principal))
}

// AllowsTool reports whether the settings offer a tool of the server; tool is the server's name.
func (c Configured) AllowsTool(tool string) bool {
	if slices.Contains(c.DisabledTools, tool) {
		return false
	}
	return len(c.EnabledTools) == 0 || slices.Contains(c.EnabledTools, tool)
}

// Spec is what is stored about a server that a user has added: its program or URL, the
// names of its variables and headers, and the values that refer to stored
// secrets, unexpanded. Other values are not stored.
type Spec struct {
	Name       string
	Kind       Kind
	Command    string
	Args       []string
	Cwd        string   // empty: /workspace
	Path       []string // folders that precede PATH
	URL        string
	EnvKeys    []string
	HeaderKeys []string
	Env        map[string]string // the values that refer to stored secrets
	Headers    map[string]string // the same for headers
	Install    *Install          // what was installed for it; nil: nothing
}

// Install is what was installed for a server.
type Install struct {
	Type    string `json:"type"` // npm, pip or git
	Spec    string `json:"spec"`
	Folder  string `json:"folder"` // in the sandbox
	Version string `json:"version,omitempty"`
	// SHA256 is the digest that the package's file had to have; empty: any.
	SHA256 string `json:"sha256,omitempty"`
}

// Configured returns a user's server as if the operator's settings named it.
func (s Spec) Configured() Configured {
	return Configured{Name: s.Name, Kind: s.Kind, Command: s.Command, Args: s.Args, URL: s.URL, Where: InSandbox}
}

// SameTarget reports whether two servers run the same program, or have the same URL.
func (s Spec) SameTarget(o Spec) bool {
	return s.Kind == o.Kind && s.Command == o.Command && slices.Equal(s.Args, o.Args) && s.URL == o.URL &&
		s.Cwd == o.Cwd && slices.Equal(s.Path, o.Path)
}

// Covers reports whether consent to s includes consent to o: o is the same server, with
// no variable, header or stored secret that s does not have.
func (s Spec) Covers(o Spec) bool {
	return o.SameTarget(s) && isSubset(o.EnvKeys, s.EnvKeys) && isSubset(o.HeaderKeys, s.HeaderKeys) &&
		isSubset(o.SecretNames(), s.SecretNames())
}

func isSubset(some, all []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// Target returns the command as one types it in a shell, or the URL.
func (s Spec) Target() string {
	if s.Kind != Stdio {
		return ExactCommandLine([]string{s.URL})
	}
	return ExactCommandLine(append([]string{s.Command}, s.Args...))
}

// SetValues sets what is stored of values: their names, and the values that refer to
// stored secrets.
func (s *Spec) SetValues(v Values) {
	s.EnvKeys, s.HeaderKeys = slices.Sorted(maps.Keys(v.Env)), slices.Sorted(maps.Keys(v.Headers))
	s.Env, s.Headers = withReferences(v.Env), withReferences(v.Headers)
}

// Values returns the stored values, and whether these are all values of the server.
func (s Spec) Values() Values {
	v := Values{Env: maps.Clone(s.Env), Headers: maps.Clone(s.Headers)}
	env, headers := s.Missing(v)
	v.Complete = len(env)+len(headers) == 0
	return v
}

// Missing returns the names of the variables and headers that have no value in v.
func (s Spec) Missing(v Values) (env, headers []string) {
	missing := func(keys []string, values map[string]string) (names []string) {
		for _, k := range keys {
			if _, ok := values[k]; !ok {
				names = append(names, k)
			}
		}
		return names
	}
	return missing(s.EnvKeys, v.Env), missing(s.HeaderKeys, v.Headers)
}

// SecretNames returns the names of the stored secrets that the values refer to, sorted.
func (s Spec) SecretNames() []string { return References(s.Env, s.Headers) }

// References returns the names of the stored secrets that values refer to, sorted.
func References(all ...map[string]string) []string {
	names := map[string]bool{}
	for _, values := range all {
		for _, v := range values {
			for _, m := range referencePattern.FindAllStringSubmatch(v, -1) {
				names[m[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// CallTimeout returns how long a call may take from its start or last progress. The
// default is limit.
func (c Configured) CallTimeout(limit time.Duration) time.Duration {
	return cmp.Or(max(c.Timeout, 0), limit)
}
