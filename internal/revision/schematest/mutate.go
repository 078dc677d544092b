package schematest

import (
	"encoding/json"
	"maps"
	"slices"
)

// odd are values that servers send in place of others.
var odd = []any{nil, "", "x", "12", "true", 5.0, -1.0, 0.5, 1e30, true, []any{}, []any{nil}, []any{"a", 5.0}, map[string]any{},
	map[string]any{"a": nil}, map[string]any{"type": "nonsense", "properties": []any{}}, []any{map[string]any{"b": "c"}}}

// Mutations returns all texts that differ from a valid one in one value: another one in its place, or none.
func Mutations(valid string) (all []json.RawMessage) {
	var root any
	if err := json.Unmarshal([]byte(valid), &root); err != nil {
		panic(err)
	}
	add := func() {
		b, err := json.Marshal(root)
		if err != nil {
			panic(err)
		}
		all = append(all, b)
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				before := v[k]
				for _, o := range odd {
					v[k] = o
					add()
				}
				delete(v, k)
				add()
				v[k] = before
				walk(before)
			}
		case []any:
			for i, before := range v {
				for _, o := range odd {
					v[i] = o
					add()
				}
				v[i] = before
				walk(before)
			}
		}
	}
	add()
	walk(root)
	return all
}
