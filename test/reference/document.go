package main

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sandlot/internal/api/openapi"
)

// document is an OpenAPI document as text.
type document struct{ *openapi.Document }

func newDocument(d *openapi.Document) document { return document{d} }

// methods are the methods of routes in the order of their sections.
var methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}

// routes returns the routes, such as "GET /v1/sessions", by their paths: first those outside /v1.
func (d document) routes() []string {
	var all []string
	for route := range d.Routes {
		all = append(all, route)
	}
	slices.SortStableFunc(all, func(x, y string) int {
		methodX, pathX, _ := strings.Cut(x, " ")
		methodY, pathY, _ := strings.Cut(y, " ")
		inX, inY := strings.HasPrefix(pathX, "/v1/"), strings.HasPrefix(pathY, "/v1/")
		if inX != inY {
			return map[bool]int{true: 1, false: -1}[inX]
		}
		return cmp.Or(strings.Compare(pathX, pathY),
			slices.Index(methods, methodX)-slices.Index(methods, methodY))
	})
	return all
}

func (d document) operation(route string) *openapi.Operation {
	method, path, _ := strings.Cut(route, " ")
	return d.Paths[path][strings.ToLower(method)]
}

// table returns the table of the routes.
func (d document) table() string {
	var b strings.Builder
	b.WriteString("| method and path | token | |\n|---|---|---|\n")
	for _, route := range d.routes() {
		o := d.operation(route)
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s |\n", route, anchor(route), token(o), cell(o.Summary))
	}
	return b.String()
}

func token(o *openapi.Operation) string {
	if len(o.Security) == 0 {
		return "no"
	}
	return "yes"
}

// anchor returns the anchor of a heading.
func anchor(heading string) string {
	kept := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading), "")
	return strings.ReplaceAll(kept, " ", "-")
}

// reference returns a section for each route, and one for each type of their bodies.
func (d document) reference() string {
	var b strings.Builder
	for _, route := range d.routes() {
		d.section(&b, route)
	}
	b.WriteString("### Types\n\nAnswers may have more fields than those here: a client ignores what it does not " +
		"know. In a name, `[]` is each entry of a list, and `*` each name of a map.\n\n")
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		fmt.Fprintf(&b, "#### %s\n\n%s\n", name, fields(d.Components.Schemas[name]))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (d document) section(b *strings.Builder, route string) {
	o := d.operation(route)
	fmt.Fprintf(b, "### %s\n\n%s.", route, o.Summary)
	if o.Description != "" {
		b.WriteString(" " + o.Description)
	}
	if o.Act != "" {
		fmt.Fprintf(b, " The operation is `%s`.", o.Act)
	}
	b.WriteString("\n\n")
	if len(o.Parameters) > 0 {
		b.WriteString("| parameter | in | type | |\n|---|---|---|---|\n")
		for _, p := range o.Parameters {
			required := ""
			if p.Required && p.In != "path" {
				required = " Required."
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s%s |\n", p.Name, p.In, typeText(p.Schema), cell(p.Description),
				required)
		}
		b.WriteString("\n")
	}
	if body := o.RequestBody; body != nil {
		d.body(b, body)
	}
	var errors []string
	b.WriteString("| status | answer | |\n|---|---|---|\n")
	for _, status := range slices.Sorted(maps.Keys(o.Responses)) {
		r := o.Responses[status]
		if r.Ref != "" {
			errors = append(errors, status)
			continue
		}
		var kinds []string
		for _, kind := range slices.Sorted(maps.Keys(r.Content)) {
			kinds = append(kinds, strings.TrimSpace("`"+kind+"` "+namedType(r.Content[kind].Schema)))
		}
		var headers []string
		for _, name := range slices.Sorted(maps.Keys(r.Headers)) {
			text := strings.TrimSuffix(r.Headers[name].Description, ".")
			headers = append(headers, fmt.Sprintf(" Header `%s`: %s.", name, text))
		}
		fmt.Fprintf(b, "| %s | %s | %s%s |\n", status, strings.Join(kinds, ", "), cell(r.Description),
			strings.Join(headers, ""))
	}
	fmt.Fprintf(b, "| %s | `%s` [Problem](#problem) | [Errors](#errors) |\n\n", strings.Join(errors, ", "),
		openapi.Problem)
}

// body writes what the body of a request is.
func (d document) body(b *strings.Builder, body *openapi.RequestBody) {
	for _, kind := range slices.Sorted(maps.Keys(body.Content)) {
		optional := ""
		if !body.Required {
			optional = ", which may be missing"
		}
		s := body.Content[kind].Schema
		if s != nil && s.Ref != "" {
			s = d.Components.Schemas[strings.TrimPrefix(s.Ref, schemas)]
		}
		fmt.Fprintf(b, "The body is `%s`%s", kind, optional)
		if s == nil || len(s.Properties) == 0 {
			b.WriteString(".\n\n")
			continue
		}
		fmt.Fprintf(b, ":\n\n%s\n", fields(s))
	}
}
