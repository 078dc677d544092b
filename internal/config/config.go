// Package config owns the settings: what they are, where each comes from, and
// which values are allowed. Flags win over variables, these over the file.
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/image"
	"sandlot/internal/sandbox"
)

// Config is the effective settings.
type Config struct {
	Server   Server
	Sessions Sessions
	Runtime  Runtime
	Output   Output
	Network  Network
	MCP      MCP

	Volumes   []sandbox.Mount
	VolumeMB  int               // what each of Volumes may hold; 0: any number
	Templates []*image.Template // the operator's own
	Flavors   []image.Flavor

	// File is the settings file that was read, or empty; Source is what Load was
	// given.
	File   string
	Source Source
	Stamp  Stamp

	// Notes are what the start should say.
	Notes []string
	// From says where each setting comes from, by its key.
	From map[string]string

	limitedMemory, limitedCPU string // mcp-codemode's limits of a container
	told                      map[string]string
}

// Stamp tells one content of a settings file from the next.
type Stamp struct {
	Modified time.Time
	Size     int64
}

// Server is where and how the server listens.
type Server struct {
	Host        string
	Port        int
	CORS        bool
	CORSOrigins []string // empty with CORS: any, without credentials
	Auth        auth.Mode
	LogLevel    string
	StateDir    string
	MaxBodyMB   int
	PortsDomain string // that exposed ports have their names in
	SecretsKey  string // path of the file with the key of secrets; empty: in the state folder
	PublicURL   string // without a slash at its end; empty: the address of the settings
}

// Sessions bound sessions and their calls.
type Sessions struct {
	DefaultTemplate string
	DefaultFlavor   string
	Max             int // per principal
	MaxMemoryMB     int // together; 0: no limit
	Timeout         time.Duration
	Sweep           time.Duration
	Orphans         time.Duration // between two looks for sandboxes of nobody
	Orphan          time.Duration // a sandbox's life without a server; 0: for ever
	Evict           bool
	Retention       time.Duration
	Execution       time.Duration // a call's time when it names none
	MaxExecution    time.Duration
}

// Runtime is what makes the sandboxes, and how large they are.
type Runtime struct {
	Name      string
	Runsc     string // path; empty: beside the server
	Agent     string // path; empty: beside the server
	Start     time.Duration
	Pool      int
	Snapshots bool
	Processes int
	DiskMB    int
}

// Output bounds what a result holds.
type Output struct {
	Style string // plain or labeled
	Max   int    // bytes of each stream
}

// Default returns the settings of a server that was told nothing.
func Default() *Config {
	c := &Config{From: map[string]string{}, told: map[string]string{},
		Flavors: append([]image.Flavor{}, image.Flavors...)}
	for _, s := range settings {
		if err := s.set(c, s.value); err != nil {
			panic("config: default of " + s.key + ": " + err.Error())
		}
		c.From[s.key] = "default"
	}
	return c
}

// StateDir is where a server keeps its state unless it is told otherwise.
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
	rows := make([]Row, 0, len(settings))
	for _, s := range settings {
		rows = append(rows, Row{s.key, s.get(c), c.From[s.key], s.help, s.env()})
	}
	return append(rows, c.mcpShown()...)
}
