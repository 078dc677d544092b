package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
	"sandlot/internal/gateway/rpc"
	"sandlot/internal/hub"
	"sandlot/internal/tool"
)

// featureKey is one thing of a third-party server, by the method that uses it.
type featureKey struct{ method, key string }

// same says whether the lists are the very same ones, which nobody changes.
func same(a, b hub.Offered) bool {
	return identical(a.Tools, b.Tools) && identical(a.Prompts, b.Prompts) &&
		identical(a.Resources, b.Resources) && identical(a.Templates, b.Templates)
}

func identical[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// ourScheme begins the URIs that we answer, whatever others offer.
const ourScheme = "sandlot:"

func ours(uri string) bool {
	return len(uri) >= len(ourScheme) && strings.EqualFold(uri[:len(ourScheme)], ourScheme)
}

// definitions are those of third-party servers that are offered. None takes the
// place of ours, and of two of the same name the first one counts.
func (e *endpoint) definitions(o hub.Offered) map[featureKey]json.RawMessage {
	all := make(map[featureKey]json.RawMessage, len(o.Tools)+len(o.Prompts)+len(o.Resources)+len(o.Templates))
	add := func(method, key string, raw json.RawMessage) {
		k := featureKey{method, key}
		_, own := e.own[k]
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
	for method, items := range map[string][]tool.Item{"resources/read": o.Resources, "resources/templates": o.Templates} {
		for _, i := range items {
			if !ours(i.Key) {
				add(method, i.Key, i.Raw)
			}
		}
	}
	return all
}

// features brings what the SDK knows of third-party servers up to date; it
// announces what changed.
func (g *Gateway) features(e *endpoint) {
	e.syncing.Lock()
	defer e.syncing.Unlock()
	now := g.Hub.External(context.Background(), e.principal)
	if e.third != nil && same(now, e.offered) {
		return
	}
	old, want := e.passedOn(), e.definitions(now)
	e.setPassedOn(want) // before the SDK hears of it: what it lists can be called
	next, refused := want, map[featureKey]json.RawMessage{}
	for k, raw := range want {
		if before, ok := old[k]; ok && bytes.Equal(before, raw) {
			continue
		}
		again := e.refused[k] != nil && bytes.Equal(e.refused[k], raw)
		if !again {
			err := g.offer(e, k, raw)
			if err == nil {
				continue
			}
			g.Log.Warn("a third-party server's definition cannot be offered", "principal", e.principal.ID, "method", k.method, "name", fault.Clip(k.key), "error", err)
		}
		if len(refused) == 0 {
			next = maps.Clone(want)
		}
		refused[k] = raw
		delete(next, k)
	}
	e.setPassedOn(next)
	for k := range old {
		if _, ok := next[k]; !ok {
			e.withdraw(k)
		}
	}
	e.offered, e.refused = now, refused
}

// offer tells the SDK of one. It panics on what it does not like.
func (g *Gateway) offer(e *endpoint, k featureKey, raw json.RawMessage) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	if !json.Valid(raw) { // it would spoil the whole list
		return errors.New("it is not JSON")
	}
	switch k.method {
	case "tools/call":
		schema, err := needed(raw)
		if err != nil {
			return err
		}
		e.server.AddTool(&mcp.Tool{Name: k.key, InputSchema: schema}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, errElsewhere
		})
	case "prompts/get":
		e.server.AddPrompt(&mcp.Prompt{Name: k.key}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return nil, errElsewhere
		})
	case "resources/read":
		e.server.AddResource(&mcp.Resource{URI: k.key, Name: k.key}, g.reader(e))
	case "resources/templates":
		// A template may match a URI of ours: whichever the SDK finds, what
		// comes there is ours, as all else is passed on before.
		e.server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: k.key, Name: k.key}, g.reader(e))
	}
	return nil
}

var errElsewhere = errors.New("it is gone")

// anyObject stands for schemas of which the SDK needs nothing.
var anyObject = json.RawMessage(`{"type":"object"}`)

// headed says whether a tool's definition may want arguments in headers too.
func headed(raw json.RawMessage) bool { return rpc.Mentions(bytes.ToLower(raw), "x-mcp-header") }

// needed is what the SDK needs of a tool's input schema: which arguments come in
// headers too. It takes schemas apart many times, and most have none of that.
func needed(raw json.RawMessage) (json.RawMessage, error) {
	if headed(raw) {
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

func (e *endpoint) withdraw(k featureKey) {
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

func (e *endpoint) passedOn() map[featureKey]json.RawMessage {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.third
}

func (e *endpoint) setPassedOn(m map[featureKey]json.RawMessage) {
	e.mu.Lock()
	e.third = m
	e.mu.Unlock()
	e.fast.Forget()
}

// foreign says whether a third-party server answers that. What is new may be
// used before it is announced.
func (g *Gateway) foreign(ctx context.Context, e *endpoint, method, key string) bool {
	k := featureKey{method, key}
	_, own := e.own[k]
	if _, ok := e.passedOn()[k]; ok || own || !g.Hub.HasExternal() {
		return ok
	}
	g.ready(ctx, e)
	g.features(e)
	_, ok := e.passedOn()[k]
	return ok
}
