package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"sandlot/internal/api/openapi"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/gateway"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
	"sandlot/internal/once"
	"sandlot/internal/tool"
)

// An endpoint returns the value to send as JSON; nil: the response has no content. It may
// set headers, and writes nothing to w.
type endpoint func(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error)

// respond serves an endpoint.
func (s *Server) respond(e endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, _ := auth.FromContext(r.Context())
		v, err := e(w, r, p)
		if err != nil {
			s.problem(w, r, err)
			return
		}
		once.Begun(r.Context()) // also if there is no memory for the answer
		switch v := v.(type) {
		case nil:
			w.WriteHeader(http.StatusNoContent)
		case hub.Session, hub.MadeToken, hub.Backup:
			writeJSON(w, http.StatusCreated, v)
		case protocol.PullBegun:
			w.Header().Set("Location", v.Progress)
			writeJSON(w, http.StatusAccepted, v)
		case protocol.TemplateRequested:
			w.Header().Set("Location", v.Progress)
			writeJSON(w, http.StatusAccepted, v)
		default:
			writeJSON(w, http.StatusOK, v)
		}
	}
}

// A streamer writes the response itself. It returns an error only while nothing is written;
// the client gets the error.
type streamer func(w http.ResponseWriter, r *http.Request, p auth.Principal) error

// stream serves a streamer, within the principal's limit of streams.
func (s *Server) stream(serve streamer) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		release, err := s.acquire(r.Context(), limit.Streams)
		if err != nil {
			s.limitExceeded(w, r, err)
			return
		}
		defer release()
		p, _ := auth.FromContext(r.Context())
		if err := serve(w, r, p); err != nil {
			s.problem(w, r, err)
		}
	}
}

// An input reads the input of an operation from a request.
type input[In any] func(w http.ResponseWriter, r *http.Request) (In, error)

// An output makes the answer of what an operation returned; nil: the response has no content.
type output[Out any] func(r *http.Request, made Out) any

// operation serves an operation of the hub. Without out, the answer is what the operation returned.
func operation[In, Out any](s *Server, o hub.Op[In, Out], in input[In], out ...output[Out]) http.HandlerFunc {
	return s.respond(func(w http.ResponseWriter, r *http.Request, p auth.Principal) (any, error) {
		given, err := in(w, r)
		if err != nil {
			return nil, err
		}
		made, err := o.Do(r.Context(), s.Hub, p, given)
		if err != nil {
			return nil, err
		}
		if len(out) > 0 {
			return out[0](r, made), nil
		}
		switch any(made).(type) {
		case hub.None, hub.Removed:
			return nil, nil
		}
		return made, nil
	})
}

func noInput(http.ResponseWriter, *http.Request) (hub.None, error) { return hub.None{}, nil }

func noOutput[Out any](*http.Request, Out) any { return nil }

// wholeRequest is the input of an operation that api answers by itself.
func wholeRequest(_ http.ResponseWriter, r *http.Request) (*http.Request, error) { return r, nil }

// parameter returns the input that is a parameter of the path.
func parameter[In ~string](name string) input[In] {
	return func(_ http.ResponseWriter, r *http.Request) (In, error) { return In(r.PathValue(name)), nil }
}

var (
	sessionID    = parameter[hub.SessionID]("id")
	serverName   = parameter[hub.ServerName]("id")
	questionID   = parameter[hub.QuestionID]("id")
	secretName   = parameter[hub.SecretName]("name")
	tokenID      = parameter[hub.TokenID]("id")
	templateName = parameter[hub.TemplateName]("name")
	imageName    = parameter[hub.ImageName]("name")
	pullID       = parameter[hub.PullID]("id")
)

func writeJSON(w http.ResponseWriter, status int, v any) { write(w, status, "application/json", v) }

func writeProblem(w http.ResponseWriter, p protocol.Problem) {
	write(w, p.Status, "application/problem+json", p)
}

func write(w http.ResponseWriter, status int, kind string, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // every type that is passed can be encoded
	if err := reservedFor(w).CountAnswer(context.Background(), int64(b.Len())); err != nil {
		writeProblem(w, protocol.NewProblem(fault.From(err)))
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails when the client is gone
}

// problem sends an error as problem details (RFC 9457).
func (s *Server) problem(w http.ResponseWriter, r *http.Request, err error) {
	if refusal, ok := errors.AsType[*tool.ExternalError](err); ok {
		writeProblem(w, refusalProblem(refusal))
		return
	}
	if other, ok := errors.AsType[*statusError](err); ok {
		writeProblem(w, protocol.ProblemAs(other.status, other.title, other.fault))
		return
	}
	f := fault.From(err)
	if cause := f.Unwrap(); cause != nil && f.HTTP() >= 500 {
		s.Log.WarnContext(r.Context(), "request failed", "path", r.URL.Path, "fault", f.Code(), "cause", cause)
	}
	if scope, ok := f.Context["required_scope"].(string); ok && f.Kind == fault.Forbidden { // RFC 6750, 3.1
		w.Header().Set("WWW-Authenticate", `Bearer realm="sandlot", error="insufficient_scope", scope="`+scope+`"`)
	}
	writeProblem(w, protocol.NewProblem(f))
}

// refusalProblem returns the problem details for the error of a third-party server.
func refusalProblem(refusal *tool.ExternalError) protocol.Problem {
	kind, status := fault.Connection, http.StatusBadGateway
	switch refusal.Code {
	case -32602:
		kind, status = fault.InvalidParameters, http.StatusBadRequest
	case -32002: // resource not found, up to revision 2025-11-25
		kind, status = fault.NotFound, http.StatusNotFound
	}
	f := fault.New(kind, "%s", refusal.Message).With("rpc_code", refusal.Code)
	if kind == fault.NotFound {
		f.Advice = []string{"Look at what the server offers: GET /v1/connections/{id}, or " +
			"`sandlot mcp inspect NAME`; not all that can be read is in a list"}
	}
	if json.Valid(refusal.Data) {
		f.With("rpc_data", refusal.Data)
	}
	p := protocol.ProblemAs(status, f.Code(), f)
	p.Detail = fmt.Sprintf("the MCP server refused: %s (%d)", refusal.Message, refusal.Code)
	return p
}

// statusError is an error with a status that no kind of fault has.
type statusError struct {
	status int
	title  string
	fault  *fault.Error
}

func (e *statusError) Error() string { return e.fault.Error() }

// wrongRequest returns an error for a request that HTTP itself has a status for.
func wrongRequest(status int, title, format string, args ...any) error {
	return &statusError{status, title, fault.New(fault.InvalidParameters, format, args...)}
}

// limitExceeded sends the error of an exceeded limit: as JSON-RPC at /mcp, else as problem details.
func (s *Server) limitExceeded(w http.ResponseWriter, r *http.Request, err error) {
	if r.URL.Path == "/mcp" {
		gateway.Refuse(w, fault.From(err))
		return
	}
	closeAfter(w, err)
	s.problem(w, r, err)
}

// closeAfter closes the connection after the response, since the rest of the body is not read.
func closeAfter(w http.ResponseWriter, err error) {
	if fault.Is(err, fault.ResourceLimit) {
		w.Header().Set("Retry-After", gateway.RetryAfter)
	}
	w.Header().Set("Connection", "close")
}

// decode reads a JSON object of at most limit bytes into q, a struct with all fields that
// are allowed. expected completes the error text: "the body must be a JSON object with …".
func decode(w http.ResponseWriter, r *http.Request, limit int64, q any, expected string) error {
	if err := checkContentType(r); err != nil {
		return err
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if f, ok := errors.AsType[*fault.Error](err); ok { // from body.Read
		closeAfter(w, f)
		return f
	}
	text = bytes.TrimSpace(text)
	switch {
	case err != nil:
	case len(text) == 0:
		err = io.EOF
	case !utf8.Valid(text):
		err = errors.New("it is not UTF-8")
	case text[0] != '{':
		err = errors.New("it is not an object")
	case !json.Valid(text):
		err = json.Unmarshal(text, &struct{}{}) // says where the mistake is
	default:
		if whole, raw := q.(*json.RawMessage); raw {
			*whole = text
			return nil
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err = d.Decode(q)
	}
	if err != nil {
		return fault.Wrap(fault.InvalidParameters, err, "the body must be a JSON object with %s: %v", expected, err)
	}
	return nil
}

// checkContentType returns an error for a body of a type that is not JSON. A request without a type is
// JSON, and so is one with the type that `curl -d` gives to anything.
func checkContentType(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	if given == "" || r.ContentLength == 0 {
		return nil
	}
	kind, _, err := mime.ParseMediaType(given)
	if err == nil && (kind == openapi.JSON || kind == "application/x-www-form-urlencoded" ||
		strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return wrongRequest(http.StatusUnsupportedMediaType, "UNSUPPORTED_MEDIA_TYPE",
		"the body must be JSON, with the Content-Type application/json; it has %q", fault.Clip(given))
}

// decodeOptional is decode for an optional body.
func decodeOptional(w http.ResponseWriter, r *http.Request, limit int64, q any, expected string) error {
	err := decode(w, r, limit, q, expected)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
