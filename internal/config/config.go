// Package config owns the settings: their names, their allowed values, and where each value comes
// from. Flags override environment variables, and these override the file. The package imports none of
// the packages that use the settings: values such as network rules stay texts here, and are checked
// where they are parsed (app.Load).
package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sandlot/internal/secret"
)

// Config has the effective settings.
type Config struct {
	Server   Server
	Sessions Sessions
	Runtime  Runtime
	Docker   Docker
	// Microsandbox has the settings of the runtime microsandbox.
	Microsandbox Microsandbox
	Output       Output
	Network      Network
	MCP          MCP
	Tools        ToolViews
	Events       Events
	Telemetry    Telemetry
	Policy       Policy
	Quotas       Quotas

	Volumes       []Volume
	VolumeLimitMB int        // limit for the content of each volume; 0: no limit
	Templates     []Template // the operator's own, by name
	Flavors       []Flavor   // the smallest first

	// FileNetwork is the section network of the settings file. Variables and flags may override it.
	FileNetwork Network

	// File is the settings file that was read, or empty. Source is the argument of Load.
	File        string
	Source      Source
	FileVersion FileVersion

	// Notes are messages for the log at the start.
	Notes []string
	// Origin has the origin of each setting, by its key: "default", "flag", "file PATH" or
	// "variable NAME".
	Origin map[string]string

	containerMemory, containerCPU string // mcp-codemode's settings of a container's size
	sandboxImage                  string // mcp-codemode's setting of a container's image
	// changeTexts has the settings' values, and the YAML texts of sections, by key, for Changed.
	changeTexts map[string]string
}

// Volume is a folder of the host that sandboxes share.
type Volume struct {
	Source   string // an existing folder, without symbolic links
	Target   string // an absolute, clean path in the sandbox
	ReadOnly bool
}

// Flavor is a size of sandboxes.
type Flavor struct {
	Name     string  `yaml:"-"`
	CPUs     float64 `yaml:"cpus"`
	MemoryMB int     `yaml:"memory_mb"`
}

// builtinFlavors are the built-in flavors. The settings can replace them, and add others.
var builtinFlavors = []Flavor{{"small", 1, 1024}, {"medium", 2, 2048}, {"large", 4, 4096}}

// FileVersion identifies a version of a file: if it differs, the file has changed.
type FileVersion struct {
	Modified time.Time
	Size     int64
}

// Server has the settings of the server process: its addresses, authentication, log and folders.
type Server struct {
	Host           string
	Port           int
	CORS           bool
	CORSOrigins    []string // may have AnyOrigin. Empty with CORS: AnyOrigin, and on loopback the pages of this machine
	Auth           string   // auto, required or off
	LogLevel       string
	StateDir       string
	MaxBodyMB      int
	PortsDomain    string       // the domain of exposed ports' host names
	SecretsKeyFile string       // path of the file with the key that encrypts secrets; empty: in the state folder
	SecretsKey     secret.Value // the key itself, in place of the file
	SecretsNewKey  secret.Value // the key to which Rekey changes, with SecretsKey
	SecretsKeyring string       // the name of the key in the user's keyring, in place of the file
	ReplicaAddress string       // at which other servers of the same database reach this one; empty: it is the only one
	Store          secret.Value // the URL of a PostgreSQL database; empty: SQLite in StateDir
	PublicURL      string       // without a trailing slash; empty: http://Host:Port
	TLS            TLS
	Console        bool // the web console
	TrustedProxies []netip.Prefix
	OIDC           []OIDC // by issuer
}

// AnyOrigin in CORSOrigins stands for any origin, without credentials, where a token is required.
const AnyOrigin = "*"

// Events has the settings of stored events.
type Events struct {
	KeepMax  int    // events that stay stored, of each of the two chains; 0: events are only in memory
	KeepDays int    // days that an event stays stored; 0: any
	File     string // path of a file that gets all events as lines of JSON; empty: none
}

// Database returns where the store's database is: the URL of a PostgreSQL database, or the folder of the SQLite file.
func (s *Server) Database() string {
	if s.Store != "" {
		return s.Store.Reveal()
	}
	return s.StateDir
}

// Telemetry has the settings of the OpenTelemetry collector.
type Telemetry struct {
	Endpoint string            // its URL; empty: there is none
	Headers  map[string]string // of each request to it; they may have secrets
}

// Sessions has the defaults and limits of sessions and their calls.
type Sessions struct {
	DefaultTemplate     string
	DefaultFlavor       string
	MaxSessions         int           // per principal
	MaxMemoryMB         int           // of all sessions together; 0: no limit
	IdleTimeout         time.Duration // of a session without use
	SweepInterval       time.Duration // between two searches for idle sessions
	OrphanSweepInterval time.Duration // between two searches for sandboxes without an owner
	OrphanTimeout       time.Duration // after which a sandbox without a server ends itself; 0: never
	EvictIdle           bool          // at Max, stop the session that was idle for longest
	Retention           time.Duration // of a stopped session's files
	CallTimeout         time.Duration // timeout of a call that sets none
	MaxCallTimeout      time.Duration // the highest timeout that a call may set
	Hibernate           Hibernate
	OnStop              string // what becomes of sandboxes when the server is stopped
}

// The values of Sessions.OnStop.
const (
	StopHibernate = "hibernate" // they sleep
	StopEnd       = "end"
	StopKeep      = "keep" // they run on, for the next server
)

// Hibernate has the settings of sessions that sleep.
type Hibernate struct {
	Enabled    bool
	Background string        // which background processes keep a session awake
	Jobs       time.Duration // for how long one without a time limit does while it only waits
	MaxImageMB int           // of one session
	DiskMB     int           // of all sessions together
	Keep       time.Duration // of an image
	// CompressAfter is how long a session sleeps before its image is compressed.
	CompressAfter time.Duration
	Seal          bool // images are encrypted
}

// Runtime has the settings of the runtime that creates sandboxes, and the limits of a sandbox.
type Runtime struct {
	Name         string        // of the default runtime
	Names        []string      // of all runtimes, the default one included
	RunscPath    string        // path; empty: beside the server
	AgentPath    string        // path; empty: beside the server
	Platform     string        // of gVisor: auto, systrap or kvm
	Python, Node []string      // the ready packages of the template host
	Capabilities string        // of root in gVisor's sandboxes: root or none
	StartTimeout time.Duration // timeout of a sandbox's start
	PoolSize     int           // booted sandboxes in the pool, for each template
	OwnPoolSize  int           // booted sandboxes in the pool, for each of Sandlot's own templates
	PoolMemoryMB int           // of all sandboxes in the pool together, by their flavors; 0: no limit
	Snapshots    bool
	MaxProcesses int
	DiskMB       int

	Go  []string // packages of its standard library that are ready in its build cache
	Apt bool     // the template host has lists of what apt-get can install
}

// Docker has the settings of the runtime docker.
type Docker struct {
	Host         string // the daemon's address; empty: as for the docker command
	Context      string // a context of the docker command; empty: the current one
	Runtime      string // the daemon's runtime for containers; empty: its default
	WritableRoot bool
	Files        string // auto, shared or separate: whether the daemon sees the server's files
}

// Microsandbox has the settings of the runtime microsandbox.
type Microsandbox struct {
	Program string // path of msb; empty: it is looked for
}

// Output has the form and the limits of results.
type Output struct {
	Style         string // plain or labeled
	MaxCharacters int    // characters of each stream
}

// Default returns the settings of a server without a settings file, variables and flags.
func Default() *Config {
	c := &Config{Origin: map[string]string{}, changeTexts: map[string]string{}, Flavors: slices.Clone(builtinFlavors)}
	for _, s := range c.settings() {
		if err := s.set(s.value); err != nil {
			panic("config: default of " + s.key + ": " + err.Error())
		}
		c.Origin[s.key] = "default"
	}
	return c
}

// StateDir returns the default of the setting state_dir.
func StateDir() string {
	if os.Getuid() == 0 {
		return "/var/lib/sandlot"
	}
	if d := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "sandlot")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "sandlot")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("sandlot-%d", os.Getuid()))
}

// Row is one effective setting.
type Row struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	From  string `json:"from"`
	Help  string `json:"help"`
	Env   string `json:"env"`
}

// Rows lists the effective settings.
func (c *Config) Rows() []Row {
	var rows []Row
	for _, s := range c.settings() {
		rows = append(rows, Row{s.key, s.get(), c.Origin[s.key], s.help, s.env()})
	}
	return slices.Concat(rows, c.oidcRows(), c.mcpServerRows())
}
