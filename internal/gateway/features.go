package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/tool"
)

// featureKey identifies a tool, prompt, resource or resource template, by the method that uses
// it and its name, URI or URI template.
type featureKey struct{ method, key string }

// externalFeatures is what third-party servers offer to an endpoint's principal.
type externalFeatures struct {
	definitions atomic.Pointer[map[featureKey]json.RawMessage] // nil: sync was not called yet

	syncMu   sync.Mutex                     // held while definitions change
	offered  hub.ExternalFeatures           // the lists that definitions were made of
	listed   map[featureKey]json.RawMessage // the definitions that the SDK lists
	rejected map[featureKey]json.RawMessage // definitions that the SDK does not accept
}

// current returns the definitions that are offered, whether they are listed or not. The map must not be changed.
func (x *externalFeatures) current() map[featureKey]json.RawMessage {
	if all := x.definitions.Load(); all != nil {
		return *all
	}
	return nil
}

// sameFeatures reports whether the lists are the same slices, so that nothing has changed.
func sameFeatures(a, b hub.ExternalFeatures) bool {
	return sameSlice(a.Tools, b.Tools) && sameSlice(a.Prompts, b.Prompts) &&
		sameSlice(a.Resources, b.Resources) && sameSlice(a.Templates, b.Templates)
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// ownScheme begins the URIs of Sandlot's own resources. Third-party servers cannot offer
// resources with such URIs.
const ownScheme = "sandlot:"

func isOwnURI(uri string) bool {
	return len(uri) >= len(ownScheme) && strings.EqualFold(uri[:len(ownScheme)], ownScheme)
}

// externalDefinitions returns the definitions of what third-party servers offer. None replaces
// one of Sandlot's own, and of two with the same key the first one counts.
func (e *endpoint) externalDefinitions(o hub.ExternalFeatures) map[featureKey]json.RawMessage {
	all := make(map[featureKey]json.RawMessage, len(o.Tools)+len(o.Prompts)+len(o.Resources)+len(o.Templates))
	add := func(method, key string, raw json.RawMessage) {
		k := featureKey{method, key}
		_, own := e.own()[k]
		if _, there := all[k]; !own && !there {
			all[k] = raw
		}
	}
	for _, t := range o.Tools {
		if t.Raw != nil {
			add("tools/call", t.Name, t.Raw)
		}
	}
	for _, i := range o.Prompts {
		add("prompts/get", i.Key, i.Raw)
	}
	resources := map[string][]tool.Item{"resources/read": o.Resources, "resources/templates": o.Templates}
	for method, items := range resources {
		for _, i := range items {
			if !isOwnURI(i.Key) {
				add(method, i.Key, i.Raw)
			}
		}
	}
	return all
}

// own returns Sandlot's own definitions. The map must not be changed.
func (e *endpoint) own() map[featureKey]json.RawMessage {
	if all := e.ownDefinitions.Load(); all != nil {
		return *all
	}
	return nil
}

// knows reports whether there is a tool of that name.
func (e *endpoint) knows(name string) bool {
	k := featureKey{"tools/call", name}
	_, own := e.own()[k]
	_, external := e.external.current()[k]
	return own || external
}

// syncOwn updates the SDK's features to Sandlot's own. The SDK notifies clients of the changes.
func (g *Gateway) syncOwn(e *endpoint) {
	e.external.syncMu.Lock()
	defer e.external.syncMu.Unlock()
	g.listOwn(e)
}

// listOwn is syncOwn for a caller that holds external.syncMu.
func (g *Gateway) listOwn(e *endpoint) {
	shown := e.view()
	old, now, changes := e.own(), map[featureKey]json.RawMessage{}, []func(){}
	add := func(k featureKey, definition json.RawMessage, change func()) {
		now[k] = definition
		if !bytes.Equal(now[k], old[k]) {
			changes = append(changes, change)
		}
	}
	for _, t := range g.Hub.Tools(context.Background(), e.principal) {
		switch k := (featureKey{"tools/call", t.Name}); {
		case t.Raw != nil:
		case t.Alias != "":
			now[k] = nil
		case !shown.Lists(t.Name):
			now[k] = nil
			if old[k] != nil {
				changes = append(changes, func() { e.removeFeature(k) })
			}
		default:
			add(k, rpc.Definition(t), func() { e.server.AddTool(rpc.Describe(t), g.toolHandler(e, t.Name)) })
		}
	}
	for _, r := range g.Hub.ResourceTemplates() {
		d := &mcp.ResourceTemplate{URITemplate: r.URI, Name: r.Name, Description: r.Description}
		definition, _ := json.Marshal(d) // strings always encode
		add(featureKey{"resources/templates", r.URI}, definition, func() {
			e.server.AddResourceTemplate(d, g.resourceHandler(e))
		})
	}
	e.ownDefinitions.Store(&now) // before the SDK lists them, so that a client can use what it sees in a list
	for _, change := range changes {
		change()
	}
	e.fast.Reset()
}

// sync updates the SDK's features to what third-party servers offer and the client is shown. The SDK notifies clients
// of the changes.
func (g *Gateway) sync(e *endpoint) {
	x := &e.external
	x.syncMu.Lock()
	defer x.syncMu.Unlock()
	now, old := g.Hub.External(context.Background(), e.principal), x.current()
	shown, before := g.Views.Shown(e.principal, e.wanted, now.Tools), e.shown.Load()
	if old != nil && sameFeatures(now, x.offered) && shown.Equal(*before) {
		return
	}
	e.shown.Store(&shown)
	if before == nil || before.Mode != shown.Mode || before.Connected != shown.Connected {
		g.listOwn(e)
	}
	want := e.externalDefinitions(now)
	e.replaceDefinitions(want) // before the SDK lists them, so that a client can use what it sees in a list
	listed, rejected := g.listExternal(e, want)
	next := want
	if len(rejected) > 0 {
		next = maps.Clone(want)
		maps.DeleteFunc(next, func(k featureKey, _ json.RawMessage) bool { return rejected[k] != nil })
	}
	e.replaceDefinitions(next)
	for k := range x.listed {
		if _, ok := listed[k]; !ok {
			e.removeFeature(k)
		}
	}
	x.offered, x.listed, x.rejected = now, listed, rejected
}

// listExternal adds those of the wanted features to the SDK that the client is shown. It returns all that it lists
// now, and those that the SDK does not accept. The caller holds external.syncMu.
func (g *Gateway) listExternal(e *endpoint, want map[featureKey]json.RawMessage) (listed,
	rejected map[featureKey]json.RawMessage) {
	x := &e.external
	listed, rejected = map[featureKey]json.RawMessage{}, map[featureKey]json.RawMessage{}
	for k, raw := range want {
		if !e.lists(k) {
			continue
		}
		if before, ok := x.listed[k]; ok && bytes.Equal(before, raw) {
			listed[k] = raw
			continue
		}
		if known := x.rejected[k]; known == nil || !bytes.Equal(known, raw) {
			err := g.addFeature(e, k, raw)
			if err == nil {
				listed[k] = raw
				continue
			}
			g.Log.Warn("a third-party server's definition cannot be offered", "principal", e.principal.ID,
				"method", k.method, "name", fault.Clip(k.key), "error", err)
		}
		rejected[k] = raw
	}
	return listed, rejected
}

// replaceDefinitions replaces the definitions of third-party servers.
func (e *endpoint) replaceDefinitions(definitions map[featureKey]json.RawMessage) {
	e.external.definitions.Store(&definitions)
	e.fast.Reset()
}

// addFeature adds a feature to the SDK, which panics on a definition that it does not accept.
func (g *Gateway) addFeature(e *endpoint, k featureKey, raw json.RawMessage) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	if !json.Valid(raw) { // one invalid definition would make a whole list invalid
		return errors.New("it is not JSON")
	}
	switch k.method {
	case "tools/call":
		schema, err := inputSchema(raw)
		if err != nil {
			return err
		}
		goneHandler := func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return nil, errGone }
		e.server.AddTool(&mcp.Tool{Name: k.key, InputSchema: schema}, goneHandler)
	case "prompts/get":
		goneHandler := func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return nil,
				errGone
		}
		e.server.AddPrompt(&mcp.Prompt{Name: k.key}, goneHandler)
	case "resources/read":
		e.server.AddResource(&mcp.Resource{URI: k.key, Name: k.key}, g.resourceHandler(e))
	case "resources/templates":
		// A template may match one of Sandlot's own URIs. Only these reach this handler, as
		// proxyMiddleware answers the others.
		e.server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: k.key, Name: k.key}, g.resourceHandler(e))
	}
	return nil
}

// errGone answers a request that arrives while its feature is removed. Other requests do not
// reach the SDK's handlers, as proxyMiddleware answers them.
var errGone = errors.New("it is gone")

// anyObject is the schema for the SDK of a tool without arguments in headers.
var anyObject = json.RawMessage(`{"type":"object"}`)

// hasHeaders reports whether a tool's definition may require arguments in headers too.
func hasHeaders(raw json.RawMessage) bool { return rpc.MayContain(bytes.ToLower(raw), "x-mcp-header") }

// inputSchema returns what the SDK needs of a tool's input schema: which arguments must be in
// headers too. Most tools have no such arguments, and then a tiny schema is enough, which
// saves much time: the SDK parses a schema many times.
func inputSchema(raw json.RawMessage) (json.RawMessage, error) {
	if hasHeaders(raw) {
		var d struct {
			InputSchema json.RawMessage `json:"inputSchema"`
		}
		err := json.Unmarshal(raw, &d)
		return d.InputSchema, err
	}
	var d struct {
		InputSchema struct {
			Type any `json:"type"`
		} `json:"inputSchema"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, err
	}
	if d.InputSchema.Type != "object" {
		return nil, errors.New("the type of its input schema is not object")
	}
	return anyObject, nil
}

func (e *endpoint) removeFeature(k featureKey) {
	switch k.method {
	case "tools/call":
		e.server.RemoveTools(k.key)
	case "prompts/get":
		e.server.RemovePrompts(k.key)
	case "resources/read":
		e.server.RemoveResources(k.key)
	case "resources/templates":
		e.server.RemoveResourceTemplates(k.key)
	}
}

// isExternal reports whether a third-party server answers the request. If the feature is
// unknown, it waits for servers that have not listed theirs yet: a client may know the feature
// from earlier.
func (g *Gateway) isExternal(ctx context.Context, e *endpoint, method, key string) bool {
	k := featureKey{method, key}
	_, own := e.own()[k]
	if _, ok := e.external.current()[k]; ok || own || !g.Hub.HasExternal() {
		return ok
	}
	g.waitReady(ctx, e)
	g.sync(e)
	_, ok := e.external.current()[k]
	return ok
}
