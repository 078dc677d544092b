// Package registry finds third-party MCP servers in registries that speak the API of the official MCP registry (v0.1), or
// in a copy of one on disk. What a registry says is a stranger's text: it is bounded, made safe, and never acted on by
// itself. An entry becomes a tool call (Entry.Plan), which passes policy and consent like any other.
package registry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sandlot/internal/fault"
)

// Official is the URL of the official registry.
const Official = "https://registry.modelcontextprotocol.io"

// Source is a registry in the settings.
type Source struct {
	Name string
	URL  string // https://… or http://…; empty: Path
	Path string // of a file or folder with a copy
}

// Dial connects to addr, a host and a port, for the server itself.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// Config says which registries there are.
type Config struct {
	Sources []Source
	// Folder has the copies of registries.
	Folder string
	// Age is how old a copy may be before it is read again.
	Age time.Duration
	// Dial connects to hosts that the settings name by a DNS name; nil: any address may be dialed.
	Dial Dial
	// Allowed reports whether the settings allow remote servers at a host that is not public; nil: none is allowed.
	Allowed func(host, port string) bool
	Version string // of Sandlot
	Log     *slog.Logger
}

// Registries are the registries of the settings.
type Registries struct {
	config   Config
	all      []*Registry
	end      context.CancelFunc
	ctx      context.Context
	work     sync.WaitGroup
	searches chan struct{} // a place for each search that runs
}

// Registry is one of them.
type Registry struct {
	Source
	folder  string // of its copy
	age     time.Duration
	version string
	http    *http.Client // nil: it is a copy on disk
	gets    chan struct{}
	asked   *askers // of all registries together
	log     *slog.Logger

	mu      sync.Mutex
	reading chan struct{} // closed when the copy is read; nil: nobody reads it
	failure error         // of the last reading
	failed  time.Time
	keeping sync.Mutex // one entry is written at a time
}

// New returns the registries. It connects to none.
func New(c Config) (*Registries, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	rs := &Registries{config: c, searches: make(chan struct{}, 3)}
	asked := &askers{left: map[string]*rate.Limiter{}}
	rs.ctx, rs.end = context.WithCancel(context.Background())
	for _, s := range c.Sources {
		r := &Registry{Source: s, age: c.Age, version: c.Version, gets: make(chan struct{}, 4), asked: asked,
			log: c.Log}
		if s.URL != "" {
			base, err := url.Parse(s.URL)
			if err != nil {
				return nil, err
			}
			r.http, r.folder = client(base, c.Dial), filepath.Join(c.Folder, copyName(s))
		}
		rs.all = append(rs.all, r)
	}
	return rs, nil
}

// Close ends the reading of copies, and waits for that.
func (rs *Registries) Close() {
	rs.end()
	rs.work.Wait()
}

// Limits of a search.
const (
	MaxResults     = 100
	defaultResults = 20
	maxWords       = 10
	maxQuery       = 300
)

// Query is a search.
type Query struct {
	Words    string // all of them must be in the name, title or description
	Registry string // empty: all
	Limit    int    // 0: the default
}

// Found is the result of a search.
type Found struct {
	Servers    []Summary `json:"servers"`
	Total      int       `json:"total"` // how many match
	Registries []State   `json:"registries"`
}

// State says how much of a registry was searched.
type State struct {
	Name    string `json:"name"`
	Entries int    `json:"entries"`           // of the copy
	ReadAt  string `json:"read_at,omitempty"` // when the copy was read
	// Note says why the search was not complete.
	Note string `json:"note,omitempty"`
}

// Search finds entries. A registry that cannot be used is noted, and fails a search only if there is no other.
func (rs *Registries) Search(ctx context.Context, q Query) (Found, error) {
	words := strings.Fields(strings.ToLower(q.Words))
	if len(q.Words) > maxQuery || len(words) > maxWords {
		return Found{}, fault.Argument("search", "a search has at most %d words, and %d bytes", maxWords, maxQuery)
	}
	if q.Limit < 0 || q.Limit > MaxResults {
		return Found{}, fault.Argument("limit", "limit must be from 1 to %d", MaxResults)
	}
	some, err := rs.named(q.Registry)
	if err != nil {
		return Found{}, err
	}
	select {
	case rs.searches <- struct{}{}:
		defer func() { <-rs.searches }()
	case <-ctx.Done():
		return Found{}, ctx.Err()
	}
	found := Found{Servers: []Summary{}, Registries: make([]State, len(some))}
	m := &matches{words: words}
	errs := make([]error, len(some))
	for i, r := range some {
		found.Registries[i], errs[i] = r.search(ctx, rs, m)
		if errs[i] != nil {
			found.Registries[i].Note = errs[i].Error()
		}
	}
	if err := errors.Join(errs...); err != nil && !slices.Contains(errs, nil) {
		return Found{}, errs[0]
	}
	found.Servers, found.Total = m.best(cmp.Or(q.Limit, defaultResults)), m.total
	return found, nil
}

// named returns the registry of that name; of an empty one: all.
func (rs *Registries) named(name string) ([]*Registry, error) {
	if len(rs.all) == 0 {
		return nil, fault.New(fault.NotFound, "this server uses no MCP registry; its operator can name some: mcp_registries in "+
			"sandlot.yaml")
	}
	if name == "" {
		return rs.all, nil
	}
	var names []string
	for _, r := range rs.all {
		if r.Name == name {
			return []*Registry{r}, nil
		}
		names = append(names, r.Name)
	}
	return nil, fault.Argument("registry", "there is no registry %q; there are: %s", fault.Clip(name),
		strings.Join(names, ", "))
}

// Reference names an entry.
type Reference struct {
	Registry string `json:"registry,omitempty"` // empty: the only one that has it
	Name     string `json:"name"`
	Version  string `json:"version,omitempty"` // empty: the latest
}

// Text returns the registry and a colon, the name, and an @ and the version: what is known of it.
func (r Reference) Text() string {
	text := r.Name
	if r.Registry != "" {
		text = r.Registry + ":" + text
	}
	if r.Version != "" && r.Version != "latest" {
		text += "@" + r.Version
	}
	return text
}

// Get returns an entry. If the reference names no registry and several have the entry, it is an error: who owns a name in
// one registry need not own it in another.
func (rs *Registries) Get(ctx context.Context, ref Reference) (Entry, error) {
	return rs.get(ctx, ref, rs.config.Age)
}

// get is Get of an entry that was read within age.
func (rs *Registries) get(ctx context.Context, ref Reference, age time.Duration) (Entry, error) {
	if !entryName.MatchString(ref.Name) {
		return Entry{}, fault.Argument("name", "%q is not the name of an entry, such as io.github.someone/weather",
			fault.Clip(ref.Name))
	}
	if ref.Version != "" && !versionText.MatchString(ref.Version) {
		return Entry{}, fault.Argument("version", "%q is not a version", fault.Clip(ref.Version))
	}
	some, err := rs.named(ref.Registry)
	if err != nil {
		return Entry{}, err
	}
	var has []*Registry
	var entry opened
	var trouble error
	for _, r := range some {
		o, err := r.one(ctx, ref.Name, ref.Version, age)
		switch {
		case errors.Is(err, errNotThere):
		case err != nil:
			trouble = cmp.Or(trouble, r.unreachable(err))
		default:
			entry, has = o, append(has, r)
		}
	}
	switch {
	case len(has) == 1 && trouble == nil:
		return entry.entry(has[0].Name, rs.config.Allowed), nil
	case len(has) > 1:
		var names []string
		for _, r := range has {
			names = append(names, r.Name)
		}
		return Entry{}, fault.Argument("registry", "%s is in several registries (%s): say which with registry", ref.Name,
			strings.Join(names, ", "))
	case trouble != nil: // which may have the name, too
		f := fault.From(trouble)
		f.Message += ". If you mean another registry, say which with registry"
		return Entry{}, f
	}
	what := ref.Name
	if ref.Version != "" {
		what += " in the version " + ref.Version
	}
	return Entry{}, fault.New(fault.NotFound, "no registry has %s", what)
}

// planAge is how old what is known of an entry may be when it is added: it may have been withdrawn.
const planAge = 5 * time.Minute

// Plan returns the tool call that adds an entry.
func (rs *Registries) Plan(ctx context.Context, ref Reference, c Choice) (Plan, error) {
	e, err := rs.get(ctx, ref, min(rs.config.Age, planAge))
	if err != nil {
		return Plan{}, err
	}
	if c.Digest != "" && c.Digest != e.Digest {
		return Plan{}, fault.Argument("digest", "the registry has another entry of %s %s since you looked: look again", e.Name,
			e.Version)
	}
	p, err := e.Plan(c)
	if e.Note != "" {
		p.Notes = append(slices.Clip(p.Notes), e.Note)
	}
	if address, ok := p.Arguments["url"].(string); ok && err == nil {
		if why := addressTrouble(address, rs.config.Allowed); why != "" {
			return Plan{}, fault.Argument("values", "the server cannot be used: %s", why)
		}
	}
	return p, err
}
