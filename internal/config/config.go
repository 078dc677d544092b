// Package config owns the settings: what they are, where each comes from, and
// which values are allowed. Flags win over variables, these over the file. It knows
// none of the packages that use them: what it reads are plain values, and texts such as
// network rules are judged by who translates them.
package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Config is the effective settings.
type Config struct {
	Server   Server
	Sessions Sessions
	Runtime  Runtime
	Output   Output
	Network  Network
	MCP      MCP

	Volumes   []Volume
	VolumeMB  int        // what each of Volumes may hold; 0: any number
	Templates []Template // the operator's own, by name
	Flavors   []Flavor   // the smallest first

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
	// texts are the values of settings, and the texts of sections, for Changed.
	texts map[string]string
}

// Volume is a folder of the host that sandboxes share.
type Volume struct {
	Source   string // an existing folder, without symbolic links
	Target   string // an absolute, clean path in the sandbox
	ReadOnly bool
}

// Flavor is how large a sandbox is.
type Flavor struct {
	Name     string  `yaml:"-"`
	CPUs     float64 `yaml:"cpus"`
	MemoryMB int     `yaml:"memory_mb"`
}

// flavors are the built-in ones, which the settings can replace and add to.
var flavors = []Flavor{{"small", 1, 1024}, {"medium", 2, 2048}, {"large", 4, 4096}}

// Template is what sandboxes are made of.
type Template struct {
	Name      string            `yaml:"-"`
	Rootfs    string            `yaml:"rootfs"` // an existing folder, without symbolic links
	Env       map[string]string `yaml:"env"`
	Warm      []string          `yaml:"warm"`
	Provides  []string          `yaml:"provides"`
	Network   Rules             `yaml:"network"` // Mode may be empty: the operator's holds
	Languages []Language        `yaml:"languages"`
}

// Language is one of a template's languages. Driver is empty for one that keeps no
// state.
type Language struct {
	Name, Driver string
	Command      []string
	Extension    string
	Aliases      []string
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
	Auth        string   // auto, required or off
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
	Orphans         time.Duration // between two searches for sandboxes without an owner
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
	c := &Config{From: map[string]string{}, texts: map[string]string{}, Flavors: slices.Clone(flavors)}
	for _, s := range c.settings() {
		if err := s.set(s.value); err != nil {
			panic("config: default of " + s.key + ": " + err.Error())
		}
		c.From[s.key] = "default"
	}
	return c
}

// StateDir is where a server keeps its state unless the settings name a folder.
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
		rows = append(rows, Row{s.key, s.get(), c.From[s.key], s.help, s.env()})
	}
	return append(rows, c.mcpShown()...)
}
