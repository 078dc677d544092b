package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"sandlot/internal/clientconfig"
	"sandlot/internal/config/entry"
	"sandlot/internal/fault"
)

// readClients reads the servers in a client's file, whose keys tell the format.
func readClients(path string, checker *fileChecker) ([]entry.Entry, error) {
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
	var all []entry.Entry
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		all = append(all, entry.OfClient(name, path, format, servers[name]))
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
