package model

import (
	"encoding/json"
	"fmt"
)

// readGemini reads a request of the Gemini API. Results have no ids: their names say whose they are.
func readGemini(body []byte) (*conversation, error) {
	var in struct {
		SystemInstruction struct{ Parts []any }
		Contents          []struct {
			Role  string
			Parts []map[string]any
		}
		Tools []struct {
			FunctionDeclarations []struct{ Name string }
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	c := &conversation{}
	c.system.WriteString(textOf(in.SystemInstruction.Parts))
	for _, group := range in.Tools {
		for _, t := range group.FunctionDeclarations {
			c.tools = append(c.tools, tool{name: t.Name})
		}
	}
	for _, message := range in.Contents {
		for _, part := range message.Parts {
			answer, ok := part["functionResponse"].(map[string]any)
			switch {
			case ok:
				name, _ := answer["name"].(string)
				c.add(name, geminiContent(answer))
			case message.Role == "user":
				c.more(part)
				c.system.WriteString(textOf(part))
			}
		}
	}
	return c, nil
}

// geminiContent returns the content of a function's response: its parts too, which may have images.
func geminiContent(answer map[string]any) any {
	content := answer["response"]
	if o, ok := content.(map[string]any); ok && len(o) == 1 {
		for _, key := range []string{"output", "error"} {
			if text, ok := o[key].(string); ok {
				content = text
			}
		}
	}
	parts, _ := answer["parts"].([]any)
	return append([]any{content}, parts...)
}

// answerGemini writes content.
func answerGemini(w *writer, c *conversation, next call) {
	part := object{"text": next.text}
	if next.name != "" {
		part = object{"functionCall": object{"id": next.id, "name": next.name, "args": json.RawMessage(next.args)}}
	}
	out := object{"candidates": []any{object{"content": object{"role": "model", "parts": []any{part}}, "index": 0,
		"finishReason": "STOP"}}, "modelVersion": Name, "responseId": fmt.Sprint("response-", next.id),
		"usageMetadata": object{"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}}
	if c.stream {
		w.event("", out)
		return
	}
	writeJSON(w, out)
}
