package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"sandlot/internal/rawjson"
)

// Message is a JSON-RPC message of the server.
type Message rawjson.Message

const maxBatch = 1000 // messages in one array

var errNotMessage = errors.New("this is not a JSON-RPC message")

// Decode decodes what the server sent: a message or, as the revision 2025-03-26 allowed,
// an array of messages. It may change b in place.
func Decode(b []byte) ([]Message, error) {
	if !utf8.Valid(b) {
		b = bytes.ToValidUTF8(b, []byte("\uFFFD"))
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' && b[0] != '[' {
		return nil, errNotMessage
	}
	rawjson.ReplaceSurrogates(b)
	all := make([]Message, 1)
	var err error
	if b[0] == '{' {
		err = json.Unmarshal(b, &all[0])
	} else {
		all, err = decodeBatch(b)
	}
	if err != nil {
		return nil, errNotMessage
	}
	for _, m := range all {
		if m.Method == nil && m.Result == nil && m.Error == nil {
			return nil, errNotMessage
		}
	}
	return all, nil
}

// DecodeLarge decodes a response whose parts share memory with b: there is no second copy of a large one. It decodes no
// array, repairs no text that is not UTF-8, and may change b in place.
func DecodeLarge(b []byte) (Message, error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' || !utf8.Valid(b) || !json.Valid(b) {
		return Message{}, errNotMessage
	}
	rawjson.ReplaceSurrogates(b)
	var m Message
	isRequest := false
	rawjson.EachMember(b, func(name string, value json.RawMessage) {
		switch name {
		case "id":
			m.ID = value
		case "result":
			m.Result = value
		case "error":
			m.Error = value
		case "method":
			isRequest = true
		}
	})
	if isRequest || m.Result == nil && m.Error == nil {
		return Message{}, errNotMessage
	}
	return m, nil
}

// decodeBatch decodes an array of messages.
func decodeBatch(b []byte) ([]Message, error) {
	if !json.Valid(b) {
		return nil, errNotMessage
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	var all []Message
	for d.More() {
		var m Message
		if err := d.Decode(&m); err != nil || len(all) == maxBatch {
			return nil, errNotMessage
		}
		all = append(all, m)
	}
	return all, nil
}

// ParseRequestID parses the id of a request of the session. ok is false if id is not a
// positive integer, written as the session writes its ids.
func ParseRequestID(id json.RawMessage) (int64, bool) {
	if len(id) > 19 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(id), 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == string(id)
}

// Answerable reports whether a request of the server has a valid id, so that it can be
// answered.
func (m *Message) Answerable() bool {
	id := m.ID
	return len(id) > 0 && len(id) <= 256 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// HasResult reports whether a response has no error. Some servers send an empty one beside each result.
func (m *Message) HasResult() bool {
	switch string(m.Error) {
	case "", "null":
		return true
	case `""`, "false", "{}", "[]":
		return rawjson.IsObject(m.Result)
	}
	return false
}

// Outcome returns the result or the error of a response. An error that is none of JSON-RPC keeps its text.
func (m *Message) Outcome() (json.RawMessage, error) {
	switch {
	case !m.HasResult():
		return nil, readError(m.Error)
	case !rawjson.IsObject(m.Result):
		return nil, &InvalidAnswerError{Clip(string(m.Result), maxExcerpt)}
	}
	return m.Result, nil
}

// maxErrorText is how much is kept of the JSON of an error that is none of JSON-RPC, in bytes.
const maxErrorText = 4000

// maxCode is the largest code that every client reads exactly.
const maxCode = 1<<53 - 1

// readError reads the error of a response.
func readError(raw json.RawMessage) *Error {
	e := &Error{Code: CodeInternal}
	var o rawjson.Object
	if json.Unmarshal(raw, &o) != nil {
		e.Message = textOf(raw)
		return e
	}
	if e.Data = o["data"]; string(e.Data) == "null" {
		e.Data = nil
	}
	e.Message = textOf(o["message"])
	code := textOf(o["code"])
	switch n, err := strconv.ParseFloat(code, 64); {
	case err == nil && n == math.Trunc(n) && math.Abs(n) <= maxCode:
		e.Code = int64(n)
	case code != "":
		e.Message = strings.TrimSpace(e.Message + " (code " + code + ")")
	}
	if e.Message == "" && len(o) > 0 && len(o["message"]) == 0 && len(e.Data) == 0 && code == "" {
		e.Message = textOf(raw) // its members have other names
	}
	if e.Message == "" {
		e.Message = "an error without a text"
	}
	return e
}

// textOf returns the text of a JSON string, "" for null, and else the JSON, clipped.
func textOf(raw json.RawMessage) string {
	switch {
	case len(raw) == 0, string(raw) == "null":
		return ""
	case rawjson.IsString(raw):
		return rawjson.Text(raw)
	}
	return Clip(string(raw), maxErrorText)
}
