package catalog

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// maxSVG is how much of the source of an SVG a result has, in bytes.
const maxSVG = 64 << 10

// forModel makes the image in a block, or in the resource of one, one that models' APIs take: they refuse a whole
// conversation for an image that is cut, or of another type than the block says. A text is returned in place of a block
// with another image; nil: there is none. Data that is not base64 is left to blockProblem.
func forModel(kind string, b rawjson.Object) (text json.RawMessage, changed bool) {
	switch kind {
	case "image":
		if base64Problem(b["data"]) == "" {
			return modelImage("an image", "data", b)
		}
	case "resource":
		c := rawjson.Shared(b["resource"], "mimeType", "blob")
		if !tool.IsImage(rawjson.Text(c["mimeType"])) || base64Problem(c["blob"]) != "" {
			return nil, false
		}
		var o rawjson.Object
		if json.Unmarshal(b["resource"], &o) != nil {
			return nil, false
		}
		text, changed = modelImage("the image "+spec.ClipName(rawjson.Text(o["uri"])), "blob", o)
		if changed {
			b["resource"] = encoded(o)
		}
		return text, changed
	}
	return nil, false
}

// modelImage is forModel for an object with a media type, and with data in a member; what names it in the text.
func modelImage(what, member string, o rawjson.Object) (text json.RawMessage, changed bool) {
	given, inBase64 := rawjson.Text(o["mimeType"]), rawjson.Text(o[member])
	data, err := base64.StdEncoding.DecodeString(inBase64) // without line breaks
	if err != nil {
		return nil, false // blockProblem has said so
	}
	mime, problem := tool.CheckImage(data)
	if problem == "" {
		if mime != given {
			o["mimeType"], changed = rawjson.Quote(mime), true
		}
		if strings.ContainsAny(inBase64, "\r\n") {
			o[member], changed = rawjson.Quote(base64.StdEncoding.EncodeToString(data)), true
		}
		return nil, changed
	}
	if len(data) == 0 {
		problem = "it is empty"
	}
	if given == "" {
		given = "without a type"
	}
	said := fmt.Sprintf("[%s (%s, %d bytes) is not shown: %s]", what, spec.ClipName(given), len(data), problem)
	if isSVG(data) {
		said += "\n" + spec.SafeText(string(data), maxSVG)
	}
	return textBlock(said), true
}

// isSVG reports whether data is the text of an SVG.
func isSVG(data []byte) bool {
	head := strings.ToLower(string(data[:min(len(data), 1<<10)]))
	begins := strings.TrimLeft(strings.TrimPrefix(head, "\ufeff"), " \t\r\n")
	return utf8.Valid(data) && strings.HasPrefix(begins, "<") && strings.Contains(head, "<svg")
}
