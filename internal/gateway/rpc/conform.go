package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"sandlot/internal/rawjson"
	"sandlot/internal/revision"
)

// The revisions of MCP that first had some kinds of content.
const firstWithLinks, firstWithAudio = "2025-06-18", "2025-03-26"

// ConformTool returns a third-party tool's definition as a revision has it. Revisions before 2026-07-28 know only results
// that are objects: clients of theirs refuse a whole list for another outputSchema.
func ConformTool(raw json.RawMessage, version string) json.RawMessage {
	if revision.IsStateless(version) {
		return raw
	}
	schema, given := rawjson.Shared(raw, "outputSchema")["outputSchema"]
	if !given || rawjson.ShortText(rawjson.Shared(schema, "type")["type"]) == "object" {
		return raw
	}
	rest, _ := rawjson.Without(raw, "outputSchema")
	return rest
}

// WithoutEmptyText returns the result of a third-party server's tool without text blocks that are empty: some providers
// of models refuse them.
func WithoutEmptyText(raw json.RawMessage) json.RawMessage {
	var r Object
	var blocks []json.RawMessage
	if !bytes.Contains(raw, []byte(`"text":""`)) || json.Unmarshal(raw, &r) != nil || json.Unmarshal(r["content"], &blocks) != nil {
		return raw
	}
	kept := slices.DeleteFunc(slices.Clone(blocks), func(b json.RawMessage) bool {
		members := rawjson.Shared(b, "type", "text")
		return rawjson.ShortText(members["type"]) == "text" && string(members["text"]) == `""`
	})
	if len(kept) == len(blocks) {
		return raw
	}
	if len(kept) == 0 {
		kept = append(kept, text(noOutput))
	}
	r["content"], _ = json.Marshal(kept) // raw values always encode
	b, _ := json.Marshal(r)
	return b
}

// WithJSONAsData returns the result of a third-party server's tool for a client that takes a first text that is JSON for
// structuredContent, and refuses the result where that is no object: such a value gets an object around it. The content
// stays.
func WithJSONAsData(raw json.RawMessage) json.RawMessage {
	members := rawjson.Shared(raw, "content", "structuredContent")
	if _, given := members["structuredContent"]; given {
		return raw
	}
	var value string
	rawjson.EachElement(members["content"], func(b json.RawMessage) {
		if block := rawjson.Shared(b, "type", "text"); value == "" && rawjson.ShortText(block["type"]) == "text" {
			value = rawjson.Text(block["text"])
		}
	})
	var r Object
	if !isJSONValue(value) || json.Unmarshal(raw, &r) != nil {
		return raw
	}
	r["structuredContent"], _ = json.Marshal(Object{"result": json.RawMessage(value)}) // valid JSON always encodes
	b, _ := json.Marshal(r)
	return b
}

// noOutput is the text of a result without anything.
const noOutput = "(no output)"

// ConformResult returns the result of a third-party server as a revision has it: what the revision does not know becomes
// text.
func ConformResult(raw json.RawMessage, version string) json.RawMessage {
	if revision.IsStateless(version) || !rawjson.IsObject(raw) {
		return raw
	}
	old := version < firstWithLinks
	structured, given := rawjson.Shared(raw, "structuredContent")["structuredContent"]
	if !old && (!given || rawjson.IsObject(structured)) {
		return raw
	}
	var r Object
	if json.Unmarshal(raw, &r) != nil {
		return raw
	}
	var blocks []json.RawMessage
	hasContent := json.Unmarshal(r["content"], &blocks) == nil && r["content"] != nil
	if given && !rawjson.IsObject(structured) {
		delete(r, "structuredContent")
		if string(structured) == "[]" { // some languages have one value for empty lists and objects
			r["structuredContent"] = json.RawMessage("{}")
		} else if hasContent && len(blocks) == 0 {
			blocks = append(blocks, text(string(structured)))
		}
	}
	for i, b := range blocks {
		blocks[i] = conformBlock(b, version)
	}
	if hasContent {
		r["content"], _ = json.Marshal(blocks) // raw values always encode
	}
	var messages []Object // of prompts/get
	if json.Unmarshal(r["messages"], &messages) == nil && messages != nil {
		for _, m := range messages {
			m["content"] = conformBlock(m["content"], version)
		}
		r["messages"], _ = json.Marshal(messages)
	}
	b, _ := json.Marshal(r)
	return b
}

// conformBlock is ConformResult for one block of content.
func conformBlock(raw json.RawMessage, version string) json.RawMessage {
	if !rawjson.IsObject(raw) {
		return raw
	}
	b := rawjson.Shared(raw, "type", "uri", "name", "mimeType", "description")
	switch kind := rawjson.ShortText(b["type"]); {
	case kind == "resource_link" && version < firstWithLinks:
		line := fmt.Sprintf("[resource %s] %s", rawjson.Text(b["uri"]), rawjson.Text(b["name"]))
		if d := rawjson.Text(b["description"]); d != "" {
			line += ": " + d
		}
		return text(line)
	case kind == "audio" && version < firstWithAudio:
		return text(fmt.Sprintf("[audio of the type %s, %d bytes of base64, was left out: the client's revision of MCP has "+
			"none]", rawjson.ShortText(b["mimeType"]), len(raw)))
	}
	return raw
}

// text returns a text block.
func text(s string) json.RawMessage {
	b, _ := rawjson.Encode(map[string]string{"type": "text", "text": s}) // strings always encode
	return b
}

// StatefulRevision returns the revision of a session of the stateful protocol whose client asked for one: a server
// answers with its latest one if it does not know that.
func StatefulRevision(asked string) string {
	if revision.IsStateful(asked) {
		return asked
	}
	return revision.Stateful
}
