// Package openapi makes the description of the HTTP API, an OpenAPI document, of the routes
// and of the Go types of their requests and answers.
package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"sandlot/internal/policy"
)

// Version is the version of OpenAPI, whose schemas are those of JSON Schema 2020-12.
const Version = "3.1.0"

// Types of contents.
const (
	JSON    = "application/json"
	Problem = "application/problem+json"
	Bytes   = "application/octet-stream"
	HTML    = "text/html"
	Plain   = "text/plain"
	Events  = "text/event-stream"
)

// Document is an OpenAPI document.
type Document struct {
	OpenAPI    string          `json:"openapi"`
	Info       Info            `json:"info"`
	Servers    []Server        `json:"servers,omitempty"`
	Tags       []Tag           `json:"tags"`
	Paths      map[string]Path `json:"paths"`
	Components Components      `json:"components"`
}

// Info says what a document is about.
type Info struct {
	Title       string `json:"title"`
	Description string `json:"description"`
	Version     string `json:"version"`
}

// Server is where the API is.
type Server struct {
	URL string `json:"url"`
}

// Tag is a group of operations.
type Tag struct {
	Name string `json:"name"`
}

// Path has the operations of one path, by their methods in lower case.
type Path map[string]*Operation

// Components has what the operations refer to.
type Components struct {
	Schemas   map[string]*jsonschema.Schema `json:"schemas"`
	Responses map[string]Response           `json:"responses"`
	Security  map[string]map[string]string  `json:"securitySchemes"`
}

// Operation is one operation of the document.
type Operation struct {
	ID          string                `json:"operationId"`
	Tags        []string              `json:"tags"`
	Summary     string                `json:"summary"`
	Description string                `json:"description,omitempty"`
	Parameters  []Parameter           `json:"parameters,omitempty"`
	RequestBody *RequestBody          `json:"requestBody,omitempty"`
	Responses   map[string]Response   `json:"responses"`
	Security    []map[string][]string `json:"security"`
	// Act is the policy's name of what the operation does; empty: the tool in the path has one.
	Act policy.Operation `json:"x-sandlot-operation,omitempty"`
}

// Parameter is a parameter of an operation.
type Parameter struct {
	Name        string             `json:"name"`
	In          string             `json:"in"` // path, query or header
	Description string             `json:"description,omitempty"`
	Required    bool               `json:"required,omitempty"`
	Schema      *jsonschema.Schema `json:"schema"`
}

// RequestBody is the body of a request.
type RequestBody struct {
	Description string           `json:"description,omitempty"`
	Required    bool             `json:"required,omitempty"`
	Content     map[string]Media `json:"content"`
}

// Media is a body of one type.
type Media struct {
	Schema  *jsonschema.Schema `json:"schema,omitempty"`
	Example any                `json:"example,omitempty"`
}

// Response is the response of one status, or a reference to one of the components.
type Response struct {
	Ref         string            `json:"$ref,omitempty"`
	Description string            `json:"description,omitempty"`
	Headers     map[string]Header `json:"headers,omitempty"`
	Content     map[string]Media  `json:"content,omitempty"`
}

// Header is a header of a response.
type Header struct {
	Description string             `json:"description"`
	Schema      *jsonschema.Schema `json:"schema"`
}

// Route is what a document needs to know of a route.
type Route struct {
	Method, Path string // as the document has them
	Operation    policy.Operation
	Public       bool // it needs no token
	Description
}

// Description describes a route beyond its pattern and its operation.
type Description struct {
	// ID is the id in the document, which is the operation, or begins with it and a dot; empty: it is the operation.
	ID            string
	Summary, Text string
	Parameters    []Parameter // of the query and the header
	Request       *Body       // nil: the route reads no body
	Optional      bool        // the body may be missing
	Answers       map[int]Answer
	Errors        []int // statuses of errors, beside those that every route has
}

// Answer is a response that is no error.
type Answer struct {
	Text    string
	Body    *Body // nil: no body
	Headers []string
}

// Body is a body in a request or an answer.
type Body struct {
	Type    string // such as JSON
	Schema  *Schema
	Example any
}

// Schema is a schema, and under which name it is in the document; an empty name: in its place.
type Schema struct {
	Name string
	*jsonschema.Schema
}

// Query returns an optional parameter of the query.
func Query(name, text string, s *jsonschema.Schema) Parameter {
	return Parameter{Name: name, In: "query", Description: text, Schema: s}
}

// RequestHeader returns an optional header of a request.
func RequestHeader(name, text string, s *jsonschema.Schema) Parameter {
	return Parameter{Name: name, In: "header", Description: text, Schema: s}
}

// SplitPattern returns the method and the path of a pattern of http.ServeMux, as a document has them.
func SplitPattern(pattern string) (method, path string) {
	method, path, _ = strings.Cut(pattern, " ")
	return method, strings.NewReplacer("{$}", "", "...}", "}").Replace(path)
}

// builder makes a document.
type builder struct {
	Document
	parameters map[string]Parameter // of paths, by their names
}

// New returns the document of the routes. parameters are those of the paths by their names, where a name
// with the folder before it ("sessions/id") goes before the name alone ("id"). It panics when the
// routes cannot be described: two have one id, two types have one name, or a parameter is unknown.
func New(info Info, routes []Route, parameters map[string]Parameter, problem Schema) *Document {
	b := &builder{parameters: parameters, Document: Document{OpenAPI: Version, Info: info, Servers: []Server{{"/"}},
		Paths: map[string]Path{}, Tags: []Tag{}, Components: Components{Schemas: map[string]*jsonschema.Schema{},
			Responses: map[string]Response{},
			Security:  map[string]map[string]string{"bearer": {"type": "http", "scheme": "bearer"}}}}}
	ids := map[string]bool{}
	for _, r := range routes {
		o := b.operation(r, problem)
		if ids[o.ID] {
			panic(fmt.Sprintf("openapi: two operations have the id %q", o.ID))
		}
		ids[o.ID] = true
		if b.Paths[r.Path] == nil {
			b.Paths[r.Path] = Path{}
		}
		b.Paths[r.Path][strings.ToLower(r.Method)] = o
		if t := (Tag{o.Tags[0]}); !slices.Contains(b.Tags, t) {
			b.Tags = append(b.Tags, t)
		}
	}
	return &b.Document
}

func (b *builder) operation(r Route, problem Schema) *Operation {
	o := &Operation{ID: cmp.Or(r.ID, string(r.Operation)), Act: r.Operation, Summary: r.Summary, Description: r.Text,
		Tags: []string{tag(r.Path)}, Responses: map[string]Response{}, Security: []map[string][]string{}}
	if !r.Public { // over the owner's socket, and where the settings say so, no token is needed
		o.Security = []map[string][]string{{"bearer": {}}}
	}
	o.Parameters = append(b.pathParameters(r.Path), r.Parameters...)
	if r.Request != nil {
		o.RequestBody = &RequestBody{Required: !r.Optional, Content: b.content(r.Request)}
	}
	for status, a := range r.Answers {
		headers := map[string]Header{}
		for _, h := range a.Headers {
			name, text, _ := strings.Cut(h, ": ")
			headers[name] = Header{text, &jsonschema.Schema{Type: "string"}}
		}
		o.Responses[strconv.Itoa(status)] = Response{Description: cmp.Or(a.Text, http.StatusText(status)),
			Headers: headers, Content: b.content(a.Body)}
	}
	for _, status := range r.errors() {
		key, shared := strconv.Itoa(status), b.problem(status, problem)
		if own, is := o.Responses[key]; is { // an answer of that status, which is not the only one
			if own.Content == nil {
				own.Content = map[string]Media{}
			}
			maps.Copy(own.Content, b.Components.Responses[shared.name()].Content)
			shared = own
		}
		o.Responses[key] = shared
	}
	return o
}

// errors returns the statuses of a route's errors.
func (r *Route) errors() []int {
	all := append([]int{http.StatusForbidden, http.StatusInternalServerError}, r.Errors...)
	if !r.Public {
		all = append(all, http.StatusUnauthorized, http.StatusTooManyRequests, http.StatusServiceUnavailable)
	}
	if r.Request != nil {
		all = append(all, http.StatusBadRequest)
		if r.Request.Type == JSON {
			all = append(all, http.StatusUnsupportedMediaType)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (b *builder) problem(status int, s Schema) Response {
	name := strings.ReplaceAll(http.StatusText(status), " ", "")
	b.Components.Responses[name] = Response{Description: http.StatusText(status),
		Content: b.content(&Body{Type: Problem, Schema: &s})}
	return Response{Ref: responses + name}
}

const responses = "#/components/responses/"

// name returns the name of the component to which a response refers.
func (r Response) name() string { return strings.TrimPrefix(r.Ref, responses) }

func (b *builder) content(body *Body) map[string]Media {
	if body == nil {
		return nil
	}
	m := Media{Example: body.Example}
	if s := body.Schema; s != nil {
		m.Schema = s.Schema
		if s.Name != "" {
			b.define(s)
			m.Schema = &jsonschema.Schema{Ref: "#/components/schemas/" + s.Name}
		}
	}
	return map[string]Media{body.Type: m}
}

func (b *builder) define(s *Schema) {
	if there := b.Components.Schemas[s.Name]; there != nil && !jsonschema.Equal(asJSON(there), asJSON(s.Schema)) {
		panic(fmt.Sprintf("openapi: two types have the name %q", s.Name))
	}
	b.Components.Schemas[s.Name] = s.Schema
}

var pathParameter = regexp.MustCompile(`(\w+)/\{(\w+)\}`)

func (b *builder) pathParameters(path string) (list []Parameter) {
	for _, m := range pathParameter.FindAllStringSubmatch(path, -1) {
		p, known := b.parameters[m[1]+"/"+m[2]]
		if !known {
			p, known = b.parameters[m[2]]
		}
		if !known {
			panic(fmt.Sprintf("openapi: what is %s in %s?", m[0], path))
		}
		p.Name, p.In, p.Required = m[2], "path", true
		list = append(list, p)
	}
	return list
}

// tag returns the group of a path: its first part after /v1.
func tag(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, "/v1"), "/"), "/")
	if !strings.HasPrefix(path, "/v1/") && first != "install" && first != "oauth" {
		return "server"
	}
	return strings.TrimSuffix(first, ".json")
}

// Routes yields all operations by their method and path, such as "GET /healthz", in a stable order.
func (d *Document) Routes(yield func(endpoint string, o *Operation) bool) {
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			if !yield(strings.ToUpper(method)+" "+path, d.Paths[path][method]) {
				return
			}
		}
	}
}
