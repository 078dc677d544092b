package connection

import (
	"context"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/tool"
	"sandlot/internal/upstream"
)

// view is all that one principal is offered by third-party servers. It is made
// anew when something changes, and not changed then.
type view struct {
	tools     map[string]entry
	list      []tool.Tool
	prompts   map[string]entry
	resources map[string]entry
	templates []entry

	promptList, resourceList, templateList []tool.Item
}

// entry is one definition and whose it is.
type entry struct {
	server *server
	Definition
	match *regexp.Regexp // of a template
}

func newView() *view {
	return &view{tools: map[string]entry{}, prompts: map[string]entry{}, resources: map[string]entry{}}
}

// review makes an owner's view anew. The lock is held.
func (b *Book) review(o *owner) {
	v := newView()
	for _, s := range sorted(o.servers) {
		s.mu.Lock()
		c, hide, trust := s.rec.Catalog, s.state == Disabled || s.removed, s.trust()
		s.mu.Unlock()
		if hide {
			continue
		}
		v.add(s, c, trust)
	}
	o.view = v
}

func (v *view) add(s *server, c Catalog, trust Trust) {
	for _, d := range c.Tools {
		if _, taken := v.tools[d.Key]; taken || d.Held != "" && trust == Hold {
			continue
		}
		v.tools[d.Key] = entry{server: s, Definition: d}
		v.list = append(v.list, tool.Tool{Name: d.Key, Raw: d.Raw})
	}
	for _, d := range c.Prompts {
		if _, taken := v.prompts[d.Key]; !taken {
			v.prompts[d.Key] = entry{server: s, Definition: d}
			v.promptList = append(v.promptList, tool.Item{Key: d.Key, Raw: d.Raw})
		}
	}
	for _, d := range c.Resources {
		// Two servers may mean different things by the same URI.
		d = v.distinct(s, d, "uri", func(key string) bool { _, taken := v.resources[key]; return taken })
		v.resources[d.Key] = entry{server: s, Definition: d}
		v.resourceList = append(v.resourceList, tool.Item{Key: d.Key, Raw: d.Raw})
	}
	for _, d := range c.Templates {
		d = v.distinct(s, d, "uriTemplate", func(key string) bool {
			return slices.ContainsFunc(v.templates, func(e entry) bool { return e.Key == key })
		})
		v.templates = append(v.templates, entry{server: s, Definition: d, match: pattern(d.Key)})
		v.templateList = append(v.templateList, tool.Item{Key: d.Key, Raw: d.Raw})
	}
}

// ownScheme stands before a URI that another server has too, with the id of
// the connection.
const ownScheme = "ext+"

func (v *view) distinct(s *server, d Definition, field string, taken func(string) bool) Definition {
	if !taken(d.Key) {
		return d
	}
	d.Key = ownScheme + strings.ToLower(s.id) + ":" + d.Remote
	var t object
	if json.Unmarshal(d.Raw, &t) == nil {
		t[field] = quoted(d.Key)
		d.Raw, _ = json.Marshal(t)
	}
	return d
}

// pattern matches the URIs of a template (RFC 6570), generously.
func pattern(template string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString("^")
	for rest := template; ; {
		before, after, found := strings.Cut(rest, "{")
		b.WriteString(regexp.QuoteMeta(before))
		if !found {
			break
		}
		_, rest, found = strings.Cut(after, "}")
		if !found {
			return nil
		}
		b.WriteString(".*")
	}
	re, err := regexp.Compile(b.String() + "$")
	if err != nil {
		return nil
	}
	return re
}

// reviewed makes an owner's view anew.
func (b *Book) reviewed(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.owners[id]; o != nil {
		b.review(o)
	}
}

// changed makes an owner's view anew and tells who listens, once for many
// changes in a row.
func (b *Book) changed(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owners[id]
	if o == nil {
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
	b.configure(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owner(p).view
}

// publish stores what a server offers, and makes it known.
func (b *Book) publish(s *server, o offered, older bool) error {
	b.naming.Lock()
	defer b.naming.Unlock()
	s.mu.Lock()
	settings, old := s.settings, s.rec.Catalog
	s.mu.Unlock()
	prefix, mark := "ext_"+safeID(s.id)+"_", ""
	if !s.configured {
		mark = "[external:" + s.name + "]"
	}
	if settings.Prefix != nil {
		if prefix = *settings.Prefix; prefix != "" {
			prefix += "_"
		}
	}
	r := &reading{settings: settings, mark: mark, trust: s.trust(), old: old, valid: upstream.ValidTool,
		names: &namer{prefix: prefix, taken: func(name string) bool { return b.taken(s, name) }}}
	c := r.catalog(o)
	if err := s.update(func(r *Record) { r.Catalog, r.Older = c, older }); err != nil {
		return err
	}
	b.reviewed(s.owner.ID)
	return nil
}

func safeID(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, id)
}

// taken says whether something else of the same owner has that name, now or
// when it runs again.
func (b *Book) taken(s *server, name string) bool {
	if b.Reserved(name) {
		return true
	}
	for _, other := range b.all(s.owner.ID) {
		if other == s {
			continue
		}
		other.mu.Lock()
		names := other.rec.Catalog.Names
		other.mu.Unlock()
		for known := range maps.Values(names) {
			if known == name {
				return true
			}
		}
	}
	return false
}

// updated tells that a resource has changed, by the URI that its clients know.
func (b *Book) updated(s *server, uri string) {
	if b.OnUpdate == nil {
		return
	}
	key := uri
	for k, e := range b.viewOf(s.owner).resources {
		if e.server == s && e.Remote == uri {
			key = k
			break
		}
	}
	b.spawn(func(context.Context) { b.OnUpdate(s.owner.ID, key) })
}
