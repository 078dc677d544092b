package finder

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers"
	"sandlot/internal/servers/diagnosis"
	"sandlot/internal/servers/spec"
	"sandlot/internal/servers/state"
)

// Hit is something that a search has found.
type Hit struct {
	Kind      string `json:"kind"` // tool, prompt, resource, resource template, or server
	Name      string `json:"name"` // by which clients call it, or its URI
	Server    string `json:"server"`
	Remote    string `json:"remote"`             // the server's own name
	Signature string `json:"signature"`          // Name with the names of the arguments; ? stands after optional ones
	Text      string `json:"text,omitempty"`     // what it does, on one line
	Problem   string `json:"problem,omitempty"`  // why it cannot be used at the moment, and what helps
	HeldBack  bool   `json:"heldBack,omitempty"` // it cannot be called until its user approves it
}

// ServerCount says how many tools a server offers.
type ServerCount struct {
	Server    string `json:"server"`
	Tools     int    `json:"tools"`
	Prompts   int    `json:"prompts,omitempty"`
	Resources int    `json:"resources,omitempty"` // with templates
	Held      int    `json:"held,omitempty"`      // tools that are held back
	Problem   string `json:"problem,omitempty"`   // why it cannot be used at the moment, and what helps
}

// Found is the result of a search.
type Found struct {
	Hits    []Hit         `json:"hits,omitempty"`
	More    int           `json:"more,omitempty"`    // how many more there are
	Servers []ServerCount `json:"servers,omitempty"` // all of them, if no words were searched for
	query   string
}

// SearchJSON is Search for whoever sends what it finds as JSON.
func (f *Finder) SearchJSON(ctx context.Context, p auth.Principal, query, server string, limit int) (any, error) {
	return f.Search(ctx, p, query, server, limit)
}

// Search finds what a principal's third-party servers offer, the best first. Server is the name of one; empty: all of
// them. Without words in the query, it returns the servers, or with server all that it has, as far as limit goes. A
// limit of 0 is the usual one.
func (f *Finder) Search(ctx context.Context, p auth.Principal, query, server string, limit int) (Found, error) {
	f.waitReady(ctx, p)
	all := f.connections.List(p)
	if i := slices.IndexFunc(all, func(i servers.Info) bool { return i.Name == server || i.ID == server }); i >= 0 {
		server, all = all[i].Name, all[i:i+1]
	} else if server != "" {
		var names []string
		for _, i := range all {
			names = append(names, i.Name)
		}
		return Found{}, fault.New(fault.NotFound, "there is no third-party server %q%s", spec.ClipName(server),
			cmp.Or(fault.DidYouMean(server, names), "; search_tools without arguments lists yours"))
	}
	words, found := matchQuery(query), Found{query: query}
	if limit <= 0 {
		limit = defaultHits
	}
	limit = min(limit, maxHits)
	if words == "" && server == "" {
		found.Servers = countAll(p, all)
		return found, nil
	}
	x := f.open(ctx, p)
	defer x.mu.Unlock()
	numbers, err := x.find(words, query)
	if err != nil {
		return Found{}, err
	}
	how := map[string]string{}
	for _, i := range all {
		how[i.Name] = brief(i).Brief()
	}
	for _, n := range numbers {
		e := x.entries[n]
		if server != "" && e.server != server || !inScope(p, e.kind) || e.kind == kindServer && how[e.server] == "" {
			continue
		}
		if len(found.Hits) == limit {
			found.More++
			continue
		}
		found.Hits = append(found.Hits, e.hit(how[e.server]))
	}
	return found, nil
}

// find returns the numbers of the entries that have one of the words of a query, or, without words, of all entries.
// What has the query as its name comes first.
func (x *index) find(words, query string) ([]int, error) {
	if words == "" {
		all := make([]int, len(x.entries))
		for n := range all {
			all[n] = n
		}
		return all, nil
	}
	all, err := x.words.match(words, x.entries)
	query = strings.TrimSpace(query)
	isNamed := func(n int) bool { return x.entries[n].exposed == query || x.entries[n].remote == query }
	slices.SortStableFunc(all, func(a, b int) int {
		switch a, b := isNamed(a), isNamed(b); {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	})
	return all, err
}

// hit returns an entry as a search shows it; how says why its server cannot be used.
func (e entry) hit(how string) Hit {
	h := Hit{Kind: string(e.kind), Name: e.exposed, Server: e.server, Remote: spec.ClipName(e.remote),
		Signature: e.exposed, Problem: how, HeldBack: e.held != ""}
	if how != "" {
		h.Problem = "its server " + how
	}
	switch {
	case e.kind == kindServer:
		h.Problem = how
		return h
	case e.held != "":
		h.Problem = (&diagnosis.Server{Identity: diagnosis.Identity{Name: e.server}}).HeldBrief(e.held)
		return h // nobody has looked at the rest
	}
	d := read(e.raw)
	if e.kind == kindResource || e.kind == kindTemplate {
		d.Title = cmp.Or(d.Title, d.Name)
	}
	h.Text = firstLine(cmp.Or(d.Description, d.Title))
	if e.kind == kindTool || e.kind == kindPrompt {
		h.Signature = signature(e.exposed, d.arguments(false))
	}
	return h
}

// brief returns what package diagnosis needs to say how a server is.
func brief(i servers.Info) *diagnosis.Server {
	d := &diagnosis.Server{Identity: diagnosis.Identity{ID: i.ID, Name: i.Name, Configured: i.Configured},
		Status: state.Status{State: i.State, Why: i.LastError, AuthURL: i.AuthURL}}
	d.Catalog.Loaded = len(i.Tools)+len(i.Held)+i.Prompts+i.Resources > 0
	return d
}

// howIs says why a server cannot be used; empty: it can.
func (f *Finder) howIs(p auth.Principal, server string) string {
	for _, i := range f.connections.List(p) {
		if i.Name == server {
			return brief(i).Brief()
		}
	}
	return ""
}

func countAll(p auth.Principal, all []servers.Info) (counts []ServerCount) {
	for _, i := range all {
		c := ServerCount{Server: i.Name, Problem: brief(i).Brief()}
		if policy.InScope(p, policy.MCPCall) {
			c.Tools, c.Held = len(i.Tools), len(i.Held)
		}
		if policy.InScope(p, policy.PromptGet) {
			c.Prompts = i.Prompts
		}
		if policy.InScope(p, policy.ResourceRead) {
			c.Resources = i.Resources
		}
		counts = append(counts, c)
	}
	return counts
}

// String returns what was found as a text for a model.
func (f Found) String() string {
	var b strings.Builder
	switch {
	case len(f.Hits) > 0:
	case len(f.Servers) > 0:
		b.WriteString("Third-party servers; give query words, or server:\n")
	case matchQuery(f.query) == "":
		return "No third-party servers are connected."
	default:
		return fmt.Sprintf("Nothing is found for %q. Try other words; without a query, the servers are listed.",
			spec.ClipName(f.query))
	}
	for _, s := range f.Servers {
		b.WriteString(s.line())
	}
	said := map[string]bool{} // servers of which it is said why they cannot be used
	for _, h := range f.Hits {
		if h.Problem != "" && !h.HeldBack {
			if said[h.Server] {
				h.Problem = seeAbove
			}
			said[h.Server] = true
		}
		b.WriteString(h.line())
	}
	if f.More > 0 {
		fmt.Fprintf(&b, "%d more match; add words, or name a server.\n", f.More)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// seeAbove stands for why a server cannot be used where that has been said.
const seeAbove = "its server cannot be used, see above"

func (s ServerCount) line() string {
	var all []string
	for _, c := range []struct {
		n         int
		one, more string
	}{{s.Tools, "tool", "tools"}, {s.Held, "held back", "held back"}, {s.Prompts, "prompt", "prompts"},
		{s.Resources, "resource", "resources"}} {
		switch {
		case c.n == 1:
			all = append(all, "1 "+c.one)
		case c.n > 0 || c.one == "tool":
			all = append(all, fmt.Sprintf("%d %s", c.n, c.more))
		}
	}
	text := s.Server + ": " + strings.Join(all, ", ")
	if s.Problem != "" {
		text += " (" + s.Problem + ")"
	}
	return text + "\n"
}

func (h Hit) line() string {
	text := h.Signature + " [" + h.Server + "]"
	if h.Kind == string(kindServer) {
		text = h.Server
	}
	if h.Kind != string(kindTool) {
		text = h.Kind + " " + text
	}
	if h.Text != "" {
		text += " " + h.Text
	}
	if h.Problem != "" {
		text += " (" + h.Problem + ")"
	}
	return text + "\n"
}
