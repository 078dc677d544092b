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

// MCP is what the settings say of third-party MCP servers. Which ones there
// are, Servers says.
type MCP struct {
	Idle    time.Duration // without use, after which a server's program is stopped
	Install time.Duration // that installing one may take
	Consent string        // allow, ask or deny: what users' agents may do before one is added
	// Files of other MCP clients, whose servers are taken up too: absolute paths.
	// A change of one of them matters as one of the settings file does.
	Files []string
	// FilesEnv are the variables of the server that these files may name.
	FilesEnv []string

	section []entry
	last    map[string][]entry // of each of Files, when it was last as it should be
	running []Volume           // volumes of the server that runs with other settings
}

// entry is one server as it stands in a file.
type entry struct {
	name string
	from string
	form *form
	keys map[string]any // of texts, lists and maps of such; nil for null
	err  error          // it is no entry at all
}

// mcpRows are the settings of MCP servers beside the servers themselves.
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

// Follow makes c the settings that a server takes up while it runs: what was last
// right in the files of clients still holds where they are wrong now, and what
// sandboxes write is what they write already, too.
func (c *Config) Follow(before *Config, volumes []Volume) {
	c.MCP.last, c.MCP.running = before.MCP.last, volumes
}

// clients are the entries of a client's file. One that is wrong, gone, or not the
// operator's alone changes nothing: what it had said holds, if it was read.
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

// mcp keeps the section's entries. What is wrong in one of them is told by
// Servers: it must not hold the start.
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

// Servers reads the servers that the operator configured: those of the settings
// file, then those of MCP.Files. It reads the files, and runs the commands in
// $(…), each time anew. One that cannot be used is Broken and says why; notes
// are what the operator should know beside. Neither ever tells a value that was
// put in. Principal returns the id of a principal that an entry names.
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

// named gives each entry a name that is safe and its own. Of two that were
// written alike the first one stays, so that the settings file goes before all
// other files.
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

// safeName makes a name of letters, digits, _ and -, that begins with one of
// the first two.
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

// mcpShown lists the section's servers as they are written, without the values
// of variables and headers, and without what could be in a URL.
func (c *Config) mcpShown() []Row {
	var rows []Row
	for _, e := range c.MCP.section {
		rows = append(rows, Row{Key: "mcp." + e.name, Value: e.show(), From: "file " + e.from,
			Help: "a third-party MCP server"})
	}
	return rows
}
