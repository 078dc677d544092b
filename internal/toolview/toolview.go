// Package toolview decides what a client is shown: which tools its list has, its view, and in which form results come.
// Tools that are not shown can still be used by their names.
package toolview

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"sandlot/internal/auth"
	"sandlot/internal/tool"
)

// Mode is what a client, or a setting, asks for.
type Mode string

// The modes.
const (
	All    Mode = "all"    // everything
	Search Mode = "search" // Sandlot's own tools, and those that find and call the others
	Code   Mode = "code"   // Sandlot's own tools, and the one that finds the others: code calls them
	Auto   Mode = "auto"   // All until the definitions pass a limit, then Search with the tools that were used last
)

// Modes are all modes.
var Modes = []Mode{All, Search, Code, Auto}

// Parse reads a mode. The empty text is the empty mode, which leaves the choice to the settings.
func Parse(text string) (Mode, error) {
	if text == "" || slices.Contains(Modes, Mode(text)) {
		return Mode(text), nil
	}
	return "", fmt.Errorf("must be one of all, search, code, auto")
}

// The names of Sandlot's own tools that find, describe and call third-party servers' tools.
const (
	SearchTools   = "search_tools"
	DescribeTools = "describe_tools"
	CallTool      = "call_tool"
)

// Settings are what the operator has set.
type Settings struct {
	Mode            Mode // of everyone without one of their own; empty: Auto
	Users, Services Mode // of those principals; empty: Mode
	Principals      map[string]Mode
	// Limit is how many tokens definitions of third-party tools may have with Auto, before it shows them no more.
	Limit int
}

// DefaultLimit is the limit without settings.
const DefaultLimit = 8000

// Views has the settings in effect, and which tools each principal's clients have used last.
type Views struct {
	// Searchable is called with a principal whose client is shown a view in which it has to search third-party
	// tools. It must not block, and is set before the first call of Shown; nil: nobody wants to know.
	Searchable func(auth.Principal)

	settings atomic.Pointer[Settings]

	mu     sync.Mutex
	recent map[string][]string // names of third-party tools by the principal's id, the one used last first
}

// New returns Views with the default settings.
func New() *Views {
	v := &Views{recent: map[string][]string{}}
	v.Set(Settings{Limit: DefaultLimit})
	return v
}

// Set puts settings into effect.
func (v *Views) Set(s Settings) { v.settings.Store(&s) }

// of returns the mode of a principal's client, by what its address asks for and by the settings.
func (s *Settings) of(p auth.Principal, asked Mode) Mode {
	ofKind := s.Users
	if p.Service {
		ofKind = s.Services
	}
	for _, m := range []Mode{asked, s.Principals[p.ID], ofKind, s.Mode} {
		if m != "" {
			return m
		}
	}
	return Auto
}

const (
	// maxRecent and maxRecentTokens bound the third-party tools that Auto lists beyond its limit.
	maxRecent, maxRecentTokens = 10, 2000
	// maxPrincipals is for how many principals it is known which tools they have used.
	maxPrincipals = 10_000
)

// Used notes that a principal's client has used a third-party tool. It reports whether the tool was not among those
// that were used last.
func (v *Views) Used(p auth.Principal, name string) (isNew bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before, known := v.recent[p.ID]
	if len(before) > 0 && before[0] == name {
		return false
	}
	isNew = !slices.Contains(before, name)
	if !known && len(v.recent) >= maxPrincipals {
		for id := range v.recent { // any of them: it is only a list that becomes shorter
			delete(v.recent, id)
			break
		}
	}
	after := append(make([]string, 0, maxRecent), name) // a copy: others may read the slice from before
	for _, n := range before {
		if n != name && len(after) < maxRecent {
			after = append(after, n)
		}
	}
	v.recent[p.ID] = after
	return isNew
}

// recentOf returns the names of the third-party tools that a principal has used, the last one first.
func (v *Views) recentOf(p auth.Principal) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.recent[p.ID]
}

// Shown is what a client is shown at one moment.
type Shown struct {
	Mode      Mode            // All, Search or Code
	Auto      bool            // it is so because the definitions have passed the limit
	Connected bool            // the principal has third-party tools
	recent    map[string]bool // third-party tools that are listed nevertheless
}

// Shown returns what a principal's client is shown. Asked is what its address asks for; empty: nothing. Tools are those
// of third-party servers.
func (v *Views) Shown(p auth.Principal, asked Mode, tools []tool.Tool) Shown {
	shown := v.decide(p, asked, tools)
	if v.Searchable != nil && shown.Connected && !shown.ListsAll() {
		v.Searchable(p)
	}
	return shown
}

func (v *Views) decide(p auth.Principal, asked Mode, tools []tool.Tool) Shown {
	settings := v.settings.Load()
	shown := Shown{Mode: settings.of(p, asked), Connected: len(tools) > 0}
	if shown.Mode != Auto {
		return shown
	}
	size := 0
	for _, t := range tools {
		size += len(t.Raw)
	}
	if tokens(size) <= settings.Limit {
		shown.Mode = All
		return shown
	}
	shown.Mode, shown.Auto, shown.recent = Search, true, map[string]bool{}
	recent := v.recentOf(p)
	sizes := make(map[string]int, len(recent))
	for _, t := range tools {
		if slices.Contains(recent, t.Name) {
			sizes[t.Name] = len(t.Raw)
		}
	}
	total := 0
	for _, name := range recent {
		if n, there := sizes[name]; there && tokens(total+n) <= maxRecentTokens {
			total += n
			shown.recent[name] = true
		}
	}
	return shown
}

// tokens estimates how many tokens a model needs for the JSON of definitions.
func tokens(bytes int) int { return (bytes + 3) / 4 }

// Equal reports whether both show the same of the same tools.
func (s Shown) Equal(o Shown) bool {
	return s.Mode == o.Mode && s.Auto == o.Auto && s.Connected == o.Connected && maps.Equal(s.recent, o.recent)
}

// Lists reports whether one of Sandlot's own tools is shown.
func (s Shown) Lists(name string) bool {
	switch name {
	case SearchTools:
		return s.Mode == Search || s.Mode == Code
	case DescribeTools, CallTool:
		return s.Mode == Search
	}
	return true
}

// ListsTool reports whether a third-party tool is shown.
func (s Shown) ListsTool(name string) bool { return s.ListsAll() || s.recent[name] }

// ListsAll reports whether all third-party tools are shown.
func (s Shown) ListsAll() bool { return s.Mode != Search && s.Mode != Code }

// Instructions returns what a server's instructions say of the view, for a model; it may be empty.
func (s Shown) Instructions() string {
	var all []string
	switch {
	case s.Auto:
		all = append(all, "Your third-party tools are too many to list: only those used last are.")
	case s.Mode == Search, s.Mode == Code:
		all = append(all, "Third-party tools are not listed.")
	}
	switch s.Mode {
	case Search:
		all = append(all, "Find them with search_tools, see definitions with describe_tools, and call them with "+
			"call_tool, or directly by name.")
	case Code:
		all = append(all, "Find them with search_tools, and call them from code, or directly by name.")
	}
	if s.Connected {
		all = append(all, "Code in the sandbox calls third-party tools, and only what it prints comes back: in Python "+
			"`from mcp_tools import SERVER`, in shells the command `mcp`; /run/mcp/README.md lists them.")
	}
	return strings.Join(all, " ")
}
