package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// server is what a scenario works with: the suite's own server, or something
// that leads to it.
type server interface {
	List(ctx context.Context, method, field string) ([]json.RawMessage, error)
	// Call makes one request; schema is that of the tool, if it calls one.
	Call(ctx context.Context, method string, params map[string]json.RawMessage,
		schema json.RawMessage) (json.RawMessage, error)
	// Valid says whether a tool may be used.
	Valid(tool json.RawMessage) bool
}

type work func(ctx context.Context, s server, g given) error

// scenario returns the work of a scenario, and whether it needs a login.
func scenario(name string) (w work, login bool, err error) {
	if strings.HasPrefix(name, "auth/") {
		return callOf("test-tool", `{}`), true, nil
	}
	w, ok := map[string]work{
		"initialize":                          listTools,
		"request-metadata":                    listTools,
		"json-schema-ref-no-deref":            listTools,
		"tools_call":                          callOf("add_numbers", `{"a":5,"b":3}`),
		"elicitation-sep1034-client-defaults": callOf("test_client_elicitation_defaults", `{}`),
		"sse-retry":                           callOf("test_reconnection", `{}`),
		"json-schema-2020-12-preservation":    echoSchema,
		"sep-2322-client-request-state": callAllOf("test_mrtr_echo_state", "test_mrtr_no_state",
			"test_mrtr_unrelated", "test_mrtr_no_result_type"),
		"http-standard-headers":     useEverything,
		"http-custom-headers":       makeCalls,
		"http-invalid-tool-headers": callEveryTool,
	}[name]
	if !ok {
		return nil, false, fmt.Errorf("the scenario %q is not known", name)
	}
	return w, false, nil
}

type tool struct {
	Name        string          `json:"name"`
	InputSchema json.RawMessage `json:"inputSchema"`
}

// tools returns those that may be used.
func tools(ctx context.Context, s server) (map[string]tool, error) {
	all, err := s.List(ctx, "tools/list", "tools")
	if err != nil {
		return nil, err
	}
	usable := map[string]tool{}
	for _, raw := range all {
		var t tool
		if s.Valid(raw) && json.Unmarshal(raw, &t) == nil {
			usable[t.Name] = t
		}
	}
	return usable, nil
}

func listTools(ctx context.Context, s server, _ given) error {
	_, err := tools(ctx, s)
	return err
}

// callOf lists tools and calls one.
func callOf(name, arguments string) work {
	return func(ctx context.Context, s server, _ given) error {
		all, err := tools(ctx, s)
		if err != nil {
			return err
		}
		t, ok := all[name]
		if !ok {
			return fmt.Errorf("there is no tool %q", name)
		}
		_, err = call(ctx, s, t, json.RawMessage(arguments))
		return err
	}
}

func callAllOf(names ...string) work {
	return func(ctx context.Context, s server, g given) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, callOf(name, `{}`)(ctx, s, g))
		}
		return errors.Join(errs...)
	}
}

// call calls a tool, and again when it wants to know something first.
func call(ctx context.Context, s server, t tool, arguments json.RawMessage) (json.RawMessage, error) {
	params := map[string]json.RawMessage{"name": quoted(t.Name), "arguments": arguments}
	for next := params; ; {
		raw, err := s.Call(ctx, "tools/call", next, t.InputSchema)
		if err != nil {
			return nil, err
		}
		var r struct {
			ResultType    string `json:"resultType"`
			InputRequests map[string]struct {
				Method string          `json:"method"`
				Params json.RawMessage `json:"params"`
			} `json:"inputRequests"`
			RequestState *string `json:"requestState"`
		}
		if err := json.Unmarshal(raw, &r); err != nil || r.ResultType != "input_required" {
			return raw, err
		}
		answers := map[string]json.RawMessage{}
		for name, q := range r.InputRequests {
			if q.Method != "elicitation/create" {
				return nil, fmt.Errorf("%s is asked for, and cannot be answered", q.Method)
			}
			if answers[name], err = elicited(q.Params); err != nil {
				return nil, err
			}
		}
		next = maps.Clone(params)
		if next["inputResponses"], err = json.Marshal(answers); err != nil {
			return nil, err
		}
		if r.RequestState != nil {
			next["requestState"] = quoted(*r.RequestState)
		}
	}
}

// elicited accepts a form as it is filled in already.
func elicited(params json.RawMessage) (json.RawMessage, error) {
	var form struct {
		RequestedSchema struct {
			Properties map[string]struct {
				Type    string          `json:"type"`
				Default json.RawMessage `json:"default"`
			} `json:"properties"`
			Required []string `json:"required"`
		} `json:"requestedSchema"`
	}
	if err := json.Unmarshal(params, &form); err != nil {
		return nil, err
	}
	content := map[string]json.RawMessage{}
	for name, p := range form.RequestedSchema.Properties {
		if p.Default != nil {
			content[name] = p.Default
		}
	}
	blank := map[string]string{"boolean": "true", "string": `"yes"`, "integer": "1", "number": "1", "array": "[]"}
	for _, name := range form.RequestedSchema.Required {
		if content[name] == nil {
			content[name] = json.RawMessage(blank[form.RequestedSchema.Properties[name].Type])
		}
	}
	return json.Marshal(map[string]any{"action": "accept", "content": content})
}

// echoSchema gives a tool's schema back, to show that nothing of it is lost.
func echoSchema(ctx context.Context, s server, _ given) error {
	all, err := tools(ctx, s)
	if err != nil {
		return err
	}
	arguments, err := json.Marshal(map[string]json.RawMessage{"schema": all["json_schema_2020_12_tool"].InputSchema})
	if err != nil {
		return err
	}
	_, err = call(ctx, s, all["json_schema_echo"], arguments)
	return err
}

// useEverything uses each tool, resource and prompt once.
func useEverything(ctx context.Context, s server, g given) error {
	errs := []error{callEveryTool(ctx, s, g)}
	for _, kind := range []struct{ list, field, key, use string }{
		{"resources/list", "resources", "uri", "resources/read"},
		{"prompts/list", "prompts", "name", "prompts/get"},
	} {
		all, err := s.List(ctx, kind.list, kind.field)
		errs = append(errs, err)
		for _, raw := range all {
			var item map[string]json.RawMessage
			if err := json.Unmarshal(raw, &item); err != nil {
				return err
			}
			_, err := s.Call(ctx, kind.use, map[string]json.RawMessage{kind.key: item[kind.key]}, nil)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// makeCalls makes the calls that the suite has asked for.
func makeCalls(ctx context.Context, s server, g given) error {
	all, err := tools(ctx, s)
	errs := []error{err}
	for _, c := range g.ToolCalls {
		_, err := call(ctx, s, all[c.Name], c.Arguments)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func callEveryTool(ctx context.Context, s server, _ given) error {
	all, err := tools(ctx, s)
	errs := []error{err}
	for _, t := range all {
		_, err := call(ctx, s, t, json.RawMessage(`{"region":"us-west1"}`))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func quoted(s string) json.RawMessage {
	b, _ := json.Marshal(s) // strings can always be written
	return b
}
