package model

import (
	"encoding/json"
	"fmt"
)

// readChat reads a request for a chat completion.
func readChat(body []byte) (*conversation, error) {
	var in struct {
		Stream bool
		Tools  []struct{ Function struct{ Name string } }

		Messages []struct {
			Role       string
			Content    any
			ToolCallID string `json:"tool_call_id"`
			ToolCalls  []struct {
				ID       string
				Function struct{ Name string }
			} `json:"tool_calls"`
		}
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	c := &conversation{stream: in.Stream}
	for _, t := range in.Tools {
		c.tools = append(c.tools, tool{name: t.Function.Name})
	}
	names := calls{}
	for _, m := range in.Messages {
		for _, call := range m.ToolCalls {
			names[call.ID] = call.Function.Name
		}
		switch m.Role {
		case "system", "developer":
			c.system.WriteString(textOf(m.Content))
		case "tool":
			c.add(names[m.ToolCallID], m.Content)
		case "user":
			c.more(m.Content)
			c.system.WriteString(textOf(m.Content))
		}
	}
	return c, nil
}

// answerChat writes a chat completion.
func answerChat(w *writer, c *conversation, next call) {
	reason, said := "stop", object{"role": "assistant", "content": next.text}
	if next.name != "" {
		reason = "tool_calls"
		said = object{"role": "assistant", "content": nil, "tool_calls": []any{object{"index": 0, "id": next.id,
			"type": "function", "function": object{"name": next.name, "arguments": next.args}}}}
	}
	out := object{"id": "chatcmpl-" + next.id, "created": 1, "model": Name, "object": "chat.completion",
		"usage": object{"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}}
	if !c.stream {
		out["choices"] = []any{object{"index": 0, "message": said, "finish_reason": reason}}
		writeJSON(w, out)
		return
	}
	usage := out["usage"]
	delete(out, "usage")
	out["object"] = "chat.completion.chunk"
	out["choices"] = []any{object{"index": 0, "delta": said, "finish_reason": nil}}
	w.event("", out)
	out["choices"] = []any{object{"index": 0, "delta": object{}, "finish_reason": reason}}
	w.event("", out)
	out["choices"], out["usage"] = []any{}, usage
	w.event("", out)
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// readResponses reads a request for a response. Codex offers the tools of a server in a namespace.
func readResponses(body []byte) (*conversation, error) {
	type offer struct {
		Type, Name string
		Tools      []struct{ Name string }
	}
	var in struct {
		Instructions string
		Stream       bool
		Tools        []offer
		Input        any
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	c := &conversation{stream: in.Stream}
	c.system.WriteString(in.Instructions)
	for _, t := range in.Tools {
		if t.Type == "namespace" {
			for _, one := range t.Tools {
				c.tools = append(c.tools, tool{name: one.Name, namespace: t.Name})
			}
			continue
		}
		c.tools = append(c.tools, tool{name: t.Name})
	}
	if len(in.Tools) > 0 { // descriptions of namespaces are texts of the client, too
		var all struct {
			Tools []struct{ Type, Description string }
		}
		_ = json.Unmarshal(body, &all) // it was read before
		for _, t := range all.Tools {
			if t.Type == "namespace" {
				c.system.WriteString(t.Description)
			}
		}
	}
	names := calls{}
	items, _ := in.Input.([]any)
	for _, i := range items {
		item, _ := i.(map[string]any)
		id, _ := item["call_id"].(string)
		switch {
		case item["type"] == "function_call":
			names[id], _ = item["name"].(string)
		case item["type"] == "function_call_output":
			c.add(names[id], item["output"])
		case item["role"] == "user":
			c.more(item["content"])
			c.system.WriteString(textOf(item["content"]))
		case item["role"] == "system" || item["role"] == "developer":
			c.system.WriteString(textOf(item["content"]))
		}
	}
	return c, nil
}

// answerResponses writes a response.
func answerResponses(w *writer, c *conversation, next call) {
	part := object{"type": "output_text", "text": next.text, "annotations": []any{}, "logprobs": []any{}}
	item := object{"type": "message", "id": "msg_" + next.id, "role": "assistant", "status": "completed", "content": []any{part}}
	if next.name != "" {
		item = object{"type": "function_call", "id": "fc_" + next.id, "call_id": next.id, "name": next.name,
			"arguments": next.args, "status": "completed"}
		if next.namespace != "" {
			item["namespace"] = next.namespace
		}
	}
	response := object{"id": "resp_" + next.id, "object": "response", "created_at": 1, "status": "completed", "model": Name,
		"output": []any{item}, "parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}, "error": nil,
		"incomplete_details": nil, "instructions": nil, "metadata": object{}, "temperature": 1, "top_p": 1,
		"usage": object{"input_tokens": 10, "input_tokens_details": object{"cached_tokens": 0, "cache_write_tokens": 0},
			"output_tokens": 10, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 20}}
	if !c.stream {
		writeJSON(w, response)
		return
	}
	event := func(kind string, data object) {
		data["type"], data["sequence_number"] = kind, w.n
		w.event(kind, data)
	}
	begun := clone(response, "status", "in_progress", "output", []any{}, "usage", nil)
	event("response.created", object{"response": begun})
	event("response.in_progress", object{"response": begun})
	if next.name != "" {
		event("response.output_item.added", object{"output_index": 0,
			"item": clone(item, "arguments", "", "status", "in_progress")})
		event("response.function_call_arguments.delta", object{"output_index": 0, "item_id": item["id"],
			"delta": next.args})
		event("response.function_call_arguments.done", object{"output_index": 0, "item_id": item["id"],
			"name": next.name, "arguments": next.args})
	} else {
		at := func(more object) object {
			more["output_index"], more["content_index"], more["item_id"] = 0, 0, item["id"]
			return more
		}
		event("response.output_item.added", object{"output_index": 0,
			"item": clone(item, "content", []any{}, "status", "in_progress")})
		event("response.content_part.added", at(object{"part": clone(part, "text", "")}))
		event("response.output_text.delta", at(object{"delta": next.text, "logprobs": []any{}}))
		event("response.output_text.done", at(object{"text": next.text, "logprobs": []any{}}))
		event("response.content_part.done", at(object{"part": part}))
	}
	event("response.output_item.done", object{"output_index": 0, "item": item})
	event("response.completed", object{"response": response})
}

// clone returns a copy of an object with other values of some keys.
func clone(o object, changes ...any) object {
	out := object{}
	for k, v := range o {
		out[k] = v
	}
	for i := 0; i < len(changes); i += 2 {
		out[changes[i].(string)] = changes[i+1]
	}
	return out
}
