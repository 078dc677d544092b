package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/config/entry"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// MCP has the settings of third-party MCP servers. Config.Servers returns the servers themselves.
type MCP struct {
	IdleTimeout    time.Duration // without use, after which a server is stopped
	InstallTimeout time.Duration // time limit of an installation
	Consent        string        // allow, ask or deny: whether users' agents may add servers
	// Files are absolute paths of MCP clients' files, whose servers are used too. A running server
	// reloads them when they change, as it does with the settings file.
	Files []string
	// FilesEnv are the names of environment variables that these files may refer to.
	FilesEnv []string
	// Registries are the registries in which servers are searched; RegistryAge is how old what is known of one may be.
	Registries  []MCPRegistry
	RegistryAge time.Duration
	// FilesCommands is set if $(…) in these files runs on this machine.
	FilesCommands bool

	ownEntries     []entry.Entry
	lastValid      map[string][]entry.Entry // the entries of each of Files when it was last valid
	runningVolumes []Volume                 // volumes that the running server mounts, with its earlier settings
}

// mcpRows returns the settings of MCP servers, except for the servers themselves.
func (c *Config) mcpRows() []setting {
	m := &c.MCP
	return []setting{
		{"mcp_files", "", nil,
			"files of MCP clients whose servers are taken up too, separated by commas: " +
				"Claude's, Cursor's, VS Code's, crush.json",
			accessor{m.setFiles, func() string { return strings.Join(m.Files, ",") }}},
		{"mcp_files_env", "", nil,
			"names of the server's variables that files of mcp_files may put into what they say, separated by " +
				"commas; no other is given to them",
			list(&m.FilesEnv, checkVariableName)},
		{"mcp_files_commands", "false", nil,
			"whether $(…) in files of mcp_files runs on this machine, as in sandlot.yaml: for crush.json",
			boolean(&m.FilesCommands)},
		{"mcp_consent", "allow", nil,
			"what users' agents may do before a third-party MCP server is installed, started or connected: " +
				"allow, ask (the user is asked first) or deny (only the operator's servers)",
			oneOf(&m.Consent, "allow", "ask", "deny")},
		{"mcp_registries", "official", nil,
			"MCP registries in which users and agents search for servers, separated by commas: official (registry." +
				"modelcontextprotocol.io), NAME=https://… for one of the same API, NAME=/path for a copy on this machine; " +
				"empty: none",
			accessor{m.setRegistries, func() string {
				var all []string
				for _, r := range m.Registries {
					all = append(all, r.text())
				}
				return strings.Join(all, ",")
			}}},
		{"mcp_registry_age", "24h", nil,
			"how old what is known of an MCP registry may be before it is read again",
			duration(&m.RegistryAge, time.Minute, 365*day)},
		{"mcp_idle_timeout", "10m", nil,
			"how long a third-party MCP server runs without use", duration(&m.IdleTimeout, time.Second, 3650*day)},
		{"mcp_install_timeout", "10m", nil,
			"how long installing a third-party MCP server may take", duration(&m.InstallTimeout, time.Second, day)},
	}
}

func (m *MCP) setFiles(v string) error {
	m.Files = nil
	for _, p := range strings.Split(v, ",") {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(p, "~/"); ok {
			home, err := os.UserHomeDir()
			if err != nil {
				return fmt.Errorf("%q: the home folder is not known; write the whole path", p)
			}
			p = filepath.Join(home, rest)
		}
		abs, err := filepath.Abs(p)
		if err != nil {
			return err
		}
		if !slices.Contains(m.Files, abs) {
			m.Files = append(m.Files, abs)
		}
	}
	return nil
}

func checkVariableName(name string) (string, error) {
	if !entry.VariableName.MatchString(name) {
		return "", fmt.Errorf("%q must be the name of a variable, such as GITHUB_TOKEN", fault.Clip(name))
	}
	return name, nil
}

// Inherit prepares c to replace before in a running server. Where a client's file is invalid now, its
// last valid entries stay in use. volumes belong to the running server: a file in one of them is not
// trusted either.
func (c *Config) Inherit(before *Config, volumes []Volume) {
	c.MCP.lastValid, c.MCP.runningVolumes = before.MCP.lastValid, volumes
}

// clientEntries returns the entries of a client's file. If the file is invalid, missing, or writable by
// others, it returns the last valid entries, if there are any, and a note.
func (c *Config) clientEntries(file string) (entries []entry.Entry, note string) {
	if c.MCP.lastValid == nil {
		c.MCP.lastValid = map[string][]entry.Entry{}
	}
	entries, err := readClients(file, c.fileChecker(true))
	if err == nil {
		c.MCP.lastValid[file] = entries
		return entries, ""
	}
	last, known := c.MCP.lastValid[file]
	if known {
		return last, fmt.Sprintf("mcp_files: %s: %v; its last valid content holds", file, err)
	}
	return nil, fmt.Sprintf("mcp_files: %s: %v; no server is taken from it", file, err)
}

// parseMCP stores the entries of the section mcp. Servers reports errors in an entry: they must not prevent
// the server's start.
func (c *Config) parseMCP(n *yaml.Node, path string) error {
	c.MCP.ownEntries = nil
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return errors.New("must be names of MCP servers with their settings, such as  github: {command: npx, args: " +
			"[-y, server-github]}")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		tree, err := yamlTree(n.Content[i+1], 0)
		c.MCP.ownEntries = append(c.MCP.ownEntries, entry.New(n.Content[i].Value, path, tree, err))
	}
	return nil
}

// Servers returns the servers that the operator configured: the settings file's, then the ones of
// MCP.Files. Each call reads the files of clients, and runs the commands in $(…), again. A server that
// cannot be used has its Broken field set to the reason. notes are messages for the operator. Neither
// contains a value that an expansion inserted. principal returns the id of a principal by the text in
// an entry.
func (c *Config) Servers(ctx context.Context, principal func(text string) (id string, err error)) (
	list []spec.Configured, notes []string) {
	all := slices.Clone(c.MCP.ownEntries)
	for _, f := range c.MCP.Files {
		entries, note := c.clientEntries(f)
		if note != "" {
			notes = append(notes, note)
		}
		all = append(all, entries...)
	}
	all, names, more := uniqueNames(all)
	notes = append(notes, more...)
	list = make([]spec.Configured, len(all))
	entryNotes := make([][]string, len(all))
	settings := entry.Settings{Env: c.Source.Env, Allowed: c.MCP.FilesEnv,
		Commands: c.MCP.FilesCommands, Home: c.homeFolder, Duration: ParseDuration, Principal: principal}
	var readers sync.WaitGroup
	for i, e := range all {
		readers.Go(func() {
			list[i], entryNotes[i] = e.Server(ctx, settings)
			list[i].Name, list[i].Source = names[i], e.File
		})
	}
	readers.Wait()
	for i, words := range entryNotes {
		for _, w := range words {
			notes = append(notes, fmt.Sprintf("MCP server %q of %s: %s", names[i], all[i].File, w))
		}
	}
	return list, notes
}

// uniqueNames assigns a valid, unique name to each entry. Of two entries with the same name in the files, it
// keeps the first, so the settings file takes precedence over the files of clients.
func uniqueNames(all []entry.Entry) (unique []entry.Entry, names, notes []string) {
	firstFile := map[string]string{}
	for _, e := range all {
		if from, duplicate := firstFile[e.Name]; duplicate {
			notes = append(notes, fmt.Sprintf("MCP server %q of %s is left out: %s has one of that name",
				fault.Clip(e.Name), e.File, from))
			continue
		}
		firstFile[e.Name] = e.File
		name := safeName(e.Name)
		for n := 2; slices.Contains(names, name); n++ {
			name = fmt.Sprintf("%.28s-%d", safeName(e.Name), n)
		}
		if name != e.Name {
			notes = append(notes, fmt.Sprintf("MCP server %q of %s is called %s here: a name has 1 to %d letters, "+
				"digits, _ and -", fault.Clip(e.Name), e.File, name, maxServerName))
		}
		unique, names = append(unique, e), append(names, name)
	}
	return unique, names, notes
}

const maxServerName = 32

// safeName turns s into a name of letters, digits, _ and - that begins with a letter or digit.
func safeName(s string) string {
	out := []byte{}
	for _, r := range s {
		switch {
		case r >= '0' && r <= '9', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', len(out) > 0 && (r == '_' || r == '-'):
			out = append(out, byte(r))
		case len(out) > 0 && out[len(out)-1] != '-':
			out = append(out, '-')
		}
	}
	name := s
	if string(out) != s {
		name = strings.TrimRight(string(out), "-")
	}
	if name == "" {
		name = "server"
	}
	if len(name) > maxServerName {
		h := sha256.Sum256([]byte(s))
		name = name[:maxServerName-7] + "-" + hex.EncodeToString(h[:3])
	}
	return name
}

// mcpServerRows returns a row for each server of the section mcp: not expanded, and without the values of
// variables and headers and without the parts of a URL that may be secret.
func (c *Config) mcpServerRows() []Row {
	var rows []Row
	for _, e := range c.MCP.ownEntries {
		rows = append(rows, Row{Key: "mcp." + e.Name, Value: e.Summary(), From: "file " + e.File,
			Help: "a third-party MCP server"})
	}
	return rows
}

// homeFolder returns the folder that ~ means for the server: on the host, or in a sandbox.
func (c *Config) homeFolder(s spec.Configured) string {
	if s.Where == spec.OnHost {
		if h := spec.HostUserHome(s.User); h != "" {
			return h
		}
		if h := c.Source.Env["HOME"]; h != "" {
			return h
		}
		h, _ := os.UserHomeDir()
		return h
	}
	for _, t := range c.Templates {
		serves := t.Name == c.Sessions.DefaultTemplate || slices.Contains(t.Provides, c.Sessions.DefaultTemplate)
		if serves && t.Env["HOME"] != "" {
			return t.Env["HOME"]
		}
	}
	return "/root"
}
