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
	if !rawjson.IsArray(params["messages"]) {
		return nil, errors.New("its messages are no list")
	}
	for _, name := range sampledMembers {
		raw, ok := params[name]
		if !ok {
			continue
		}
		shown, err := shownTexts(raw)
		if err != nil {
			return nil, fmt.Errorf("its %s %w", name, err)
		}
		q.add(name, shown)
	}
	return q.encode(), nil
}

// shownTexts returns a value whose texts have no characters that models read and people do not see.
func shownTexts(raw json.RawMessage) (json.RawMessage, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if rawjson.NestedDeeper(raw, maxDepth) || d.Decode(&v) != nil {
		return nil, errors.New("are nested too deep, or no JSON")
	}
	showTexts(v)
	return rawjson.Encode(v)
}

// showTexts does as shownTexts, with a decoded value. Other texts than these are data, or names.
func showTexts(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			showTexts(e)
		}
	case map[string]any:
		for k, e := range v {
			s, ok := e.(string)
			if ok && (k == "text" || k == "description" || k == "title" || k == "$comment") {
				v[k] = spec.SafeText(s, 3*len(s)) // an invalid byte becomes three
				continue
			}
			showTexts(e)
		}
	}
}
