package servers

import (
	"context"
	"encoding/json"
	"strings"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/rawjson"
	"sandlot/internal/servers/catalog"
	"sandlot/internal/servers/instance"
	"sandlot/internal/servers/spec"
)

// Prompt gets a prompt of one server, by the server's own name for it or by the one that clients use. It
// returns the MCP result object, made safe. The server cannot ask the user: there is no MCP client.
func (servers *Servers) Prompt(ctx context.Context, p auth.Principal, what, name string,
	args map[string]string) (json.RawMessage, error) {
	s, c, err := servers.withCatalog(ctx, p, what)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range c.Prompts {
		if names = append(names, d.Remote); d.Remote != name && d.Exposed != name {
			continue
		}
		params := rawjson.Object{"name": rawjson.Quote(d.Remote)}
		if len(args) > 0 {
			if params["arguments"], err = json.Marshal(args); err != nil {
				return nil, err
			}
		}
		return s.safeResult(ctx, &instance.Request{Method: "prompts/get", Params: params})
	}
	clipped := spec.ClipName(name)
	return nil, fault.New(fault.NotFound, "%s has no prompt %q%s", s.Title(), clipped, fault.DidYouMean(name, names)).
		With("prompt", clipped).With("prompts", names[:min(len(names), 100)])
}

// Resource reads a resource of one server, by the server's own URI or by the one that clients use; the
// URI need not be in a list. It returns the MCP result object of at most 8 MiB, made safe.
func (servers *Servers) Resource(ctx context.Context, p auth.Principal, what, uri string) (json.RawMessage, error) {
	if uri == "" || len(uri) > 4096 || spec.HasControl(uri) {
		return nil, fault.Argument("uri",
			"uri must have 1 to 4096 bytes, and no control characters")
	}
	s, c, err := servers.withCatalog(ctx, p, what)
	if err != nil {
		return nil, err
	}
	if id, own, ok := catalog.SplitExposedURI(uri); ok && id == strings.ToLower(catalog.SafeName(s.ID)) {
		uri = own
	}
	for _, d := range c.Resources {
		if d.Exposed == uri {
			uri = d.Remote
			break
		}
	}
	return s.safeResult(ctx, &instance.Request{Method: "resources/read",
		Params: rawjson.Object{"uri": rawjson.Quote(uri)}})
}

// withCatalog returns a principal's server and its catalog. It starts the server if its lists have never
// been read.
func (servers *Servers) withCatalog(ctx context.Context, p auth.Principal, what string) (*server, catalog.Catalog,
	error) {
	s, err := servers.find(p, what)
	if err != nil {
		return nil, catalog.Catalog{}, err
	}
	if !s.record().Catalog.Loaded {
		if err := s.ready(ctx); err != nil {
			return nil, catalog.Catalog{}, err
		}
	}
	return s, s.record().Catalog, nil
}

// safeResult makes a request that is no tool call, and returns the result, made safe.
func (s *server) safeResult(ctx context.Context, q *instance.Request) (json.RawMessage, error) {
	defer q.Release()
	raw, err := s.request(ctx, q)
	if err != nil {
		return nil, err
	}
	safe, err := catalog.OtherResult(q.Method, rawjson.Text(q.Params["uri"]), raw)
	if err == nil {
		err = q.Deliver(ctx, safe)
	}
	return safe, s.withAdvice(err)
}
