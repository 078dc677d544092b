package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/clientconfig"
	"sandlot/internal/expand"
	"sandlot/internal/fault"
)

// format is the syntax of the entries in a kind of file.
type format struct {
	// translate returns the values by their keys in sandlot.yaml.
	translate func(keys map[string]any) (translated map[string]any, notes []string, err error)
	expand    func(ctx context.Context, text string, env variables) (string, error)
}

// variables are the environment variables to which an entry may refer.
type variables struct {
	values  map[string]string
	allowed []string // names in mcp_files_env: the only ones for clients' files
}

// checkAllowed returns an error if a client's file may not use the variable.
func (v variables) checkAllowed(name string) error {
	if slices.Contains(v.allowed, name) {
		return nil
	}
	return fmt.Errorf("the variable %s is not given to files of MCP clients; "+
		"the operator can list it in mcp_files_env", fault.Clip(name))
}

// ownFormat is the syntax of sandlot.yaml.
var ownFormat = format{
	translate: func(keys map[string]any) (map[string]any, []string, error) {
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(ownKeys, k) {
				return keys, nil, fmt.Errorf("unknown setting %q%s", fault.Clip(k), fault.DidYouMean(k, ownKeys))
			}
		}
		return keys, nil, nil
	},
	expand: func(ctx context.Context, text string, env variables) (string, error) {
		return expand.Value(ctx, text, env.values)
	},
}

// clientFormat returns the syntax of a client's file.
func clientFormat(f *clientconfig.Format) *format {
	return &format{
		translate: f.Translate,
		expand: func(_ context.Context, text string, env variables) (string, error) {
			return f.Expand(text, clientconfig.Variables{Values: env.values, Allow: env.checkAllowed})
		},
	}
}

// readClients reads the servers in a client's file, whose keys tell the format.
func readClients(path string, checker *fileChecker) ([]entry, error) {
	f, err := checker.open(path)
	if errors.As(err, new(*os.PathError)) {
		err = errors.New("it cannot be read: " + withoutPath(err))
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, clientconfig.MaxFile+1))
	if err != nil {
		return nil, errors.New("it cannot be read: " + withoutPath(err))
	}
	if len(text) > clientconfig.MaxFile {
		return nil, fmt.Errorf("it is larger than %d MiB", clientconfig.MaxFile>>20)
	}
	servers, format, err := clientconfig.Read(text)
	if err != nil {
		return nil, err
	}
	var all []entry
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		e := entry{name: name, file: path, format: clientFormat(format)}
		e.keys, e.err = entryKeys(servers[name], nil)
		all = append(all, e)
	}
	return all, nil
}

func withoutPath(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// yamlTree converts a YAML node to texts, lists ([]any) and maps. Numbers stay as they are written.
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
			if _, duplicate := m[key]; duplicate {
				return nil, fmt.Errorf("the key %q occurs twice", fault.Clip(key))
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
