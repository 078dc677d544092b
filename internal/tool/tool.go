// Package tool defines tools, calls and results, independent of any protocol.
package tool

import (
	"context"
	"encoding/json"
	"reflect"

	"sandlot/internal/auth"
	"sandlot/internal/limit"
	"sandlot/internal/policy"
)

// Tool describes one tool to clients.
type Tool struct {
	Name string
	// Operation is the operation of a call.
	Operation   policy.Operation
	Title       string
	Description string
	Input       *Object // schema of the arguments, see Decode; nil: it takes none
	Output      *Object // schema of Result.Fields; nil: none is declared
	Hints       Hints
	// Elicits: a call may ask the user of its client, and wait for the answer.
	Elicits bool
	// Alias names the tool of which this one is another name, which lists leave out.
	Alias string
	// Raw is the whole MCP definition of a third-party server's tool, sanitized and with
	// the exposed name. Of the other fields, Name alone is set then.
	Raw json.RawMessage
}

// Hints are MCP's tool annotations.
type Hints struct {
	ReadOnly    bool
	Destructive bool
	Idempotent  bool
	OpenWorld   bool
}

// Call is one call.
type Call struct {
	Principal auth.Principal
	Name      string
	Args      json.RawMessage
	// Fresh: a call without a session id gets a session of its own.
	Fresh bool
	// Progress notifies the client of the progress: a line, or the newest output; nil:
	// the client wants no notifications.
	Progress func(text string)
	// Client made the call; nil: it can get no requests and notifications.
	Client Client
	// Meta is the part of the client's _meta that may be passed on, and Inputs the input
	// of a retried call.
	Meta   map[string]json.RawMessage
	Inputs Inputs
	// Held counts a large result for the principal until the client has it.
	Held *limit.Held
}

// Result is the result of a call. A fault is an error instead.
type Result struct {
	Content []Content
	// Fields are the structured result: a struct, or nil.
	Fields any
	// Session is the id of the session in which the call ran; empty: in none.
	Session string
	// Words repeat the fields that a model needs, for clients that show it only the text.
	Words   string
	IsError bool
	// Raw is the whole MCP result of a third-party server's tool, sanitized. Of the other
	// fields, IsError alone is set then.
	Raw json.RawMessage
}

// Size is about how many bytes a result takes in memory: its texts and its data.
func (r *Result) Size() int {
	if r == nil {
		return 0
	}
	n := len(r.Words) + len(r.Raw)
	for _, c := range r.Content {
		switch {
		case c.Text != nil:
			n += len(*c.Text)
		case c.Image != nil:
			n += len(c.Image.Data)
		case c.Resource != nil:
			n += len(c.Resource.Text)
		}
	}
	return n + textBytes(reflect.ValueOf(r.Fields))
}

// textBytes adds up the texts in a value.
func textBytes(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		return textBytes(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			n += textBytes(v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return v.Len()
		}
		for i := range v.Len() {
			n += textBytes(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			n += textBytes(k) + textBytes(v.MapIndex(k))
		}
	}
	return n
}

// Content is one block: exactly one of Text, Image, Resource and Link is set.
type Content struct {
	Text     *string
	Image    *Blob
	Resource *Resource // embedded
	Link     *Link
}

// Blob is data with its media type.
type Blob struct {
	MIME string
	Data []byte
}

// Resource is an embedded resource.
type Resource struct {
	URI  string
	MIME string
	Text string
}

// Link names a resource that can be read.
type Link struct {
	URI         string
	Name        string
	Description string
	MIME        string
	Size        int64
}

// Text returns a text block.
func Text(s string) Content { return Content{Text: &s} }

// Source gives tools. Its methods may be called from many goroutines.
type Source interface {
	// Tools lists what the principal can call, in an order that does not change.
	Tools(ctx context.Context, p auth.Principal) []Tool
	// Find returns the tool of that name that the principal can call; false: there
	// is none.
	Find(p auth.Principal, name string) (Found, bool)
}

// Found is a tool that was looked up, ready to be called.
type Found struct {
	Operation policy.Operation
	// Call calls the tool. The call's principal and name are those that it was
	// found for. Errors are faults.
	Call func(ctx context.Context, c Call) (*Result, error)
}

// Explainer is a Source that can say why a tool is not there which it has, or had.
type Explainer interface {
	// Missing returns a fault that says it, or nil: it knows nothing of that name,
	// or nothing that the principal may know.
	Missing(p auth.Principal, name string) error
}

// Reader gives resources.
type Reader interface {
	// ResourceTemplates lists the URI templates of what can be read.
	ResourceTemplates() []Link
	// Read returns a resource's data, at most max bytes of it, its media type
	// and its whole size.
	Read(ctx context.Context, p auth.Principal, uri string, max int) (Blob, int64, error)
}
