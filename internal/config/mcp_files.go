package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/expand"
)

// form is how a kind of file says what an entry is.
type form struct {
	// translate gives the keys their names in sandlot.yaml.
	translate func(keys map[string]any) (translated map[string]any, notes []string, err error)
	expand    func(ctx context.Context, text string, env variables) (string, error)
}

// variables are those of the server that an entry may name.
type variables struct {
	all    map[string]string
	listed []string // in mcp_files_env, for the files of clients
}

// may says why a client's file does not get a variable.
func (v variables) may(name string) error {
	if slices.Contains(v.listed, name) {
		return nil
	}
	return fmt.Errorf("the variable %s is not given to files of MCP clients; the operator can list it in mcp_files_env", clipped(name))
}

var (
	own = form{func(keys map[string]any) (map[string]any, []string, error) {
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(ownKeys, k) {
				return keys, nil, fmt.Errorf("unknown setting %q%s", clipped(k), meant(k, ownKeys))
			}
		}
		return keys, nil, nil
	}, func(ctx context.Context, text string, env variables) (string, error) {
		return expand.Value(ctx, text, env.all)
	}}
	crush = form{fromCrush, func(_ context.Context, text string, env variables) (string, error) {
		return expand.Variables(text, env.all, env.may)
	}}
	editor = form{fromEditor, func(_ context.Context, text string, env variables) (string, error) {
		return braces(text, env, true)
	}}
	vsCode = form{fromEditor, func(_ context.Context, text string, env variables) (string, error) {
		return braces(text, env, false)
	}}
)

// crushKeys are Crush's own; ours, which say where a server runs and who may
// use it, are for sandlot.yaml alone.
var crushKeys = ownKeys[:14]

// crushElse are keys of Crush that say nothing to Sandlot.
var crushElse = []string{"sessionless", "oauth_callback_port", "channel_enabled", "channel_reply"}

func fromCrush(keys map[string]any) (map[string]any, []string, error) {
	kept := map[string]any{}
	var notes []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		switch {
		case slices.Contains(crushKeys, k):
			kept[k] = keys[k]
		case !slices.Contains(crushElse, k):
			notes = append(notes, fmt.Sprintf("its key %q is not used%s", clipped(k), meant(k, crushKeys)))
		}
	}
	return kept, notes, nil
}

// editorKeys are those of Claude, Cursor, VS Code, Windsurf, Kiro and Gemini
// that mean what one of ours means.
var editorKeys = map[string]string{
	"type": "type", "transport": "type", "command": "command", "args": "args", "env": "env", "url": "url", "serverUrl": "url", "httpUrl": "url",
	"headers": "headers", "disabled": "disabled", "disabledTools": "disabled_tools", "excludeTools": "disabled_tools", "includeTools": "enabled_tools",
}

var editorTypes = map[string]string{"streamable-http": "http", "streamableHttp": "http", "streamable_http": "http", "remote": "http", "local": "stdio"}

func fromEditor(keys map[string]any) (map[string]any, []string, error) {
	kept := map[string]any{}
	var notes []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		v := keys[k]
		if to, ok := editorKeys[k]; ok {
			kept[to] = v
			continue
		}
		switch k {
		case "envFile", "headersHelper":
			return kept, nil, fmt.Errorf("%s is not supported: write the values into %s, as variables", k, map[string]string{"envFile": "env", "headersHelper": "headers"}[k])
		case "cwd":
			notes = append(notes, "its cwd is not used: servers start in /workspace")
		case "timeout":
			kept[k] = milliseconds(v)
		case "oauth":
			if m, ok := v.(map[string]any); ok {
				kept["oauth_client_id"], kept["oauth_client_secret"], kept["oauth_issuer"] = m["clientId"], m["clientSecret"], m["issuer"]
			}
		}
	}
	if t, ok := kept["type"].(string); ok && editorTypes[t] != "" {
		kept["type"] = editorTypes[t]
	}
	return kept, notes, nil
}

// milliseconds reads a timeout that is in milliseconds in some of these files
// and in seconds in others: nobody waits for a quarter of an hour.
func milliseconds(v any) any {
	text, _ := v.(string)
	if n, err := strconv.ParseFloat(text, 64); err == nil && n >= 1000 {
		return strconv.FormatFloat(n/1000, 'f', -1, 64)
	}
	return v
}

// braces expands ${env:VAR} and, where plain is set, Claude Code's ${VAR} and
// ${VAR:-text}. What was put in is not looked at again.
func braces(text string, env variables, plain bool) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		body, after, closed := strings.Cut(rest, "}")
		if !closed || strings.Contains(body, "${") {
			return "", errors.New("a ${ has no } of its own; one within the other is for sandlot.yaml")
		}
		v, err := brace(body, env, plain)
		if err != nil {
			return "", err
		}
		out.WriteString(v)
		text = after
	}
}

func brace(body string, env variables, plain bool) (string, error) {
	name, text, fallback := strings.Cut(body, ":-")
	switch {
	case strings.HasPrefix(body, "env:"):
		name = strings.TrimPrefix(body, "env:")
		if err := env.may(name); err != nil {
			return "", err
		}
		return env.all[name], nil
	case strings.HasPrefix(body, "input:"):
		return "", fmt.Errorf("${%s} is something that the editor asks its user for; write ${env:NAME} and start the server with that variable", clipped(body))
	case body == "pathSeparator" || body == "/":
		return "/", nil
	case strings.HasPrefix(body, "workspaceFolder"), body == "userHome", body == "cwd", strings.Contains(body, ":") && !fallback:
		return "", fmt.Errorf("${%s} is known to the editor alone; write what it stands for", clipped(body))
	case !envForm.MatchString(name):
		return "", errors.New("a ${…} is not one that is known here")
	case !plain:
		return "", fmt.Errorf("${%s}: a variable is written ${env:%s} in this form", clipped(name), clipped(name))
	}
	if err := env.may(name); err != nil {
		return "", err
	}
	value := env.all[name]
	switch {
	case value == "" && fallback:
		return text, nil
	case value == "":
		return "", fmt.Errorf("the variable %s is not set, and ${%s} has no default", clipped(name), clipped(name))
	}
	return value, nil
}

// maxClientFile bounds a client's file, in bytes; Claude Code's own grows large.
const maxClientFile = 64 << 20

// readClients reads the servers in a client's file, in the form that its keys
// tell of.
func readClients(path string, judge *trust) ([]entry, error) {
	f, err := judge.open(path)
	if errors.As(err, new(*os.PathError)) {
		err = errors.New("it cannot be read: " + plainly(err))
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxClientFile+1))
	if err != nil {
		return nil, errors.New("it cannot be read: " + plainly(err))
	}
	if len(text) > maxClientFile {
		return nil, fmt.Errorf("it is larger than %d MiB", maxClientFile>>20)
	}
	top, err := clientSections(text)
	if err != nil {
		return nil, err
	}
	list, how, err := clientServers(top)
	if err != nil {
		return nil, err
	}
	if len(list) > maxClientServers {
		return nil, fmt.Errorf("it has %d servers, and %d are taken from a file", len(list), maxClientServers)
	}
	var all []entry
	for _, name := range slices.Sorted(maps.Keys(list)) {
		e := entry{name: name, from: path, form: how}
		e.keys, e.err = section(list[name], nil)
		all = append(all, e)
	}
	return all, nil
}

func plainly(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// clientServers finds the servers, and whose form they are in.
func clientServers(top map[string]any) (map[string]any, *form, error) {
	servers, has := top["mcpServers"]
	how := &editor
	if !has {
		how = &vsCode
		servers, has = top["servers"]
	}
	if !has {
		how = &crush
		servers, has = top["mcp"]
		// VS Code's settings.json has the section of its mcp.json under "mcp".
		if within, ok := servers.(map[string]any); ok {
			if inner, ok := within["servers"].(map[string]any); ok && inner["command"] == nil && inner["url"] == nil {
				how, servers = &vsCode, inner
			}
		}
	}
	if !has {
		return nil, nil, errors.New("it has neither mcpServers (as Claude, Cursor and others do), nor servers (VS Code), nor mcp (crush.json)")
	}
	list, ok := servers.(map[string]any)
	if !ok && servers != nil {
		return nil, nil, errors.New("its servers are not an object of names with settings")
	}
	return list, how, nil
}

// yamlTree does the same for YAML: a text is as it was written.
func yamlTree(n *yaml.Node, depth int) (any, error) {
	if depth > 16 {
		return nil, errors.New("it is nested too deeply")
	}
	switch n.Kind {
	case yaml.AliasNode:
		return yamlTree(n.Alias, depth+1)
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			v, err := yamlTree(c, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		m := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if _, twice := m[key]; twice {
				return nil, fmt.Errorf("%q stands there twice", clipped(key))
			}
			v, err := yamlTree(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			m[key] = v
		}
		return m, nil
	}
	if n.Tag == "!!null" {
		return nil, nil
	}
	if n.Tag == "!!bool" {
		return strings.ToLower(n.Value), nil
	}
	return n.Value, nil
}
