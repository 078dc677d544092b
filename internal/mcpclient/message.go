package mcpclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"

	"sandlot/internal/rawjson"
)

// Keys of _meta that are the protocol's own.
const (
	metaToken        = "progressToken"
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
)

// message is one JSON-RPC message of the server.
type message rawjson.Message

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
	if !rawjson.IsObject(m.Result) {
		return nil, errors.New("the server's answer is not an object, as MCP wants it to be")
	}
	return m.Result, nil
}

// wireRequest is a request or, without an id, a notification of ours.
type wireRequest struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      int64          `json:"id,omitempty"`
	Method  string         `json:"method"`
	Params  rawjson.Object `json:"params,omitempty"`
}

// wireReply answers a request of the server.
type wireReply struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}
