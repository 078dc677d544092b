package rpc

import (
	"bytes"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/internal/fault"
)

// RawResult is the result of a third-party server. Unlike the SDK's types, it has all of the
// result's fields, also unknown ones.
type RawResult struct {
	mcp.ResultBase
	Fields Object // without _meta
}

// MarshalJSON implements json.Marshaler.
func (r *RawResult) MarshalJSON() ([]byte, error) {
	if len(r.Meta) == 0 {
		return json.Marshal(r.Fields)
	}
	meta, err := json.Marshal(r.Meta)
	if err != nil {
		return nil, err
	}
	r.Fields["_meta"] = meta
	return json.Marshal(r.Fields)
}

// ReadRawResult reads a result object. In the stateless protocol, it adds the resultType if
// that is missing; in the stateful protocol, it removes it.
func ReadRawResult(b json.RawMessage, stateless bool) (*RawResult, error) {
	r := &RawResult{}
	if err := json.Unmarshal(b, &r.Fields); err != nil || r.Fields == nil {
		return nil, fault.New(fault.Connection, "the server's answer is not an object")
	}
	if m, ok := r.Fields["_meta"]; ok {
		delete(r.Fields, "_meta")
		var meta Object
		if json.Unmarshal(m, &meta) == nil {
			r.Meta = mcp.Meta{}
			for k, v := range meta {
				r.Meta[k] = v
			}
		}
	}
	if _, typed := r.Fields["resultType"]; !stateless {
		delete(r.Fields, "resultType")
	} else if !typed {
		r.Fields["resultType"] = json.RawMessage(`"complete"`)
	}
	return r, nil
}

// SetDefaults adds the fields that the stateless protocol requires of a list or a resource, if
// the server left them out. The cacheScope is always private.
func (r *RawResult) SetDefaults(d Object) {
	for k, v := range d {
		if _, ok := r.Fields[k]; !ok {
			r.Fields[k] = v
		}
	}
	r.Fields["cacheScope"] = json.RawMessage(`"private"`) // servers answer one principal alone
}

// MayContain reports whether a JSON text may contain a word. It returns true for any text with
// \u escapes, which may hide the word.
func MayContain(raw json.RawMessage, word string) bool {
	return bytes.Contains(raw, []byte(word)) || bytes.Contains(raw, []byte(`\u`))
}
