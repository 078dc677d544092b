package toolcall

import (
	"encoding/json"
	"errors"
	"strings"

	"sandlot/internal/rawjson"
)

// largeRequest is the size in bytes from which a request is decoded without copies, and not beside another such one.
const largeRequest = 64 << 10

var errNoRequest = errors.New("this is not a request")

// decode decodes a line. The arguments of a large one share memory with it. One large line is decoded at a time in the
// whole server, so that the others' calls find a processor.
func (cs *Calls) decode(line []byte) (q request, err error) {
	if len(line) <= largeRequest {
		err = json.Unmarshal(line, &q)
		return q, err
	}
	if !cs.hold(cs.decoding) {
		return q, cs.ctx.Err()
	}
	defer func() { <-cs.decoding }()
	if !rawjson.Valid(line) || !rawjson.IsObject(line) {
		return q, errNoRequest
	}
	small, arguments := withoutArguments(line)
	if err = json.Unmarshal(small, &q); err == nil && q.Call != nil {
		q.Call.Arguments = arguments
	}
	return q, err
}

// withoutArguments returns the members of a valid request that are known, in their order, but for the arguments.
func withoutArguments(line []byte) (rest []byte, arguments json.RawMessage) {
	rest = append(rest, '{')
	add := func(name string, value json.RawMessage) {
		if last := rest[len(rest)-1]; last != '{' {
			rest = append(rest, ',')
		}
		rest = append(append(append(rest, rawjson.Quote(name)...), ':'), value...)
	}
	rawjson.EachMember(line, func(name string, value json.RawMessage) {
		switch {
		case !isOneOf(name, "call", "search", "describe"): // as encoding/json does not mind the case of names
		case !strings.EqualFold(name, "call") || !rawjson.IsObject(value):
			add(name, value)
			if strings.EqualFold(name, "call") {
				arguments = nil
			}
		default:
			add(name, json.RawMessage("{"))
			rawjson.EachMember(value, func(name string, value json.RawMessage) {
				if strings.EqualFold(name, "arguments") {
					arguments = value
				} else if isOneOf(name, "server", "tool", "timeout") {
					add(name, value)
				}
			})
			rest = append(rest, '}')
		}
	})
	return append(rest, '}'), arguments
}

// isOneOf reports whether encoding/json takes a name for one of others.
func isOneOf(name string, others ...string) bool {
	for _, o := range others {
		if strings.EqualFold(name, o) {
			return true
		}
	}
	return false
}
