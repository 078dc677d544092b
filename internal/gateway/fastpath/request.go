package fastpath

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/gateway/rpc"
	"sandlot/internal/limit"
	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
	"sandlot/internal/toolview"
)

// cacheable is a tool call, or a request for a list, that the fast path may answer.
type cacheable struct {
	method    string
	id        json.RawMessage
	name      string
	args      json.RawMessage
	cursor    string // for a list; empty: the first page
	meta      rpc.Object
	session   string
	stateless bool
	// fingerprint is everything that decides whether the SDK accepts the request: not the id,
	// the arguments, and members of _meta that MCP does not define. Requests with the same
	// fingerprint are equal for the fast path.
	fingerprint string
	answers     *limit.Answers
	results     toolview.Results // that the request asks for
	tool        Tool             // that it calls, as the server knows it when the request comes
}

// fingerprintHeaders are the headers in a fingerprint.
var fingerprintHeaders = []string{"Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Content-Type",
	"Accept"}

// readRequest reads a request; nil: the fast path cannot answer it.
func readRequest(r *http.Request, m rpc.Message) *cacheable {
	if !m.Unambiguous || !rpc.IsID(m.ID) || rpc.MayNestDeeply(m.Params) || len(r.Header["Last-Event-Id"]) > 0 {
		return nil
	}
	o := &cacheable{method: m.Method, id: m.ID, session: r.Header.Get("Mcp-Session-Id")}
	o.results, _ = toolview.ParseResults(r.Header.Get(rpc.ResultsHeader)) // it was checked before
	if !o.readParams(m.Params) {
		return nil
	}
	o.stateless = o.session == "" && revision.IsStateless(r.Header.Get("Mcp-Protocol-Version"))
	parts := []string{o.method, o.name, o.cursor} // these have no control characters, as the separators are
	for _, h := range fingerprintHeaders {
		parts = append(parts, strings.Join(r.Header[h], "\x00"))
	}
	var protocolMeta []string
	for k, v := range o.meta {
		switch {
		case k == "progressToken":
			if !rpc.IsID(v) {
				return nil
			}
		case strings.Contains(k, "logLevel"):
			return nil
		case strings.HasPrefix(k, "io.modelcontextprotocol/"):
			protocolMeta = append(protocolMeta, strconv.Quote(k)+"\x00"+string(v))
		}
	}
	slices.Sort(protocolMeta)
	o.fingerprint = strings.Join(append(parts, protocolMeta...), "\x01")
	if len(o.fingerprint) > maxFingerprint {
		return nil
	}
	return o
}

// readParams reads the parameters; false: some are unknown or invalid.
func (o *cacheable) readParams(raw json.RawMessage) (ok bool) {
	params := rpc.Object{}
	if raw != nil {
		if params, ok = rawjson.Members(raw); !ok {
			return false
		}
	}
	if meta, given := params["_meta"]; given {
		if o.meta, ok = rawjson.Members(meta); !ok {
			return false
		}
	}
	known := []string{"_meta"}
	switch o.method {
	case "tools/call":
		known = append(known, "name", "arguments")
		o.args = params["arguments"]
		if o.name, ok = rawjson.UnescapedString(params["name"]); !ok || o.name == "" || string(o.args) == "null" {
			return false
		}
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		known = append(known, "cursor")
		if c, given := params["cursor"]; given {
			if o.cursor, ok = rawjson.UnescapedString(c); !ok {
				return false
			}
		}
	default:
		return false
	}
	for k := range params {
		if !slices.Contains(known, k) {
			return false
		}
	}
	return true
}

// subject returns the part of a fingerprint with the method, the name of the tool and the
// cursor of the list.
func subject(fingerprint string) string {
	parts := strings.SplitN(fingerprint, "\x01", 4)
	if len(parts) < 4 {
		return ""
	}
	return strings.Join(parts[:3], "\x01")
}

// hasSubject reports whether a fingerprint has the method, name and cursor that the SDK read.
func hasSubject(fingerprint, method, name, cursor string) bool {
	return subject(fingerprint) == strings.Join([]string{method, name, cursor}, "\x01")
}

// cursorOf returns the cursor of a request for a list that the SDK read.
func cursorOf(req mcp.Request) string {
	var p struct{ Cursor string }
	b, _ := json.Marshal(req.GetParams())
	_ = json.Unmarshal(b, &p) // without parameters, the cursor is empty
	return p.Cursor
}
