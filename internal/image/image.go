// Package image says what a sandbox is made of: the template's table of
// languages, its root file system and its environment. It knows nothing of
// who makes a sandbox out of it.
package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Language is one row of a template's table.
type Language struct {
	Name string
	// Driver is "python", "node" or "bash" for a language that keeps its
	// variables between calls, and empty for one that runs as `command file`.
	Driver  string
	Command []string
	// Extension of the file, with its dot, where there is no driver.
	Extension string
	// Aliases are other names that mean the same, in lower case.
	Aliases []string
}

// Bind is one read-only folder or file of the machine in the root file system.
type Bind struct {
	Source string // on the host, without symbolic links
	Target string // in the sandbox
}

// Template is what a sandbox is made of.
type Template struct {
	Name string
	// Rootfs is a folder with an unpacked root file system. Where it is
	// empty, the root is made of Binds, Links and the few files that every
	// program expects (/etc/passwd, /etc/hosts, /tmp …).
	Rootfs string
	Binds  []Bind
	// Links are symbolic links of the root: name → target.
	Links map[string]string
	// Files are written over what the above show: content by path, without a
	// leading slash. In a Rootfs, those that are links of others by their hash
	// are left out.
	Files     map[string][]byte
	Languages []Language
	// Env is the environment of everything in the sandbox.
	Env map[string]string
	// Warm names the languages whose interpreters a pooled sandbox starts
	// before it is taken.
	Warm []string
	// Provides names other templates that this one can stand in for.
	Provides []string
}

// Add adds files, and variables where the template does not set them itself.
func (t *Template) Add(files map[string][]byte, env map[string]string) {
	all := map[string][]byte{}
	maps.Copy(all, t.Files)
	maps.Copy(all, files)
	t.Files = all
	t.Binds = slices.DeleteFunc(slices.Clone(t.Binds), func(b Bind) bool {
		for path := range files {
			if strings.HasPrefix("/"+path, b.Target+"/") {
				return true // the machine's folder would cover the file
			}
		}
		return false
	})
	merged := maps.Clone(env)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, t.Env)
	t.Env = merged
}

// Language finds a language by its name or an alias, in any case.
func (t *Template) Language(name string) (Language, bool) {
	name = strings.ToLower(name)
	for _, l := range t.Languages {
		if l.Name == name || slices.Contains(l.Aliases, name) {
			return l, true
		}
	}
	return Language{}, false
}

// LanguageNames lists the languages, in the table's order.
func (t *Template) LanguageNames() []string {
	names := make([]string, len(t.Languages))
	for i, l := range t.Languages {
		names[i] = l.Name
	}
	return names
}

// Serves says whether a session with this template can answer a call that
// asks for the template named.
func (t *Template) Serves(name string) bool {
	return name == "" || name == t.Name || slices.Contains(t.Provides, name)
}

// Flavor is how big a sandbox is.
type Flavor struct {
	Name     string
	CPUs     float64
	MemoryMB int
}

// Covers says whether a sandbox of flavor f can stand in for one of flavor g.
func (f Flavor) Covers(g Flavor) bool { return f.CPUs >= g.CPUs && f.MemoryMB >= g.MemoryMB }

func (f Flavor) String() string {
	return fmt.Sprintf("%s (%g CPU, %d MB)", f.Name, f.CPUs, f.MemoryMB)
}
