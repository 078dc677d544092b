package spec

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"sandlot/internal/fault"
)

// Values are the values of variables and headers, by name. Those that refer to stored
// secrets are stored, unexpanded; the others never are.
type Values struct {
	Env, Headers map[string]string
	Complete     bool // no value is missing
}

// referencePattern matches a reference to a stored secret in a value.
var referencePattern = regexp.MustCompile(`\$\{secret:([A-Za-z_][A-Za-z0-9_]{0,63})\}`)

const (
	referencePrefix = "${secret:"
	maxExpanded     = 64 << 10 // bytes of one value after expansion
	maxRevealed     = 1 << 20  // bytes of all variables of a command after expansion
)

// hasReference reports whether a value has a reference, valid or not.
func hasReference(value string) bool { return strings.Contains(value, referencePrefix) }

// checkReferences returns an error if a value has an invalid reference.
func checkReferences(argument, key, value string) error {
	if strings.Count(value, referencePrefix) == len(referencePattern.FindAllStringIndex(value, -1)) {
		return nil
	}
	return fault.Argument(argument,
		"%s %s: a reference to a stored secret is ${secret:NAME}, with a name of 1 to 64 letters, "+
			"digits and _ that does not begin with a digit", argument, key)
}

// maskValue returns a value with "…" in place of all text but references.
func maskValue(value string) string {
	var b strings.Builder
	references := referencePattern.FindAllString(value, -1)
	for i, text := range referencePattern.Split(value, -1) {
		if text != "" {
			b.WriteString("…")
		}
		if i < len(references) {
			b.WriteString(references[i])
		}
	}
	return b.String()
}

// withReferences returns the values that have references, unexpanded, as they are stored.
func withReferences(values map[string]string) map[string]string {
	var some map[string]string
	for k, v := range values {
		if hasReference(v) {
			if some == nil {
				some = map[string]string{}
			}
			some[k] = v
		}
	}
	return some
}

// maskedReferences returns the values that have references, masked, to be shown to users.
func maskedReferences(values map[string]string) map[string]string {
	some := withReferences(values)
	for k, v := range some {
		some[k] = maskValue(v)
	}
	return some
}

// Merge returns v with env and headers added; they replace values of the same names.
func (v Values) Merge(env, headers map[string]string) Values {
	return Values{Env: mergeMaps(v.Env, env), Headers: mergeMaps(v.Headers, headers)}
}

func mergeMaps(a, b map[string]string) map[string]string {
	m := maps.Clone(a)
	if m == nil {
		m = map[string]string{}
	}
	maps.Copy(m, b)
	return m
}

// Expand returns the values with all references replaced by their secrets. It reveals each
// secret once, and does not expand references inside secrets.
func (v Values) Expand(reveal func(name string) (string, error)) (Values, error) {
	revealed := map[string]string{}
	expand := func(what string, values map[string]string) (map[string]string, error) {
		expanded := maps.Clone(values)
		for _, k := range slices.Sorted(maps.Keys(values)) {
			value, err := expandValue(values[k], revealed, reveal)
			if err == nil && hasReference(values[k]) && (len(value) > maxExpanded || what == "header" &&
				HasControl(value)) {
				err = fault.New(fault.InvalidParameters,
					"the %s %s, with the secret in its place, is larger than %d bytes, "+
						"or none that HTTP knows (a line end?)", what, k, maxExpanded)
			}
			if err != nil {
				return nil, err
			}
			expanded[k] = value
		}
		return expanded, nil
	}
	env, err := expand("variable", v.Env)
	if err != nil {
		return v, err
	}
	headers, err := expand("header", v.Headers)
	return Values{Env: env, Headers: headers, Complete: v.Complete}, err
}

// RevealEnv returns the variables of a command with all references replaced by their secrets, as Expand does. Without
// references it returns env itself.
func RevealEnv(env map[string]string, reveal func(name string) (string, error)) (map[string]string, error) {
	if len(withReferences(env)) == 0 {
		return env, nil
	}
	expanded, revealed, total := maps.Clone(env), map[string]string{}, 0
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if err := checkReferences("env", k, env[k]); err != nil {
			return nil, err
		}
		value, err := expandValue(env[k], revealed, reveal)
		if err != nil {
			return nil, err
		}
		total += len(value)
		if hasReference(env[k]) && len(value) > maxExpanded || total > maxRevealed {
			return nil, fault.Argument("env", "with secrets in place of their references, a variable has at most %d "+
				"bytes, and all variables of a command %d: %s is more", maxExpanded, maxRevealed, fault.Clip(k))
		}
		expanded[k] = value
	}
	return expanded, nil
}

// expandValue expands one value. It stops when the result has more than maxExpanded bytes;
// revealed are the secrets that were revealed already.
func expandValue(value string, revealed map[string]string, reveal func(name string) (string, error)) (string, error) {
	var out strings.Builder
	end := 0
	for _, at := range referencePattern.FindAllStringSubmatchIndex(value, -1) {
		name := value[at[2]:at[3]]
		secret, ok := revealed[name]
		if !ok {
			var err error
			if secret, err = reveal(name); err != nil {
				return "", err
			}
			revealed[name] = secret
		}
		out.WriteString(value[end:at[0]])
		out.WriteString(secret)
		end = at[1]
		if out.Len() > maxExpanded {
			return out.String(), nil
		}
	}
	out.WriteString(value[end:])
	return out.String(), nil
}
