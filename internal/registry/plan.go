package registry

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/fault"
)

// The tools by which the servers of a registry are added.
const (
	installTool = "auto_install_and_connect_mcp"
	connectTool = "connect_external_mcp"
)

// Choice is what the user chose of an entry.
type Choice struct {
	Way string `json:"way,omitempty"` // a way's id; empty: the first one that is supported
	// ServerName is the name that the server gets; empty: the suggested one.
	ServerName string `json:"server_name,omitempty"`
	// Digest is that of the entry which the user saw; empty: any.
	Digest string `json:"digest,omitempty"`
	// Values has the inputs' values, by their keys. That of a secret is a reference, ${secret:NAME}.
	Values map[string]string `json:"values,omitempty"`
}

// Plan is the tool call that adds a server. It goes through the same rules and the same consent as any other.
type Plan struct {
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	Way       string         `json:"way"`
	Publisher string         `json:"publisher"`
	Version   string         `json:"version"`
	Notes     []string       `json:"notes,omitempty"`
}

// way returns the way with that id, or the first one that is supported.
func (e Entry) way(id string) (Way, error) {
	var why []string
	for _, w := range e.Ways {
		if id == w.ID || id == "" && w.Supported {
			if !w.Supported {
				return w, fault.Argument("way", "%s of %s cannot be used: %s", w.ID, e.Name, w.Why)
			}
			return w, nil
		}
		why = append(why, fmt.Sprintf("%s (%s): %s", w.ID, w.Kind, w.Why))
	}
	switch {
	case id != "":
		return Way{}, fault.Argument("way", "%s has no package or address %q", e.Name, fault.Clip(id))
	case len(why) == 0:
		return Way{}, fault.Argument("name", "%s declares no package and no address", e.Name)
	}
	return Way{}, fault.Argument("name", "Sandlot cannot run %s. %s", e.Name, strings.Join(why[:min(len(why), 5)], "; "))
}

// Plan returns the tool call that adds the server.
func (e Entry) Plan(c Choice) (Plan, error) {
	if e.Status == "deleted" {
		return Plan{}, fault.Argument("name", "%s %s was deleted from the registry. %s", e.Name, e.Version, e.StatusMessage)
	}
	w, err := e.way(c.Way)
	if err != nil {
		return Plan{}, err
	}
	for key := range c.Values {
		if !slices.ContainsFunc(w.Inputs, func(i Input) bool { return i.Key == key }) {
			return Plan{}, fault.Argument("values", "%s of %s asks for no value %q", w.ID, e.Name, fault.Clip(key))
		}
	}
	values := map[string]string{}
	for _, i := range w.Inputs {
		v, given := c.Values[i.Key]
		if !given || v == "" {
			v = i.Default
		}
		if err := i.check(v); err != nil {
			return Plan{}, err
		}
		values[i.Key] = v
	}
	p, err := e.plan(w, c.ServerName, values, fillURL(w, values))
	if err != nil {
		return Plan{}, err
	}
	if address, ok := p.Arguments["url"].(string); ok {
		u, err := url.Parse(address)
		if first, _ := url.Parse(w.sample()); err != nil || first == nil || u.Scheme != first.Scheme || u.User != nil {
			return Plan{}, fault.Argument("values", "with these values the address is not a URL")
		}
	}
	return p, nil
}

// check returns an error if a value is not one for the input.
func (i Input) check(v string) error {
	_, number := strconv.ParseFloat(v, 64)
	reference := strings.HasPrefix(v, "${secret:") && strings.HasSuffix(v, "}")
	switch {
	case v == "" && i.Required:
		return fault.Argument("values", "%s (%s) needs a value. %s", i.Label, i.Key, i.Description).With("key", i.Key)
	case v == "":
	case i.Secret && !reference:
		return fault.Argument("values", "%s is a secret: store it (`sandlot secret set %s`), and give ${secret:%[2]s}",
			i.Label, i.SecretName).With("key", i.Key)
	case (i.Place == "argument" || i.Place == "url") && strings.Contains(v, "${secret:"):
		return fault.Argument("values", "%s is part of a command line or an address, where no secret is put", i.Label)
	case len(i.Choices) > 0 && !slices.Contains(i.Choices, v) && !reference:
		return fault.Argument("values", "%s must be one of %s", i.Label, strings.Join(i.Choices, ", ")).With("key", i.Key)
	case i.Format == "number" && number != nil && !reference:
		return fault.Argument("values", "%s must be a number", i.Label).With("key", i.Key)
	case i.Format == "boolean" && v != "true" && v != "false" && !reference:
		return fault.Argument("values", "%s must be true or false", i.Label).With("key", i.Key)
	}
	return nil
}

// plan makes the tool call of values that were checked.
func (e Entry) plan(w Way, name string, values map[string]string, address string) (Plan, error) {
	if name == "" {
		name = e.SuggestedName
	}
	p := Plan{Way: w.ID, Publisher: e.Publisher, Version: e.Version, Notes: w.Notes, Arguments: map[string]any{"name": name}}
	if w.transport != "stdio" {
		p.Tool = connectTool
		p.Arguments["url"], p.Arguments["transport"] = address, w.transport
		headers, err := fillAll(w.headers, values)
		if len(headers) > 0 {
			p.Arguments["headers"] = headers
		}
		return p, err
	}
	p.Tool = installTool
	install := map[string]any{"type": "npm", "spec": w.Identifier + "@" + w.Version}
	if w.Kind == "pypi" {
		install = map[string]any{"type": "pip", "spec": w.Identifier + "==" + w.Version}
	}
	if w.SHA256 != "" {
		install["sha256"] = w.SHA256
	}
	p.Arguments["install"] = install
	args, err := w.fillArguments(values)
	if len(args) > 0 {
		p.Arguments["start"] = map[string]any{"args": args}
	}
	env, envErr := fillAll(w.env, values)
	if len(env) > 0 {
		p.Arguments["env"] = env
	}
	return p, cmp.Or(err, envErr)
}

// reference matches a reference, or the beginning of one.
var reference = regexp.MustCompile(`\$\{[^}]*\}?`)

// fill returns the part's text with values; false: it is left out, as one of its values is not given. The references in
// it must be those of the values: none may come about where the entry's text meets a value, or two values meet.
func (p part) fill(values map[string]string) (string, bool, error) {
	given := true
	var wanted []string
	filled := placeholder.ReplaceAllStringFunc(p.template, func(m string) string {
		key, declared := p.inputs[m[1:len(m)-1]]
		if !declared {
			return m
		}
		given = given && values[key] != ""
		wanted = append(wanted, reference.FindAllString(values[key], -1)...)
		return values[key]
	})
	if !slices.Equal(reference.FindAllString(filled, -1), wanted) {
		return "", false, fault.Argument("values", "with these values, the entry makes a reference to a secret that "+
			"nobody gave: %s", text(p.template, 200))
	}
	return filled, given, nil
}

func fillAll(parts []part, values map[string]string) (map[string]string, error) {
	all := map[string]string{}
	for _, p := range parts {
		v, ok, err := p.fill(values)
		if err != nil {
			return nil, err
		}
		if ok {
			all[p.name] = v
		}
	}
	return all, nil
}

func fillURL(w Way, values map[string]string) string {
	return placeholder.ReplaceAllStringFunc(w.URL, func(m string) string {
		return escaped(values["url:"+m[1:len(m)-1]])
	})
}

func escaped(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

func (w Way) fillArguments(values map[string]string) (args []string, err error) {
	for _, p := range w.arguments {
		v, ok, err := p.fill(values)
		switch {
		case err != nil:
			return nil, err
		case p.flag:
			if values[p.inputs["value"]] == "true" {
				args = append(args, p.name)
			}
			continue
		case !ok:
			continue
		case p.template == "":
			args = append(args, p.name)
			continue
		}
		list := []string{v}
		if key := p.inputs["value"]; !p.fixed && w.repeated(key) {
			list = strings.Split(strings.TrimSpace(v), "\n")
		}
		for _, v := range list {
			switch {
			case strings.HasSuffix(p.name, "="):
				args = append(args, p.name+v)
			case p.name != "":
				args = append(args, p.name, v)
			default:
				args = append(args, v)
			}
		}
	}
	return args, nil
}

func (w Way) repeated(key string) bool {
	return slices.ContainsFunc(w.Inputs, func(i Input) bool { return i.Key == key && i.Repeated })
}

// Example returns the tool call that adds the server, with a word in angle brackets in place of each value that the user
// has to give, and a reference in place of each secret.
func (e Entry) Example(w Way) (Plan, error) {
	values := map[string]string{}
	for _, i := range w.Inputs {
		switch {
		case i.Secret && i.Required:
			values[i.Key] = "${secret:" + i.SecretName + "}"
		case i.Default != "":
			values[i.Key] = i.Default
		case i.Required:
			values[i.Key] = "<" + i.Label + ">"
		}
	}
	address := fillURL(w, values)
	for _, i := range w.Inputs { // an agent looks for the brackets
		if word := "<" + i.Label + ">"; i.Place == "url" && values[i.Key] == word {
			address = strings.ReplaceAll(address, escaped(word), word)
		}
	}
	return e.plan(w, "", values, address)
}
