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
	Known        bool // no value is missing
}

// reference matches a reference to a stored secret in a value.
var reference = regexp.MustCompile(`\$\{secret:([A-Za-z_][A-Za-z0-9_]{0,63})\}`)

const (
	referring = "${secret:"
	maxFilled = 64 << 10 // bytes of one value after expansion
)

// refers reports whether a value has a reference, valid or not.
func refers(value string) bool { return strings.Contains(value, referring) }

// checkReferences returns an error if a value has an invalid reference.
func checkReferences(argument, key, value string) error {
	if strings.Count(value, referring) == len(reference.FindAllStringIndex(value, -1)) {
		return nil
	}
	return wrong(argument, "%s %s: a reference to a stored secret is ${secret:NAME}, with a name of 1 to 64 letters, "+
		"digits and _ that does not begin with a digit", argument, key)
}

// masked returns a value with "…" in place of all text but references.
func masked(value string) string {
	var b strings.Builder
	end := 0
	rest := func(to int) {
		if to > end {
			b.WriteString("…")
		}
	}
	for _, at := range reference.FindAllStringIndex(value, -1) {
		rest(at[0])
		b.WriteString(value[at[0]:at[1]])
		end = at[1]
	}
	rest(len(value))
	return b.String()
}

// references returns the values that have references, unexpanded, as they are stored.
func references(values map[string]string) map[string]string {
	var some map[string]string
	for k, v := range values {
		if refers(v) {
			if some == nil {
				some = map[string]string{}
			}
			some[k] = v
		}
	}
	return some
}

// shownReferences returns the values that have references, masked, to be shown to users.
func shownReferences(values map[string]string) map[string]string {
	some := references(values)
	for k, v := range some {
		some[k] = masked(v)
	}
	return some
}

// Merge returns v with env and headers added; they replace values of the same names.
func (v Values) Merge(env, headers map[string]string) Values {
	return Values{Env: merged(v.Env, env), Headers: merged(v.Headers, headers)}
}

func merged(a, b map[string]string) map[string]string {
	m := maps.Clone(a)
	if m == nil {
		m = map[string]string{}
	}
	maps.Copy(m, b)
	return m
}

// Fill returns the values with all references replaced by their secrets. It reveals each
// secret once, and does not expand references inside secrets.
func (v Values) Fill(reveal func(name string) (string, error)) (Values, error) {
	known := map[string]string{}
	fill := func(what string, values map[string]string) (map[string]string, error) {
		full := maps.Clone(values)
		for _, k := range slices.Sorted(maps.Keys(values)) {
			filled, err := fillOne(values[k], known, reveal)
			if err == nil && refers(values[k]) && (len(filled) > maxFilled || what == "header" && HasControl(filled)) {
				err = fault.New(fault.InvalidParameters,
					"the %s %s, with the secret in its place, is larger than %d bytes, "+
						"or none that HTTP knows (a line end?)", what, k, maxFilled)
			}
			if err != nil {
				return nil, err
			}
			full[k] = filled
		}
		return full, nil
	}
	env, err := fill("variable", v.Env)
	if err != nil {
		return v, err
	}
	headers, err := fill("header", v.Headers)
	return Values{Env: env, Headers: headers, Known: v.Known}, err
}

// fillOne expands one value. It stops when the result has more than maxExpanded bytes;
// revealed are the secrets that were revealed already.
func fillOne(value string, known map[string]string, reveal func(name string) (string, error)) (string, error) {
	var out strings.Builder
	end := 0
	for _, at := range reference.FindAllStringSubmatchIndex(value, -1) {
		name := value[at[2]:at[3]]
		secret, ok := known[name]
		if !ok {
			var err error
			if secret, err = reveal(name); err != nil {
				return "", err
			}
			known[name] = secret
		}
		out.WriteString(value[end:at[0]])
		out.WriteString(secret)
		end = at[1]
		if out.Len() > maxFilled {
			return out.String(), nil
		}
	}
	out.WriteString(value[end:])
	return out.String(), nil
}
