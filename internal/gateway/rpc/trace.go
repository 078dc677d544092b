package rpc

import "encoding/json"

// Traceparent returns the traceparent in the _meta of a request, or "".
func Traceparent(meta map[string]json.RawMessage) (trace string) {
	if b, ok := meta["traceparent"]; ok && json.Unmarshal(b, &trace) != nil {
		return ""
	}
	return trace
}
