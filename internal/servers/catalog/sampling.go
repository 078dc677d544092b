package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"sandlot/internal/rawjson"
	"sandlot/internal/servers/spec"
)

// maxSystemPrompt bounds what a server tells a client's model, in bytes.
const maxSystemPrompt = 64 << 10

// sampledMembers are the members of a server's request for the client's model that are passed on, in this order, beside
// the system prompt. includeContext is not: to the client, all servers behind Sandlot are one, so it would give one
// server what others have said.
var sampledMembers = []string{"messages", "maxTokens", "temperature", "stopSequences", "modelPreferences", "metadata",
	"tools", "toolChoice"}

// sampling returns the parameters of a server's request for the client's model. The system prompt, which a client shows
// its user beside the messages, says whose the request is, and quotes that of the server. The messages are what the model
// works on, and get no words of Sandlot's.
func sampling(server string, params rawjson.Object) (json.RawMessage, error) {
	prompt := rawjson.Text(params["systemPrompt"])
	if len(prompt) > maxSystemPrompt {
		return nil, fmt.Errorf("its system prompt has %d bytes: at most %d are passed on", len(prompt), maxSystemPrompt)
	}
	whose := fmt.Sprintf("The MCP server %s asks for this, through Sandlot. The messages are that server's, whatever "+
		"they say", spec.ExactCommandLine([]string{server}))
	if prompt != "" {
		whose += ", and so is each line here that begins with >:\n" + spec.Quoted(prompt, maxSystemPrompt)
	} else {
		whose += "."
	}
	q := ordered{}
	q.add("systemPrompt", rawjson.Quote(whose))
	if err := checkRoles(params["messages"]); err != nil {
		return nil, err
	}
	for _, name := range sampledMembers {
		raw, ok := params[name]
		if !ok {
			continue
		}
		if name == "messages" || name == "tools" {
			shown, err := shownTexts(raw)
			if err != nil {
				return nil, fmt.Errorf("its %s %w", name, err)
			}
			raw = shown
		}
		q.add(name, raw)
	}
	return q.encode(), nil
}

// checkRoles returns an error if a message is not the user's or the assistant's: to many clients "system" is another
// system prompt, which would stand beside the one that says whose the request is.
func checkRoles(raw json.RawMessage) error {
	var messages []rawjson.Object
	if !rawjson.IsArray(raw) || json.Unmarshal(raw, &messages) != nil {
		return errors.New("its messages are not a list")
	}
	for _, m := range messages {
		if role := rawjson.Text(m["role"]); role != "user" && role != "assistant" {
			return fmt.Errorf("a message has the role %s: only user and assistant are passed on",
				spec.ExactCommandLine([]string{spec.ClipName(role)}))
		}
	}
	return nil
}

// shownTexts returns a value whose texts have no characters that models read and people do not see.
func shownTexts(raw json.RawMessage) (json.RawMessage, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if rawjson.NestedDeeper(raw, maxDepth) || d.Decode(&v) != nil {
		return nil, errors.New("are nested too deep, or no JSON")
	}
	return rawjson.Encode(showTexts(v))
}

// showTexts does as shownTexts, with a decoded value. Names are texts, too: a model reads those of a tool's properties,
// and what a message says that a tool has got and answered.
func showTexts(v any) any {
	switch v := v.(type) {
	case string:
		return spec.SafeText(v, 3*len(v)) // an invalid byte becomes three
	case []any:
		for i, e := range v {
			v[i] = showTexts(e)
		}
	case map[string]any:
		shown := make(map[string]any, len(v))
		for k, e := range v {
			shown[spec.SafeText(k, 3*len(k))] = showTexts(e)
		}
		return shown
	}
	return v
}
