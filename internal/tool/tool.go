// Package tool defines tools, calls and results, and the interface of their sources. It does
// not depend on a protocol.
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
	// Operation is what policy decides about a call of the tool.
	Operation   policy.Operation
	Title       string
	Description string
	Input       *Object // schema of the arguments, see Decode; nil: it has no arguments
	Output      *Object // schema of Result.Fields; nil: none is declared
	Hints       Hints
	// Elicits: a call may ask the client's user, and wait for the answer.
	Elicits bool
	// Alias is set if this is only another name of the tool Alias. Lists do not contain
	// aliases.
	Alias string
	// Raw is the whole MCP definition of a third-party server's tool, sanitized, and with
	// the name that clients use. Of the other fields, only Name is set then.
	Raw json.RawMessage
}

// Hints are MCP's tool annotations.
type Hints struct {
	ReadOnly    bool
	Destructive bool
	Idempotent  bool
	OpenWorld   bool
}

// Call is one call of a tool.
type Call struct {
	Principal auth.Principal
	Name      string
	Args      json.RawMessage
	// NewSession: a call without a session id gets a new session, not the principal's home.
	NewSession bool
	// Session is the id of the session that the arguments call by its name. The name may be another session's by the
	// time when a person has answered: what policy has decided about, is done. Empty: the arguments count.
	Session string
	// Progress notifies the client of the call's progress, by a line of text or the newest
	// output; nil: the client wants no notifications.
	Progress func(text string)
	// Client made the call; nil: the client can get no requests and notifications.
	Client Client
	// Meta is the part of the client's _meta that a third-party server may see. Inputs is the
	// input of a retried call.
	Meta   map[string]json.RawMessage
	Inputs Inputs
	// Reservation counts a large result for the principal until the client has read it.
	Reservation *limit.Reservation
	// FromSession is the session whose code calls a third-party tool; empty: a client calls it. Code gets the result
	// whole, with up to limit.LargestAnswer bytes. What the tool's program was not allowed to reach is told in that
	// session.
	FromSession string

	door Door // see Door; nil: it is closed
}

// User is whom a call can ask, and tell how far it is.
type User struct {
	Client   Client            // nil: nobody can be asked
	Progress func(text string) // see Call.Progress
}

// User returns whom the call can ask.
func (c Call) User() User { return User{c.Client, c.Progress} }

// NewCall returns a call, with what every caller has to say of one.
func NewCall(p auth.Principal, name string, args json.RawMessage, answer *limit.Reservation) Call {
	return Call{Principal: p, Name: name, Args: args, Reservation: answer}
}

// Result is the result of a call. A call that fails with a fault has none.
type Result struct {
	Content []Content
	// Fields is the structured result: a struct, or nil.
	Fields any
	// Session is the id of the session in which the call ran; empty: in none.
	Session string
	// Notice says what happened to the session before the call; empty: nothing.
	Notice string
	// Summary repeats the fields that a model needs as text, as some clients show models only
	// the text.
	Summary string
	IsError bool
	// Replayed: it is the result of an earlier call with the same idempotency key.
	Replayed bool
	// Raw is the whole MCP result of a third-party server's tool, sanitized. Of the other
	// fields, only IsError is set then.
	Raw json.RawMessage
}

// Blocks returns the content as clients get it. The notice comes last: programs take the first block for the output.
func (r *Result) Blocks() []Content {
	if r.Notice == "" {
		return r.Content
	}
	return append(r.Content[:len(r.Content):len(r.Content)], Text(r.Notice))
}

// Size returns about how many bytes of text and data a result has. The text of Content repeats
// Fields, so only the larger of the two counts.
func (r *Result) Size() int {
	if r == nil {
		return 0
	}
	n := 0
	for _, c := range r.Blocks() {
		switch {
		case c.Text != nil:
			n += len(*c.Text)
		case c.Image != nil:
			n += len(c.Image.Data)
		case c.Resource != nil:
			n += len(c.Resource.Text)
		}
	}
	return len(r.Summary) + len(r.Raw) + max(n, textBytes(reflect.ValueOf(r.Fields)))
}

// textBytes returns the total size of the texts in a value.
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

// Content is one content block: exactly one of Text, Image, Resource and Link is set.
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

// Link refers to a resource that the client can read. Clients get it as text.
type Link struct {
	URI         string
	Name        string
	Description string
	MIME        string
	Size        int64
}

// Text returns a text block.
func Text(s string) Content { return Content{Text: &s} }

// Source is a source of tools. Its methods may be called from several goroutines.
type Source interface {
	// Tools lists the tools that the principal can call, in a stable order.
	Tools(ctx context.Context, p auth.Principal) []Tool
	// Find returns the tool with that name; false: the principal can call none.
	Find(p auth.Principal, name string) (Callable, bool)
}

// Callable is a tool that Source.Find returned for a principal and a name.
type Callable struct {
	Operation policy.Operation
	// Resolve returns the call of another tool that a call stands for. That call is made in its place, and all that is
	// said of a call here is that of the other tool then. After an error, Call is called, and says why; nil: a call
	// stands for itself.
	Resolve func(ctx context.Context, c Call) (Call, error)
	// Detail returns what policy has to know, or an error, which is that of the call too; nil:
	// calls have no detail.
	Detail func(c Call) (Detail, error)
	// Consents: the call asks for consent itself, by Door.Consent, as only it knows all of what it will do.
	Consents bool
	// DetailFollows: the call finds its detail out, and asks with it by Door.Ask.
	DetailFollows bool
	// Implies are operations that a call may do on the way. Before it does, it asks by Door.Ask, or
	// for policy.SecretUse by Door.Reveal.
	Implies []policy.Operation
	// Call calls the tool. The call must have the principal and the name that Find got.
	// Errors are faults.
	Call func(ctx context.Context, c Call) (*Result, error)
}

// MissingExplainer is a Source that can explain why a principal cannot call one of its
// tools, such as one that was removed.
type MissingExplainer interface {
	// WhyMissing returns a fault that explains it, or nil if the source does not know the
	// name, or the principal may not know about the tool.
	WhyMissing(p auth.Principal, name string) error
}

// ResourceReader is a Source that has resources too.
type ResourceReader interface {
	// ResourceTemplates lists the URI templates of the resources.
	ResourceTemplates() []Link
	// File returns the session and the path of a resource that is a file; false: it is none.
	File(uri string) (session, path string, ok bool)
	// Read returns at most max bytes of a resource's data, its media type, and its whole
	// size.
	Read(ctx context.Context, p auth.Principal, uri string, max int) (Blob, int64, error)
}
