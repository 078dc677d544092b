// Package finder has the tools by which a model finds and calls what third-party servers offer without having all
// of it in a list: search_tools, describe_tools and call_tool.
//
// The check of arguments is our own: google/jsonschema-go, which the SDK uses, stops at the first fault, and
// its time and memory depend on the schema, which may be hostile. This one names all faults, takes a bounded
// number of steps, and leaves to the server what it does not know: it must not refuse what the server would
// take.
//
// Search is SQLite's FTS5 in memory, one index for each principal, so that neither hits nor ranking depend on
// others. A row is removed by the texts that it was made of, made again of the old definition, so that what
// FTS5 counts for the ranking stays exact. Two indexes are made at once, 50 ms after a change, and after one
// that took long there is a pause of four times as long. An index of 500 tools takes 19 ms of a processor.
package finder

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
	"sandlot/internal/toolview"
)

// Connections are the third-party servers of all principals, as *servers.Servers has them.
type Connections interface {
	// List returns a principal's servers, and Info one of them with what it offers.
	List(p auth.Principal) []servers.Info
	Info(p auth.Principal, what string) (servers.Info, catalog.Catalog, error)
	// Tools returns the tools that can be called: the same slice while nothing has changed.
	Tools(ctx context.Context, p auth.Principal) []tool.Tool
	// WaitReady waits until it is known what all of a principal's servers offer, or ctx ends.
	WaitReady(ctx context.Context, p auth.Principal) bool
	// WhyMissing returns why a tool cannot be called; nil: it can, or is unknown.
	WhyMissing(p auth.Principal, name string) error
}

// Finder implements tool.Source.
type Finder struct {
	connections Connections
	isOwn       func(name string) bool
	tools       []tool.Tool

	ahead ahead

	mu      sync.Mutex
	indexes map[string]*index // by the principal's id
}

// New returns a Finder for the third-party servers c. Function isOwn reports whether a name is that of one of Sandlot's
// own tools.
func New(c Connections, isOwn func(name string) bool, log *slog.Logger) *Finder {
	f := &Finder{connections: c, isOwn: isOwn, tools: definitions(), indexes: map[string]*index{}}
	f.ahead = ahead{log: log, index: f.makeIndex, stop: make(chan struct{}), waiting: map[string]auth.Principal{}}
	return f
}

type searchInput struct {
	Query  string `json:"query,omitempty" jsonschema:"Words. Leave it out for a list of the servers."`
	Server string `json:"server,omitempty" jsonschema:"Search only this server."`
	Limit  int64  `json:"limit,omitempty"`
}

type describeInput struct {
	Names []string `json:"names" jsonschema:"At most 20, as search_tools gives them."`
}

type callInput struct {
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments,omitempty" jsonschema:"Those of the tool."`
}

// The bounds of search_tools and describe_tools.
const (
	defaultHits, maxHits = 10, 25
	maxNames             = 20
)

// definitions are the tools as clients see them.
func definitions() []tool.Tool {
	limit := tool.Prop{Name: "limit", Default: defaultHits}.Range(1, maxHits)
	hints := tool.Hints{ReadOnly: true, Idempotent: true}
	// All of them elicit, for the way that their calls go: they may be called though they are not listed, and
	// call_tool stands for tools that ask.
	return []tool.Tool{
		{Name: toolview.SearchTools, Operation: policy.ToolList, Elicits: true, Hints: hints, Title: "Search tools",
			Description: "Find tools, prompts and resources of third-party servers: names, arguments (? is " +
				"optional), one line.",
			Input: tool.InputOf[searchInput](limit)},
		{Name: toolview.DescribeTools, Operation: policy.ToolList, Elicits: true, Hints: hints,
			Title: "Describe tools", Description: "Return full definitions.", Input: tool.InputOf[describeInput]()},
		{Name: toolview.CallTool, Operation: policy.MCPCall, Elicits: true, Title: "Call a tool",
			Hints:       tool.Hints{Destructive: true, OpenWorld: true},
			Description: "Call a tool by its name, listed or not. Arguments are checked first.",
			Input:       tool.InputOf[callInput]()},
	}
}

// Tools implements tool.Source.
func (f *Finder) Tools(context.Context, auth.Principal) []tool.Tool { return f.tools }

// Find implements tool.Source.
func (f *Finder) Find(_ auth.Principal, name string) (tool.Callable, bool) {
	switch name {
	case toolview.SearchTools:
		return tool.Callable{Operation: policy.ToolList, Call: f.search}, true
	case toolview.DescribeTools:
		return tool.Callable{Operation: policy.ToolList, Call: f.describe}, true
	case toolview.CallTool:
		// What is left of a call that stands for no other is one for which nothing runs.
		return tool.Callable{Operation: policy.ToolFind, Resolve: f.resolve,
			Call: func(ctx context.Context, c tool.Call) (*tool.Result, error) {
				if _, err := f.resolve(ctx, c); err != nil {
					return nil, err
				}
				return nil, fault.New(fault.Connection, "the tools have just changed; call again")
			}}, true
	}
	return tool.Callable{}, false
}

// definition returns one of the tools.
func (f *Finder) definition(name string) tool.Tool {
	for _, t := range f.tools {
		if t.Name == name {
			return t
		}
	}
	return tool.Tool{Name: name}
}

// search is search_tools.
func (f *Finder) search(ctx context.Context, c tool.Call) (*tool.Result, error) {
	in, err := tool.Decode[searchInput](f.definition(c.Name), c.Args)
	if err != nil {
		return nil, err
	}
	found, err := f.Search(ctx, c.Principal, in.Query, in.Server, int(in.Limit))
	if err != nil {
		return nil, err
	}
	return &tool.Result{Content: []tool.Content{tool.Text(found.String())}}, nil
}

// maxDescribed is how many bytes of definitions a result has; the first one may have more.
const maxDescribed = 64 << 10

// describe is describe_tools.
func (f *Finder) describe(ctx context.Context, c tool.Call) (*tool.Result, error) {
	in, err := tool.Decode[describeInput](f.definition(c.Name), c.Args)
	if err != nil {
		return nil, err
	}
	if n := len(in.Names); n == 0 || n > maxNames {
		return nil, fault.Argument("names", "argument \"names\" has %d names, but must have 1 to %d", n, maxNames)
	}
	size, missing := 0, 0
	var blocks []string
	for i, name := range in.Names {
		text, ok := f.Describe(ctx, c.Principal, name)
		if !ok {
			missing++
		}
		if size += len(text); i > 0 && size > maxDescribed {
			blocks = append(blocks, fmt.Sprintf("There is no room for the rest: ask for %s again.",
				strings.Join(in.Names[i:], ", ")))
			break
		}
		blocks = append(blocks, text)
	}
	return &tool.Result{Content: []tool.Content{tool.Text(strings.Join(blocks, "\n"))},
		IsError: missing == len(in.Names)}, nil
}

// Describe returns the whole definition of a tool, prompt or resource of a principal's third-party servers, by the name
// or URI that clients use; false: the text says why there is none.
func (f *Finder) Describe(ctx context.Context, p auth.Principal, name string) (text string, ok bool) {
	all := f.entries(ctx, p)
	var names []string
	for _, e := range all {
		if e.kind == kindServer || !inScope(p, e.kind) {
			continue
		}
		if e.exposed == name && e.held == "" {
			text = string(e.raw)
			if how := f.howIs(p, e.server); how != "" {
				text += "\n" + fmt.Sprintf("Its server %s %s.", e.server, how)
			}
			return text, true
		}
		names = append(names, e.exposed)
	}
	shown := spec.ClipName(name)
	if policy.InScope(p, policy.MCPCall) {
		if why := f.connections.WhyMissing(p, name); why != nil {
			return shown + ": " + why.Error(), false
		}
	}
	return fmt.Sprintf("%s: there is no such third-party tool%s", shown, fault.DidYouMean(name, names)), false
}

// resolve returns the call that a call of call_tool stands for. Arguments that do not fit the schema of a third-party
// tool are an error. If there is no such tool, whoever makes the call says so.
func (f *Finder) resolve(ctx context.Context, c tool.Call) (tool.Call, error) {
	args, ok := rawjson.Members(orEmpty(c.Args))
	if !ok {
		return c, fault.Argument("arguments", "call_tool's arguments must be one JSON object, without a member twice")
	}
	for k := range args {
		if k != "name" && k != "arguments" {
			return c, fault.Argument(fault.Clip(k), "call_tool has no argument %q: the tool's arguments belong into "+
				"\"arguments\"", fault.Clip(k))
		}
	}
	name := rawjson.Text(args["name"])
	if name == "" || name == toolview.CallTool {
		return c, fault.Argument("name", "argument \"name\" must be the name of a tool, such as search_tools finds")
	}
	inner := orEmpty(args["arguments"])
	if rawjson.IsString(inner) { // some models write an object's JSON into a string
		inner = orEmpty(json.RawMessage(rawjson.Text(inner)))
	}
	if !rawjson.IsObject(inner) || !json.Valid(inner) {
		return c, fault.Argument("arguments", "argument \"arguments\" must be an object")
	}
	if policy.InScope(c.Principal, policy.MCPCall) && !f.isOwn(name) {
		if err := f.check(ctx, c.Principal, name, inner); err != nil {
			return c, err
		}
	}
	c.Name, c.Args = name, inner
	return c, nil
}

// check compares arguments with the schema of a third-party tool, if there is such a tool.
func (f *Finder) check(ctx context.Context, p auth.Principal, name string, args json.RawMessage) error {
	for range 2 {
		for _, t := range f.connections.Tools(ctx, p) {
			if t.Name == name {
				return checkArguments(name, t.Raw, catalog.TypedArguments(t.Raw, args)) // as the call has them
			}
		}
		if !f.waitReady(ctx, p) {
			break
		}
	}
	return nil
}

// readyTimeout is how long a search, or a call of a tool that is not known, waits for servers that have not listed what
// they offer yet.
const readyTimeout = 10 * time.Second

// waitReady reports whether it had to wait.
func (f *Finder) waitReady(ctx context.Context, p auth.Principal) bool {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return f.connections.WaitReady(ctx, p)
}

// orEmpty returns raw, or an empty object in place of nothing.
func orEmpty(raw json.RawMessage) json.RawMessage {
	if text := strings.TrimSpace(string(raw)); text == "" || text == "null" {
		return json.RawMessage("{}")
	}
	return raw
}
