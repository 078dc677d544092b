package catalog

import (
	"encoding/json"
	"strings"

	"sandlot/internal/rawjson"
)

// RefusedMeta is the member of a result's _meta that has as data what the tool's server was not allowed to reach. The
// structuredContent is the server's own.
const RefusedMeta = "sandlot/network_refused"

// WithRefused returns a safe result with a text on what the server was not allowed to reach, after all that the server
// says, and with the same as data.
func WithRefused(result json.RawMessage, text string, hosts any) json.RawMessage {
	var all, meta rawjson.Object
	data, err := rawjson.Encode(hosts)
	if err != nil || json.Unmarshal(result, &all) != nil || all == nil {
		return result
	}
	if json.Unmarshal(all["_meta"], &meta) != nil || meta == nil {
		meta = rawjson.Object{}
	}
	meta[RefusedMeta] = data
	all["content"], _ = json.Marshal(append(contentOf(all["content"]), textBlock(text))) // raw values always encode
	all["_meta"], _ = json.Marshal(meta)
	b, err := json.Marshal(all)
	if err != nil {
		return result
	}
	return b
}

// AsksInput reports whether an answer of a server to tools/call is no result, but asks for input.
func AsksInput(raw json.RawMessage) bool {
	var r struct{ ResultType string }
	return len(raw) <= MaxAsking && strings.Contains(string(raw[:min(len(raw), 1<<20)]), "input_required") &&
		json.Unmarshal(raw, &r) == nil && r.ResultType == "input_required"
}
