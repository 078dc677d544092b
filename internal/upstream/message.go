package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"
)

// object is a JSON object whose values are left as they are.
type object = map[string]json.RawMessage

// Keys of _meta that are the protocol's own.
const (
	metaToken        = "progressToken"
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaServer       = "io.modelcontextprotocol/serverInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// message is one JSON-RPC message of the server.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method *string         `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

var errNoMessage = errors.New("this is no JSON-RPC message")

// decode reads what a pipe brought: a message, or, as the revision 2025-03-26
// allowed, an array of them.
func decode(b []byte) ([]message, error) {
	if !utf8.Valid(b) {
		b = bytes.ToValidUTF8(b, []byte("\uFFFD"))
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' && b[0] != '[' {
		return nil, errNoMessage
	}
	all := make([]message, 1)
	into := any(&all[0])
	if b[0] == '[' {
		into = &all
	}
	if err := json.Unmarshal(b, into); err != nil {
		return nil, errNoMessage
	}
	for _, m := range all {
		if m.Method == nil && m.Result == nil && m.Error == nil {
			return nil, errNoMessage
		}
	}
	return all, nil
}

// ours returns which of our requests an id means. Ours are numbers; anything
// that is not written as we wrote it is somebody else's.
func ours(id json.RawMessage) (int64, bool) {
	if len(id) > 19 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(id), 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == string(id)
}

// theirs says whether an id of a request of the server can be answered.
func theirs(id json.RawMessage) bool {
	return len(id) > 0 && len(id) <= 256 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// outcome is what a response says.
func (m *message) outcome() (json.RawMessage, error) {
	if m.Error != nil && string(m.Error) != "null" {
		e := &Error{}
		if err := json.Unmarshal(m.Error, e); err != nil {
			return nil, &Error{Code: codeInternal, Message: "an error that cannot be read"}
		}
		return nil, e
	}
	if !isObject(m.Result) {
		return nil, errors.New("the server's answer is not an object, as MCP wants it to be")
	}
	return m.Result, nil
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// encode writes JSON without escaping what HTML would not like.
func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// wireRequest is a request or, without an id, a notification of ours.
type wireRequest struct {
	JSONRPC string `json:"jsonrpc"`
	ID      int64  `json:"id,omitempty"`
	Method  string `json:"method"`
	Params  object `json:"params,omitempty"`
}

// wireReply answers a request of the server.
type wireReply struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// text is a JSON string.
func text(s string) json.RawMessage {
	b, _ := encode(s) // strings can always be written
	return b
}

func number(n int64) json.RawMessage { return strconv.AppendInt(nil, n, 10) }

// without returns an object without one of its members, and that member.
func without(raw json.RawMessage, key string) (rest, member json.RawMessage) {
	var o object
	if json.Unmarshal(raw, &o) != nil || o == nil {
		return nil, nil
	}
	member = o[key]
	delete(o, key)
	rest, _ = encode(o)
	return rest, member
}
