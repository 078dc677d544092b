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

	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
)

// MCP has the settings of third-party MCP servers. Config.Servers returns the servers themselves.
type MCP struct {
	Idle    time.Duration // without use, after which a server is stopped
	Install time.Duration // time limit of an installation
	Consent string        // allow, ask or deny: whether users' agents may add servers
	// Files are absolute paths of MCP clients' files, whose servers are used too. A running server
	// reloads them when they change, as it does with the settings file.
	Files []string
	// FilesEnv are the names of environment variables that these files may refer to.
	FilesEnv []string

	section []entry
	last    map[string][]entry // the entries of each of Files when it was last valid
	running []Volume           // volumes that the running server mounts, with its earlier settings
}

// entry is one server as a file describes it.
type entry struct {
	name string
	from string
	form *form
	keys map[string]any // values: string, []any, map[string]any; nil for null
	err  error          // set if the entry is not a section at all
}

// mcpRows returns the settings of MCP servers, except for the servers themselves.
func (c *Config) mcpRows() []setting {
	m := &c.MCP
	return []setting{
		{"mcp_files", "", nil,
			"files of MCP clients whose servers are taken up too, separated by commas: " +
				"Claude's, Cursor's, VS Code's, crush.json",
			access{m.setFiles, func() string { return strings.Join(m.Files, ",") }}},
		{"mcp_files_env", "", nil,
			"names of the server's variables that files of mcp_files may put into what they say, separated by " +
				"commas; no other is given to them",
			list(&m.FilesEnv, readVariable)},
		{"mcp_consent", "allow", nil,
			"what users' agents may do before a third-party MCP server is installed, started or connected: " +
				"allow, ask (the user is asked first) or deny (the operator's servers alone)",
			oneOf(&m.Consent, "allow", "ask", "deny")},
		{"mcp_idle_timeout", "10m", nil,
			"how long a third-party MCP server runs without use", duration(&m.Idle, time.Second, 3650*day)},
		{"mcp_install_timeout", "10m", nil,
			"how long installing a third-party MCP server may take", duration(&m.Install, time.Second, day)},
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

func readVariable(name string) (string, error) {
	if !envForm.MatchString(name) {
		return "", fmt.Errorf("%q must be the name of a variable, such as GITHUB_TOKEN", fault.Clip(name))
	}
	return name, nil
}

// Follow prepares c to replace before in a running server. Where a client's file is invalid now, its
// last valid entries stay in use. volumes are those of the running server: a file in one of them is not
// trusted either.
func (c *Config) Follow(before *Config, volumes []Volume) {
	c.MCP.last, c.MCP.running = before.MCP.last, volumes
}

// clients returns the entries of a client's file. If the file is invalid, missing, or writable by
// others, it returns the last valid entries, if there are any, and a note.
func (c *Config) clients(file string) (entries []entry, note string) {
	if c.MCP.last == nil {
		c.MCP.last = map[string][]entry{}
	}
	entries, err := readClients(file, c.trust(true))
	if err == nil {
		c.MCP.last[file] = entries
		return entries, ""
	}
	kept, was := c.MCP.last[file]
	if was {
		return kept, fmt.Sprintf("mcp_files: %s: %v; what it said before holds", file, err)
	}
	return nil, fmt.Sprintf("mcp_files: %s: %v; no server is taken from it", file, err)
}

// mcp stores the entries of the section mcp. Servers reports errors in an entry: they must not prevent
// the server's start.
func (c *Config) mcp(n *yaml.Node, path string) error {
	c.MCP.section = nil
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return errors.New("must be names of MCP servers with their settings, such as  github: {command: npx, args: " +
			"[-y, server-github]}")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		e := entry{name: n.Content[i].Value, from: path, form: &own}
		tree, err := yamlTree(n.Content[i+1], 0)
		e.keys, e.err = section(tree, err)
		c.MCP.section = append(c.MCP.section, e)
	}
	return nil
}

func section(tree any, err error) (map[string]any, error) {
	keys, ok := tree.(map[string]any)
	if err == nil && !ok {
		err = errors.New("it must be a section with command or url")
	}
	return keys, err
}

// Servers returns the servers that the operator configured: those of the settings file, then those of
// MCP.Files. Each call reads the files of clients, and runs the commands in $(…), again. A server that
// cannot be used has its Broken field set to the reason. notes are messages for the operator. Neither
// contains a value that an expansion inserted. principal returns the id of a principal by the text in
// an entry.
func (c *Config) Servers(ctx context.Context, principal func(text string) (id string, err error)) (
	list []spec.Configured, notes []string) {
	all := slices.Clone(c.MCP.section)
	for _, f := range c.MCP.Files {
		entries, note := c.clients(f)
		if note != "" {
			notes = append(notes, note)
		}
		all = append(all, entries...)
	}
	all, names, more := named(all)
	notes = append(notes, more...)
	list = make([]spec.Configured, len(all))
	said := make([][]string, len(all))
	var reading sync.WaitGroup
	for i, e := range all {
		reading.Go(func() {
			list[i], said[i] = e.read(ctx, c, principal)
			list[i].Name, list[i].From = names[i], e.from
		})
	}
	reading.Wait()
	for i, words := range said {
		for _, w := range words {
			notes = append(notes, fmt.Sprintf("MCP server %q of %s: %s", names[i], all[i].from, w))
		}
	}
	return list, notes
}

// named assigns a valid, unique name to each entry. Of two entries with the same name in the files, it
// keeps the first, so the settings file takes precedence over the files of clients.
func named(all []entry) (kept []entry, names, notes []string) {
	first := map[string]string{}
	for _, e := range all {
		if from, twice := first[e.name]; twice {
			notes = append(notes, fmt.Sprintf("MCP server %q of %s is left out: %s has one of that name",
				fault.Clip(e.name), e.from, from))
			continue
		}
		first[e.name] = e.from
		name := safeName(e.name)
		for n := 2; slices.Contains(names, name); n++ {
			name = fmt.Sprintf("%.28s-%d", safeName(e.name), n)
		}
		if name != e.name {
			notes = append(notes, fmt.Sprintf("MCP server %q of %s is called %s here: a name has 1 to %d letters, "+
				"digits, _ and -", fault.Clip(e.name), e.from, name, maxServerName))
		}
		kept, names = append(kept, e), append(names, name)
	}
	return kept, names, notes
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

// mcpShown returns a row for each server of the section mcp: not expanded, and without the values of
// variables and headers and without the parts of a URL that may be secret.
func (c *Config) mcpShown() []Row {
	var rows []Row
	for _, e := range c.MCP.section {
		rows = append(rows, Row{Key: "mcp." + e.name, Value: e.show(), From: "file " + e.from,
			Help: "a third-party MCP server"})
	}
	return rows
}
