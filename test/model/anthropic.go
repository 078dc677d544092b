package model

import "encoding/json"

// readAnthropic reads a request of the Messages API.
func readAnthropic(body []byte) (*conversation, error) {
	var in struct {
		System any
		Stream bool
		Tools  []struct{ Name string }

		Messages []struct {
			Role    string
			Content any
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	c := &conversation{stream: in.Stream}
	c.system.WriteString(textOf(in.System))
	for _, t := range in.Tools {
		c.tools = append(c.tools, tool{name: t.Name})
	}
	names := calls{}
	for _, m := range in.Messages {
		blocks, ok := m.Content.([]any)
		if !ok {
			blocks = []any{m.Content}
		}
		for _, b := range blocks {
			block, _ := b.(map[string]any)
			id, _ := block["tool_use_id"].(string)
			switch {
			case block["type"] == "tool_use":
				id, _ := block["id"].(string)
				names[id], _ = block["name"].(string)
			case block["type"] == "tool_result":
				c.add(names[id], block["content"])
			case m.Role != "assistant": // Claude Code has system messages and reminders between others
				c.more(b)
				c.system.WriteString(textOf(b))
			}
		}
	}
	return c, nil
}

// answerAnthropic writes a message.
func answerAnthropic(w *writer, c *conversation, next call) {
	block, start, delta := object{"type": "text", "text": next.text}, object{"type": "text", "text": ""},
		object{"type": "text_delta", "text": next.text}
	reason := "end_turn"
	if next.name != "" {
		reason = "tool_use"
		block = object{"type": "tool_use", "id": next.id, "name": next.name, "input": json.RawMessage(next.args)}
		start = object{"type": "tool_use", "id": next.id, "name": next.name, "input": object{}}
		delta = object{"type": "input_json_delta", "partial_json": next.args}
	}
	message := object{"id": "msg_" + next.id, "type": "message", "role": "assistant", "model": Name, "content": []any{block},
		"stop_reason": reason, "stop_sequence": nil, "usage": object{"input_tokens": 10, "output_tokens": 10}}
	if !c.stream {
		writeJSON(w, message)
		return
	}
	message["content"], message["stop_reason"] = []any{}, nil
	w.event("message_start", object{"type": "message_start", "message": message})
	w.event("content_block_start", object{"type": "content_block_start", "index": 0, "content_block": start})
	w.event("content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": delta})
	w.event("content_block_stop", object{"type": "content_block_stop", "index": 0})
	w.event("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": reason, "stop_sequence": nil},
		"usage": object{"output_tokens": 10}})
	w.event("message_stop", object{"type": "message_stop"})
}
