package mcpclient

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
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
)

// message is one JSON-RPC message of the server.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method *string         `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

const maxBatch = 1000 // messages in one array

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
	var err error
	if b[0] == '{' {
		err = json.Unmarshal(b, &all[0])
	} else {
		all, err = batch(b)
	}
	if err != nil {
		return nil, errNoMessage
	}
	for _, m := range all {
		if m.Method == nil && m.Result == nil && m.Error == nil {
			return nil, errNoMessage
		}
	}
	return all, nil
}

// batch reads an array of messages.
func batch(b []byte) ([]message, error) {
	if !json.Valid(b) {
		return nil, errNoMessage
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	var all []message
	for d.More() {
		var m message
		if err := d.Decode(&m); err != nil || len(all) == maxBatch {
			return nil, errNoMessage
		}
		all = append(all, m)
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

// without returns an object without one of its members, and that member. All
// else stays as it is.
func without(raw json.RawMessage, key string) (rest, member json.RawMessage) {
	if !isObject(raw) {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	_, err := d.Token()
	rest = append(make(json.RawMessage, 0, len(raw)), '{')
	for err == nil && d.More() {
		var name json.Token
		var value json.RawMessage
		if name, err = d.Token(); err == nil {
			err = d.Decode(&value)
		}
		if name == key {
			member = value
			continue
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		s, _ := name.(string)
		rest = append(append(append(rest, text(s)...), ':'), value...)
	}
	if err != nil {
		return nil, nil
	}
	return append(rest, '}'), member
}
