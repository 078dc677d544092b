package toolview

import (
	"fmt"
	"slices"
	"strings"
)

// Results is the form in which a client gets results of Sandlot's own tools.
type Results string

// The forms. Images and failures are in content in each of them.
const (
	Text Results = "text" // content alone
	Data Results = "data" // structuredContent alone, where there is one
	Both Results = "both"
)

// Forms are all forms.
var Forms = []Results{Text, Data, Both}

// ParseResults reads a form. The empty text is the empty form, which leaves the choice to what is known of the client.
func ParseResults(text string) (Results, error) {
	if text == "" || slices.Contains(Forms, Results(text)) {
		return Results(text), nil
	}
	return "", fmt.Errorf("must be one of text, data, both")
}

// readText are clients whose models do best with content alone, by the beginnings of the names that they send, in lower
// case: some show models content and structuredContent, and cut what is long; some show structuredContent in place of
// content, with all line breaks escaped. docs/guide/clients.md says what each does.
var readText = []string{"@cline/", "claude-code", "cline", "codex", "continue", "copilot", "gemini-cli", "github-copilot", "opencode",
	"qwen"}

// ResultsOf returns the form for a client by the name that it sends.
func ResultsOf(client string) Results {
	client = strings.ToLower(client)
	if slices.ContainsFunc(readText, func(name string) bool { return strings.HasPrefix(client, name) }) {
		return Text
	}
	return Both
}

// ReadsJSON reports whether a client, by the name that it sends, takes the first text of a result without
// structuredContent for that if the text is JSON, and refuses the result if the JSON is not an object.
func ReadsJSON(client string) bool { return strings.HasPrefix(strings.ToLower(client), "gemini-cli") }

// losesServers are clients that give up a server of the stateless protocol when a subscription to its notifications ends
// and cannot be renewed at once, by the beginnings of the names that they send, in lower case.
var losesServers = []string{"copilot-cli", "github-copilot"}

// LosesServers reports whether a client, by the name that it sends, is without a server's tools after the server has
// restarted, unless it speaks the stateful protocol.
func LosesServers(client string) bool {
	client = strings.ToLower(client)
	return slices.ContainsFunc(losesServers, func(name string) bool { return strings.HasPrefix(client, name) })
}
