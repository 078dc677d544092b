package finder

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/tool"
)

// kind is what an entry is.
type kind string

const (
	kindTool     kind = "tool"
	kindPrompt   kind = "prompt"
	kindResource kind = "resource"
	kindTemplate kind = "resource template"
	kindServer   kind = "server"
)

// inScope reports whether a principal's token may use what an entry is.
func inScope(p auth.Principal, k kind) bool {
	o := map[kind]policy.Operation{kindPrompt: policy.PromptGet, kindResource: policy.ResourceRead,
		kindTemplate: policy.ResourceRead}[k]
	if o == "" {
		o = policy.MCPCall
	}
	return policy.InScope(p, o)
}

// entry is one thing that can be found.
type entry struct {
	kind            kind
	server          string // its server's name
	exposed, remote string
	raw             json.RawMessage
	held            string // why the tool is held back; empty: it is not
}

// index has what one principal's servers offer, and the words of it.
type index struct {
	mu      sync.Mutex // held while the index is used, made or closed
	words   table      // of the entries, or of those that were here before
	entries []entry    // nil: they have to be read
	of      snapshot   // what the entries were read of
	closed  bool

	owner auth.Principal
	used  time.Time // guarded by the Finder's mu
	stale bool      // something has changed since the entries were read; guarded by the Finder's mu
}

// snapshot tells lists apart.
type snapshot struct {
	first   *tool.Tool
	tools   int
	servers int
}

const (
	// maxIndexes is for how many principals indexes are kept, and indexLife for how long without use. One of 500 tools
	// takes about a MiB.
	maxIndexes = 64
	indexLife  = 10 * time.Minute
)

// Changed makes the next search of a principal's things look at all of them again; an empty owner means all principals.
// Indexes that were used lately are made again in the background.
func (f *Finder) Changed(owner string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, x := range f.indexes {
		if owner == "" || id == owner {
			x.stale = true
			if time.Since(x.used) <= indexLife {
				f.ahead.add(x.owner)
			}
		}
	}
}

// Prepare makes a principal's index in the background, as a search may come soon, if that takes no other principal's
// place. It returns at once.
func (f *Finder) Prepare(p auth.Principal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x := f.indexes[p.ID]; x == nil && len(f.indexes) < maxIndexes || x != nil && x.stale {
		f.ahead.add(p)
	}
}

// makeIndex makes a principal's index what it would be made by a search.
func (f *Finder) makeIndex(p auth.Principal) {
	f.mu.Lock()
	x := f.indexes[p.ID]
	if x == nil && len(f.indexes) < maxIndexes {
		x = &index{owner: p, used: time.Now()}
		f.indexes[p.ID] = x
	}
	f.mu.Unlock()
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), matchTimeout)
	defer cancel()
	f.refresh(ctx, p, x)
	if x.words.follow(ctx, x.entries) != nil {
		x.words.close() // a search makes it again, and says why it cannot
	}
}

// Close ends what runs in the background, and frees all indexes.
func (f *Finder) Close() {
	f.ahead.close()
	f.mu.Lock()
	all := f.indexes
	f.indexes = map[string]*index{}
	f.mu.Unlock()
	for _, x := range all {
		x.close()
	}
}

func (x *index) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed, x.entries = true, nil
	x.words.close()
}

// open returns a principal's index, locked, with the entries of this moment. The caller unlocks it.
func (f *Finder) open(ctx context.Context, p auth.Principal) *index {
	for {
		f.mu.Lock()
		x := f.indexes[p.ID]
		var unused []*index
		if x == nil {
			unused = f.makeRoom()
			x = &index{owner: p}
			f.indexes[p.ID] = x
		}
		x.used = time.Now()
		f.mu.Unlock()
		for _, u := range unused {
			u.close()
		}
		x.mu.Lock()
		if x.closed { // another principal took its place
			x.mu.Unlock()
			continue
		}
		f.refresh(ctx, p, x)
		return x
	}
}

// makeRoom removes the indexes that were not used for long, and one more if there are too many. The caller holds f.mu,
// and closes them without it.
func (f *Finder) makeRoom() (unused []*index) {
	oldest := ""
	for id, x := range f.indexes {
		if time.Since(x.used) > indexLife {
			unused = append(unused, x)
			delete(f.indexes, id)
		} else if oldest == "" || x.used.Before(f.indexes[oldest].used) {
			oldest = id
		}
	}
	if len(f.indexes) >= maxIndexes {
		unused = append(unused, f.indexes[oldest])
		delete(f.indexes, oldest)
	}
	return unused
}

// refresh reads the entries, unless they are up to date. The caller holds x.mu.
func (f *Finder) refresh(ctx context.Context, p auth.Principal, x *index) {
	f.mu.Lock()
	stale := x.stale
	x.stale = false
	f.mu.Unlock()
	tools, all := f.connections.Tools(ctx, p), f.connections.List(p)
	now := snapshot{tools: len(tools), servers: len(all)}
	if len(tools) > 0 {
		now.first = &tools[0]
	}
	if !stale && x.entries != nil && now == x.of {
		return
	}
	entries := []entry{}
	for _, i := range all {
		if i, c, err := f.connections.Info(p, i.ID); err == nil {
			entries = append(entries, entriesOf(i, c)...)
		}
	}
	x.of, x.entries = now, entries
}

func (e entry) equal(o entry) bool {
	return e.kind == o.kind && e.server == o.server && e.exposed == o.exposed && e.remote == o.remote &&
		e.held == o.held && bytes.Equal(e.raw, o.raw)
}

// entriesOf returns the entries of one server.
func entriesOf(i servers.Info, c catalog.Catalog) []entry {
	held := map[string]string{}
	for _, n := range i.Held {
		held[n.Exposed] = n.Why
	}
	all := []entry{{kind: kindServer, server: i.Name, exposed: i.Name, remote: i.Name}}
	add := func(k kind, list []catalog.Definition) {
		for _, d := range list {
			e := entry{kind: k, server: i.Name, exposed: d.Exposed, remote: d.Remote, raw: d.Raw}
			if k == kindTool {
				e.held = held[d.Exposed]
			}
			all = append(all, e)
		}
	}
	add(kindTool, c.Tools)
	add(kindPrompt, c.Prompts)
	add(kindResource, c.Resources)
	add(kindTemplate, c.Templates)
	return all
}

// entries returns all entries of a principal. They must not be changed.
func (f *Finder) entries(ctx context.Context, p auth.Principal) []entry {
	x := f.open(ctx, p)
	defer x.mu.Unlock()
	return x.entries
}

// wordsOf are the texts of an entry by which it is found.
type wordsOf struct{ name, title, server, arguments, description string }

// maxWords is how many bytes of a text count.
const maxWords = 512

// words returns the texts by which an entry is found. Of a tool that is held back only the name counts: nobody has
// looked at the rest.
func (e entry) words() wordsOf {
	w := wordsOf{name: split(e.remote), server: split(e.server)}
	if e.kind == kindServer || e.held != "" {
		return w
	}
	d := read(e.raw)
	if e.kind != kindTool && e.kind != kindPrompt {
		w.name = split(e.exposed) + " " + split(d.Name)
	}
	var names strings.Builder
	for i, a := range d.arguments(false) {
		if i < maxWords/16 {
			names.WriteString(split(a.name) + " ")
		}
	}
	w.title, w.description, w.arguments = split(d.Title), clipBytes(d.Description, maxWords), names.String()
	return w
}
