package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// message is one of a client, as far as it says where it belongs.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`

	plain bool // there is one way to read it
}

// readMessage reads a message as far as that goes; the SDK says what is wrong
// with it.
func readMessage(body []byte) (m message) {
	all, ok := members(body)
	var version string
	if ok && utf8.Valid(body) && json.Unmarshal(all["method"], &m.Method) == nil && json.Unmarshal(all["jsonrpc"], &version) == nil {
		m.ID, m.Params = all["id"], all["params"]
		known := 3
		if m.Params != nil {
			known++
		}
		m.plain = m.ID != nil && version == "2.0" && len(all) == known
		return m
	}
	m = message{}
	if json.Unmarshal(body, &m) != nil {
		return message{}
	}
	return m
}

// members returns what an object has, by its exact names; false when it has one
// twice, or is none. Readers differ in which of two they take.
func members(raw json.RawMessage) (object, bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	all := object{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if _, twice := all[name]; err != nil || !ok || twice {
			return nil, false
		}
		var v json.RawMessage
		if d.Decode(&v) != nil {
			return nil, false
		}
		all[name] = v
	}
	if _, err := d.Token(); err != nil || len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
		return nil, false
	}
	return all, true
}

// maxNesting is less than the depth to which the SDK reads.
const maxNesting = 500

// nested says whether a JSON text may be nested deeper than that.
func nested(raw []byte) bool {
	return len(raw) > maxNesting && bytes.Count(raw, []byte("{"))+bytes.Count(raw, []byte("[")) > maxNesting
}

// ordinary is a tool call, or a list, that may take the shortcut.
type ordinary struct {
	method  string
	id      json.RawMessage
	name    string
	args    json.RawMessage
	cursor  string // of a list; empty: the first page
	meta    object
	session string
	newer   bool
	like    string // what it has in common with others
	answers *answers
}

// ordinaryRequest reads a request; nil when it is none that may take the shortcut.
func ordinaryRequest(r *http.Request, m message) *ordinary {
	if !m.plain || !isID(m.ID) || nested(m.Params) || len(r.Header["Last-Event-Id"]) > 0 {
		return nil
	}
	o := &ordinary{method: m.Method, id: m.ID, session: r.Header.Get("Mcp-Session-Id")}
	if !o.read(m.Params) {
		return nil
	}
	o.newer = o.session == "" && r.Header.Get("Mcp-Protocol-Version") >= statelessFrom
	like := []string{o.method, o.name, o.cursor} // none of it has control characters
	for _, h := range []string{"Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Content-Type", "Accept"} {
		like = append(like, strings.Join(r.Header[h], "\x00"))
	}
	var own []string
	for k, v := range o.meta {
		switch {
		case k == "progressToken":
			if !isID(v) {
				return nil
			}
		case strings.Contains(k, "logLevel"):
			return nil
		case strings.HasPrefix(k, "io.modelcontextprotocol/"):
			own = append(own, strconv.Quote(k)+"\x00"+string(v))
		}
	}
	slices.Sort(own)
	o.like = strings.Join(append(like, own...), "\x01")
	if len(o.like) > maxLike {
		return nil
	}
	return o
}

// read takes the parameters, unless there is more to them.
func (o *ordinary) read(raw json.RawMessage) (ok bool) {
	params := object{}
	if raw != nil {
		if params, ok = members(raw); !ok {
			return false
		}
	}
	if meta, given := params["_meta"]; given {
		if o.meta, ok = members(meta); !ok {
			return false
		}
	}
	known := []string{"_meta"}
	switch o.method {
	case "tools/call":
		known = append(known, "name", "arguments")
		o.args = params["arguments"]
		if o.name, ok = plainText(params["name"]); !ok || o.name == "" || string(o.args) == "null" {
			return false
		}
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		known = append(known, "cursor")
		if c, given := params["cursor"]; given {
			if o.cursor, ok = plainText(c); !ok {
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

// plainText returns a string that is written as it is.
func plainText(raw json.RawMessage) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' || bytes.ContainsRune(raw, '\\') {
		return "", false
	}
	return string(raw[1 : len(raw)-1]), true
}

// maxDigits is how long a number may be that is the same for every reader.
const maxDigits = 15

// isID says whether a value is a string that is written as it is, or an integer.
func isID(v json.RawMessage) bool {
	if _, ok := plainText(v); ok {
		return true
	}
	digits := strings.TrimPrefix(string(v), "-")
	return len(digits) > 0 && len(digits) <= maxDigits && strings.Trim(digits, "0123456789") == ""
}

func isObject(b json.RawMessage) bool { return len(b) > 0 && b[0] == '{' }

// subject is what a request like that is about: its method, and a tool's name or
// a list's cursor.
func subject(like string) string {
	parts := strings.SplitN(like, "\x01", 4)
	if len(parts) < 4 {
		return ""
	}
	return strings.Join(parts[:3], "\x01")
}

// about says whether a request like that is about what the SDK read.
func about(like, method, name, cursor string) bool {
	return subject(like) == strings.Join([]string{method, name, cursor}, "\x01")
}

func cursorOf(req mcp.Request) string {
	switch r := req.(type) {
	case *mcp.ListToolsRequest:
		if r.Params != nil {
			return r.Params.Cursor
		}
	case *mcp.ListPromptsRequest:
		if r.Params != nil {
			return r.Params.Cursor
		}
	case *mcp.ListResourcesRequest:
		if r.Params != nil {
			return r.Params.Cursor
		}
	case *mcp.ListResourceTemplatesRequest:
		if r.Params != nil {
			return r.Params.Cursor
		}
	}
	return ""
}
