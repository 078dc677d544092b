package clientconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/expand"
	"sandlot/internal/fault"
)

// A Format is the syntax in which one or more clients list their servers.
type Format struct {
	section   string // the key of the object with the servers
	translate func(entry map[string]any) (translated map[string]any, notes []string, err error)
	expand    func(ctx context.Context, text string, v Variables) (string, error)
}

var (
	crush  = &Format{"mcp", translateCrush, expandCrush}
	editor = &Format{"mcpServers", translateEditor, func(_ context.Context, text string, v Variables) (string,
		error) {
		return expandEditor(text, v, true)
	}}
	vsCode = &Format{"servers", translateEditor, func(_ context.Context, text string, v Variables) (string,
		error) {
		return expandEditor(text, v, false)
	}}
)

// Translate returns the values of an entry by the keys in Keys. It leaves out keys without an
// equivalent; notes mention those whose effect the user would miss.
func (f *Format) Translate(entry map[string]any) (translated map[string]any, notes []string, err error) {
	return f.translate(entry)
}

// Expand replaces references to variables in a text of an entry, and, if v says so, commands.
func (f *Format) Expand(ctx context.Context, text string, v Variables) (string, error) {
	return f.expand(ctx, text, v)
}

// Variables are the environment variables for Expand.
type Variables struct {
	Values map[string]string
	// Allow returns an error if the file may not use the variable.
	Allow func(name string) error
	// Commands is set if $(command) runs, in the formats that have it.
	Commands bool
	// Folder is what $(pwd) stands for; empty: the folder of this process.
	Folder string
}

var variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expandCrush expands Crush's $VAR, ${VAR}, ${VAR:-word} and $(command).
func expandCrush(ctx context.Context, text string, v Variables) (string, error) {
	return expand.Text(ctx, text, expand.Options{Env: v.Values, Allow: v.Allow, Commands: v.Commands, Folder: v.Folder})
}

// Keys are the keys of an entry after Translate. They are Crush's.
var Keys = []string{"type", "command", "args", "env", "url", "headers", "timeout", "disabled", "disabled_tools",
	"enabled_tools", "oauth", "oauth_client_id", "oauth_client_secret", "oauth_issuer"}

// crushIgnored are keys of Crush that Sandlot ignores.
var crushIgnored = []string{"sessionless", "oauth_callback_port", "channel_enabled", "channel_reply"}

func translateCrush(keys map[string]any) (map[string]any, []string, error) {
	translated := map[string]any{}
	var notes []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		switch {
		case slices.Contains(Keys, k):
			translated[k] = keys[k]
		case !slices.Contains(crushIgnored, k):
			notes = append(notes, fmt.Sprintf("its key %q is not used%s", fault.Clip(k), fault.DidYouMean(k, Keys)))
		}
	}
	return translated, notes, nil
}

// editorKeys maps keys of Claude, Cursor, VS Code, Windsurf, Kiro and Gemini to the keys of
// sandlot.yaml with the same meaning.
var editorKeys = map[string]string{
	"type": "type", "transport": "type", "command": "command", "args": "args", "env": "env",
	"url": "url", "serverUrl": "url", "httpUrl": "url", "headers": "headers", "disabled": "disabled",
	"disabledTools": "disabled_tools", "excludeTools": "disabled_tools", "includeTools": "enabled_tools",
}

// editorTypes maps other names of transports, in those clients, to Sandlot's.
var editorTypes = map[string]string{
	"streamable-http": "http", "streamableHttp": "http", "streamable_http": "http", "remote": "http", "local": "stdio",
}

func translateEditor(keys map[string]any) (map[string]any, []string, error) {
	translated := map[string]any{}
	var notes []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		v := keys[k]
		if key, ok := editorKeys[k]; ok {
			translated[key] = v
			continue
		}
		switch k {
		case "envFile", "headersHelper":
			replacement := map[string]string{"envFile": "env", "headersHelper": "headers"}[k]
			return translated, nil, fmt.Errorf("%s is not supported: write the values into %s, as variables", k,
				replacement)
		case "cwd":
			notes = append(notes, "its cwd is not used: servers start in /workspace")
		case "timeout":
			translated[k] = timeoutSeconds(v)
		case "oauth":
			if m, ok := v.(map[string]any); ok {
				translated["oauth_client_id"], translated["oauth_client_secret"],
					translated["oauth_issuer"] = m["clientId"],
					m["clientSecret"], m["issuer"]
			}
		}
	}
	if t, ok := translated["type"].(string); ok && editorTypes[t] != "" {
		translated["type"] = editorTypes[t]
	}
	return translated, notes, nil
}

// timeoutSeconds converts a timeout to seconds. Some clients use seconds and others milliseconds: a value
// of 1000 or more is taken as milliseconds, as it would be more than a quarter of an hour in seconds.
func timeoutSeconds(v any) any {
	text, _ := v.(string)
	if n, err := strconv.ParseFloat(text, 64); err == nil && n >= 1000 {
		return strconv.FormatFloat(n/1000, 'f', -1, 64)
	}
	return v
}

// expandEditor expands ${env:VAR} and, if bareNames is set, Claude Code's ${VAR} and ${VAR:-text}. It does not
// expand the inserted values again.
func expandEditor(text string, v Variables, bareNames bool) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		body, after, closed := strings.Cut(rest, "}")
		if !closed || strings.Contains(body, "${") {
			return "", errors.New("a ${ has no matching }; only sandlot.yaml can nest them")
		}
		value, err := expandReference(body, v, bareNames)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
		text = after
	}
}

// expandReference returns the value of a reference whose text between ${ and } is body.
func expandReference(body string, v Variables, bareNames bool) (string, error) {
	name, defaultValue, hasDefault := strings.Cut(body, ":-")
	switch {
	case strings.HasPrefix(body, "env:"):
		name = strings.TrimPrefix(body, "env:")
		if err := v.Allow(name); err != nil {
			return "", err
		}
		return v.Values[name], nil
	case strings.HasPrefix(body, "input:"):
		return "", fmt.Errorf("${%s} is something that the editor asks its user for; "+
			"write ${env:NAME} and start the server with that variable", fault.Clip(body))
	case body == "pathSeparator" || body == "/":
		return "/", nil
	case strings.HasPrefix(body, "workspaceFolder"), body == "userHome", body == "cwd",
		strings.Contains(body, ":") && !hasDefault:
		return "", fmt.Errorf("only the editor knows ${%s}; write what it stands for", fault.Clip(body))
	case !variablePattern.MatchString(name):
		return "", errors.New("a reference ${…} has a form that is not supported")
	case !bareNames:
		return "", fmt.Errorf("${%s}: a variable is written ${env:%s} in this form", fault.Clip(name), fault.Clip(name))
	}
	if err := v.Allow(name); err != nil {
		return "", err
	}
	value := v.Values[name]
	switch {
	case value == "" && hasDefault:
		return defaultValue, nil
	case value == "":
		return "", fmt.Errorf("the variable %s is not set, and ${%s} has no default", fault.Clip(name),
			fault.Clip(name))
	}
	return value, nil
}
