package api

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"sandlot/internal/api/metric"
	"sandlot/internal/api/openapi"
	"sandlot/internal/api/protocol"
	"sandlot/internal/tool"
)

const documentPath = "/v1/openapi.json"

const documentText = "Sandlot gives AI agents sandboxes and third-party MCP servers. This is its HTTP API. MCP is at " +
	"/mcp, and not described here. docs/guide/api.md has examples."

// Document describes all routes and, each with a path of its own, the tools.
func Document(version string, tools []tool.Tool) *openapi.Document {
	s := &Server{Config: Config{Metrics: &metric.Metrics{}}}
	var routes []openapi.Route
	for _, r := range s.routes() {
		method, path := openapi.SplitPattern(r.pattern)
		d := descriptions()[r.pattern]
		if retryable(r.pattern) {
			d = describeRetries(d)
		}
		routes = append(routes, openapi.Route{Method: method, Path: path, Operation: r.operation,
			Public: r.audience == everyone, Description: d})
	}
	for _, t := range tools {
		if t.Alias == "" {
			routes = append(routes, toolRoute(t))
		}
	}
	return openapi.New(openapi.Info{Title: "Sandlot", Description: documentText, Version: version}, routes,
		pathParameters, *openapi.Of[protocol.Problem]())
}

// toolRoute describes the call of one tool.
func toolRoute(t tool.Tool) openapi.Route {
	d := describeRetries(descriptions()["POST /v1/tools/{name}"])
	d.ID, d.Summary, d.Text = string(t.Operation)+"."+t.Name, t.Title, t.Description
	d.Request = &openapi.Body{Type: openapi.JSON, Schema: openapi.InputFromJSON(t.Input.Schema())}
	d.Answers = map[int]openapi.Answer{http.StatusOK: toolAnswer(t)}
	return openapi.Route{Method: http.MethodPost, Path: "/v1/tools/" + t.Name, Operation: t.Operation, Description: d}
}

// toolAnswer describes the result of a tool: the fields at the top level and in structuredContent.
func toolAnswer(t tool.Tool) openapi.Answer {
	fields := map[string]any{"type": "object"}
	if t.Output != nil {
		fields = t.Output.Schema()
	}
	s := openapi.FromJSON(map[string]any{"type": "object", "required": []string{"content", "isError"},
		"properties": map[string]any{"isError": map[string]any{"type": "boolean"}, "structuredContent": fields,
			"content": map[string]any{"type": "array", "items": map[string]any{"type": "object",
				"required":   []string{"type"},
				"properties": map[string]any{"type": map[string]any{"type": "string"}}}}}})
	return openapi.Answer{Text: "The result; its fields are at the top level, too.",
		Body: &openapi.Body{Type: openapi.JSON, Schema: s}}
}

// documentLifetime is how long the encoded document is served before it is made again: templates, and with
// them the tools, may have changed.
const documentLifetime = 10 * time.Second

// storedDocument is the encoded document.
type storedDocument struct {
	mu   sync.Mutex // guards the fields, and is held while the document is made
	made time.Time
	text json.RawMessage
}

// describe serves the document.
func (s *Server) describe(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.document.encoded(s.Version, s.Hub.OwnTools))
}

func (d *storedDocument) encoded(version string, tools func() []tool.Tool) json.RawMessage {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.text == nil || time.Since(d.made) > documentLifetime {
		d.text, _ = json.Marshal(Document(version, tools())) // every type in it can be encoded
		d.made = time.Now()
	}
	return d.text
}
