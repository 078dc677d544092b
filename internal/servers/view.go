package servers

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"

	"sandlot/internal/auth"
	"sandlot/internal/mcpclient"
	"sandlot/internal/policy"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// view is all that one principal is offered by third-party servers. It is made
// anew when something changes, and not changed then.
type view struct {
	tools      map[string]entry
	list       []tool.Tool
	prompts    map[string]entry
	resources  map[string]entry
	templates  []entry
	byTemplate map[string]entry

	promptList, resourceList, templateList []tool.Item
}

// entry is one definition and whose it is.
type entry struct {
	server *server
	Definition
}

func newView() *view {
	return &view{tools: map[string]entry{}, prompts: map[string]entry{}, resources: map[string]entry{}, byTemplate: map[string]entry{}}
}

// review makes an owner's view anew. The lock is held.
func (b *Book) review(o *owner) {
	v := newView()
	for _, s := range sorted(o.servers) {
		s.mu.Lock()
		c, hide, trust := s.rec.Catalog, s.state == Disabled || s.removed || s.rec.Off, s.trust()
		s.mu.Unlock()
		if hide {
			continue
		}
		v.add(s, c, trust)
	}
	o.view = v
}

func (v *view) add(s *server, c Catalog, trust spec.Trust) {
	for _, d := range c.Tools {
		if _, taken := v.tools[d.Key]; taken || d.Held != "" && trust == spec.Hold {
			continue
		}
		v.tools[d.Key] = entry{server: s, Definition: d}
		v.list = append(v.list, tool.Tool{Name: d.Key, Operation: policy.MCPCall, Raw: d.Raw})
	}
	for _, d := range c.Prompts {
		if _, taken := v.prompts[d.Key]; !taken {
			v.prompts[d.Key] = entry{server: s, Definition: d}
			v.promptList = append(v.promptList, tool.Item{Key: d.Key, Raw: d.Raw})
		}
	}
	for _, d := range c.Resources {
		if _, taken := v.resources[d.Key]; !taken {
			v.resources[d.Key] = entry{server: s, Definition: d}
			v.resourceList = append(v.resourceList, tool.Item{Key: d.Key, Raw: d.Raw})
		}
	}
	for _, d := range c.Templates {
		if _, taken := v.byTemplate[d.Key]; !taken {
			e := entry{server: s, Definition: d}
			v.byTemplate[d.Key] = e
			v.templates = append(v.templates, e)
			v.templateList = append(v.templateList, tool.Item{Key: d.Key, Raw: d.Raw})
		}
	}
}

// matches says whether a template (RFC 6570) may stand for a URI: what is fixed
// in it is there, in its order.
func matches(template, uri string) bool {
	before, rest, variable := strings.Cut(template, "{")
	if !variable {
		return template == uri
	}
	if !strings.HasPrefix(uri, before) {
		return false
	}
	uri = uri[len(before):]
	for {
		_, after, closed := strings.Cut(rest, "}")
		if !closed {
			return false
		}
		fixed, next, more := strings.Cut(after, "{")
		if !more {
			return strings.HasSuffix(uri, fixed)
		}
		i := strings.Index(uri, fixed)
		if i < 0 {
			return false
		}
		uri, rest = uri[i+len(fixed):], next
	}
}

// reviewed makes an owner's view anew.
func (b *Book) reviewed(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.owners[id]; o != nil && o.loaded {
		b.review(o)
	}
}

// changed makes an owner's view anew and tells who listens, once for many
// changes in a row.
func (b *Book) changed(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owners[id]
	if o == nil || !o.loaded {
		return
	}
	b.review(o)
	if b.OnChange == nil || o.changing {
		return
	}
	o.changing = b.spawn(func(context.Context) {
		b.mu.Lock()
		o.changing = false
		b.mu.Unlock()
		b.OnChange(id)
	})
}

// viewOf returns what a principal is offered now.
func (b *Book) viewOf(p auth.Principal) *view {
	_ = b.configure(p) // what cannot be read is in the log
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owner(p).view
}

// errStale is for what comes from a server that is another one by now.
var errStale = errors.New("the server was replaced")

// publish stores what a server offers, and makes it known. gen says what the
// server was when it was asked.
func (b *Book) publish(s *server, gen int, o offered, older bool) error {
	naming := b.names(s.owner)
	naming.Lock()
	defer naming.Unlock()
	s.mu.Lock()
	settings, old, prefix, mark := s.settings, s.rec.Catalog, s.prefix(), ""
	s.mu.Unlock()
	if !s.configured {
		mark = "[external:" + s.name + "]"
	}
	taken, left := b.others(s)
	r := &reading{settings: settings, mark: mark, trust: settings.Trusts(), old: old, valid: mcpclient.ValidTool, id: s.id, left: min(maxCatalog, left),
		names: &namer{prefix: prefix, taken: func(kind, name string) bool {
			return taken[kind+"/"+name] || kind == "tool" && b.Reserved(name)
		}}}
	c := r.catalog(o)
	if err := s.updateIf(func(r *Record) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gen != gen {
			return errStale
		}
		r.Catalog, r.Older = c, older
		return nil
	}); err != nil {
		return err
	}
	b.reviewed(s.owner.ID)
	return nil
}

// names returns what is held while exposed names of one owner are given.
func (b *Book) names(p auth.Principal) *sync.Mutex {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &b.owner(p).naming
}

// others returns the names and URIs that the owner's other servers have, now or
// when they run again, and how many bytes of definitions there is room for.
func (b *Book) others(s *server) (taken map[string]bool, left int) {
	taken, left = map[string]bool{}, maxCatalogs
	for _, other := range b.all(s.owner.ID) {
		if other == s {
			continue
		}
		other.mu.Lock()
		c := other.rec.Catalog
		other.mu.Unlock()
		left -= c.size()
		for key, name := range c.Names {
			kind, _, _ := strings.Cut(key, "/")
			taken[kind+"/"+name] = true
		}
	}
	return taken, max(left, 0)
}

// size is how many bytes the definitions have.
func (c Catalog) size() (n int) {
	for _, list := range [][]Definition{c.Tools, c.Prompts, c.Resources, c.Templates} {
		for _, d := range list {
			n += len(d.Raw) + len(d.Schema)
		}
	}
	return n
}

func safeID(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, id)
}

// updated tells that a resource has changed that somebody follows, by the URI
// that clients know. However often that is said, it is told one at a time.
func (b *Book) updated(s *server, uri string) {
	s.mu.Lock()
	follows := len(s.follows[uri]) > 0
	key := cmp.Or(s.rec.Catalog.Names["resource/"+uri], uri)
	s.mu.Unlock()
	if b.OnUpdate == nil || !follows {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owner(s.owner)
	if o.updates == nil {
		o.updates = map[string]bool{}
		b.spawn(func(ctx context.Context) { b.tell(ctx, o) })
	}
	o.updates[key] = true
}

// tell tells of the resources that have changed, until there are no more.
func (b *Book) tell(ctx context.Context, o *owner) {
	for ctx.Err() == nil {
		b.mu.Lock()
		all := o.updates
		if o.updates = map[string]bool{}; len(all) == 0 {
			o.updates = nil
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for uri := range all {
			b.OnUpdate(o.principal.ID, uri)
		}
	}
}
