package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/policy"
	"sandlot/internal/servers/spec"
)

// unreadable returns the way that an entry has in a form that nobody knows.
func unreadable(id string, err error) Way {
	return Way{ID: id, Kind: "other", Inputs: []Input{}, Why: text(err.Error(), 200)}
}

// packageWay reads an element of packages.
func packageWay(id string, raw json.RawMessage) Way {
	var p wirePackage
	if err := decode(raw, &p); err != nil {
		return unreadable(id, err)
	}
	w := Way{ID: id, Kind: knownKind(p.RegistryType), Identifier: text(p.Identifier, 200), Version: text(p.Version, 100),
		SHA256: strings.ToLower(text(p.FileSHA256, 64)), Inputs: []Input{}, transport: "stdio"}
	w.Why = packageTrouble(p, w)
	if w.Why != "" {
		return w
	}
	if len(p.Runtime) > 0 {
		w.Notes = append(w.Notes, "The entry's arguments for npx, uvx or docker are left out: Sandlot installs the "+
			"package, and starts its program itself.")
	}
	for i, a := range p.Arguments {
		w.addArgument(i, a)
	}
	for _, v := range p.Environment {
		w.addKeyValue("env", v)
	}
	return w
}

// packageTrouble says why Sandlot does not run a package; empty: it does.
func packageTrouble(p wirePackage, w Way) string {
	official := map[string]string{"npm": "https://registry.npmjs.org", "pypi": "https://pypi.org"}
	switch kind := p.RegistryType; {
	case kind == "oci":
		return "it is a container image. Sandlot installs packages of npm and PyPI, and connects to remote servers; it does " +
			"not run images as MCP servers"
	case official[kind] == "":
		return "packages of this kind are not supported; those of npm and PyPI are"
	case p.RegistryBaseURL != "" && strings.TrimSuffix(p.RegistryBaseURL, "/") != official[kind]:
		return "its package is in another package registry than that of npm or PyPI"
	case kind == "npm" && (!npmName.MatchString(p.Identifier) || len(p.Identifier) > 214 || npmFile.MatchString(p.Identifier)),
		kind == "pypi" && (!pypiName.MatchString(p.Identifier) || len(p.Identifier) > 200):
		return "its package's name is not a name of that package registry"
	case kind == "npm" && !npmVersion.MatchString(p.Version), kind == "pypi" && !pypiVersion.MatchString(p.Version),
		len(p.Version) > 100:
		return "its package has no exact version"
	case p.FileSHA256 != "" && !sha256Text.MatchString(w.SHA256):
		return "the digest of its package is not a SHA-256"
	case p.Transport.Type != "" && p.Transport.Type != "stdio":
		return "its program listens on a port in place of its standard input"
	}
	return ""
}

// remoteWay reads an element of remotes.
func remoteWay(id string, raw json.RawMessage, allowed func(host, port string) bool) Way {
	var r wireTransport
	if err := decode(raw, &r); err != nil {
		return unreadable(id, err)
	}
	w := Way{ID: id, Kind: knownKind(r.Type), URL: text(r.URL, 500), Inputs: []Input{}, transport: "http"}
	if r.Type == "sse" {
		w.transport = "sse"
	}
	if r.Type != "sse" && r.Type != "streamable-http" {
		w.Why = "its transport is not known"
		return w
	}
	if w.URL != r.URL || r.URL == "" || strings.Contains(r.URL, " ") {
		w.Why = "its address is not a URL"
		return w
	}
	for _, name := range slices.Sorted(maps.Keys(r.Variables)) {
		if strings.Contains(r.URL, "{"+name+"}") {
			w.addInput("url:"+name, name, "url", r.Variables[name])
		}
	}
	for _, h := range r.Headers {
		w.addKeyValue("header", h)
	}
	if w.Why == "" {
		w.Why = addressTrouble(w.sample(), allowed)
	}
	return w
}

// sample returns the URL with a word for each variable, to look at its host.
func (w *Way) sample() string { return placeholder.ReplaceAllString(w.URL, "x") }

var placeholder = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_-]{0,63})\}`)

// addressTrouble says why a remote server's address may not be used; empty: it may.
func addressTrouble(address string, allowed func(host, port string) bool) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return "its address is not a URL of the web"
	}
	host, port := strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if allowed != nil && allowed(host, port) {
		return ""
	}
	switch a, err := netip.ParseAddr(host); {
	case err == nil && !isPublic(a), err != nil && isLocalName(host):
		return "its address is on this machine, or in a private network, which the settings do not allow " +
			"(network.allow_private)"
	case u.Scheme != "https":
		return "its address is not https: what is sent to it could be read on the way"
	}
	return ""
}

// isLocalName reports whether a name means this machine or its network, or is an address in a form that resolvers take.
func isLocalName(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch last {
	case "localhost", "local", "internal", "localdomain", "lan", "home", "test", "arpa":
		return true
	}
	_, err := strconv.ParseUint(strings.TrimPrefix(last, "0x"), 16, 64)
	return host == last || err == nil && last != "" && last[0] >= '0' && last[0] <= '9'
}

// isPublic reports whether an address may be one of the internet. What is dialed is checked again, by the network policy.
func isPublic(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && a.Zone() == "" && !netip.MustParsePrefix("100.64.0.0/10").Contains(a) &&
		!netip.MustParsePrefix("64:ff9b::/16").Contains(a) && !netip.MustParsePrefix("2002::/16").Contains(a)
}

// addInput adds a value that the user gives, and returns its key.
func (w *Way) addInput(key, label, place string, in wireInput) string {
	format := in.Format
	if format != "number" && format != "boolean" && format != "filepath" {
		format = "string"
	}
	i := Input{Key: text(key, 140), Label: text(label, 80), Place: place, Description: text(in.Description, 300),
		Required: in.IsRequired, Secret: in.IsSecret, Format: format, Placeholder: text(in.Placeholder, 120)}
	if len(in.Default) <= 1000 && text(in.Default, 1000) == in.Default && !refers(in.Default) && !in.IsSecret {
		i.Default = in.Default
	}
	for _, c := range in.Choices[:min(len(in.Choices), 100)] {
		if c != "" && text(c, 200) == c && !refers(c) {
			i.Choices = append(i.Choices, c)
		}
	}
	if i.Secret && (place == "argument" || place == "url") {
		if i.Required {
			w.Why = fmt.Sprintf("it wants the secret %s in its command line or address, where others could read it; Sandlot "+
				"puts secrets into variables and headers", i.Label)
		}
		w.Notes = append(w.Notes, fmt.Sprintf("%s is left out: it is a secret in a command line or an address.", i.Label))
		return ""
	}
	if len(w.Inputs) >= maxInputs {
		w.Why = fmt.Sprintf("it asks for over %d values", maxInputs)
		return ""
	}
	if slices.ContainsFunc(w.Inputs, func(o Input) bool { return o.Key == i.Key }) {
		w.Why = "it declares a value twice"
		return ""
	}
	w.Inputs = append(w.Inputs, i)
	return i.Key
}

// refers reports whether a third party's text would be replaced by a stored secret of the user's.
func refers(s string) bool { return strings.Contains(s, "${") }

// addPart adds the inputs of one variable, header or argument.
func (w *Way) addPart(key, label, place string, in wireInput) (p part, ok bool) {
	if in.Value == "" {
		k := w.addInput(key, label, place, in)
		return part{template: "{value}", inputs: map[string]string{"value": k}}, k != ""
	}
	if len(in.Value) > 2000 || text(in.Value, 2000) != in.Value || refers(in.Value) {
		w.Why = fmt.Sprintf("the value that it fixes for %s is not a text for that", text(label, 80))
		return part{}, false
	}
	p = part{template: in.Value, inputs: map[string]string{}, fixed: true}
	for _, m := range placeholder.FindAllStringSubmatch(in.Value, -1) {
		variable, declared := in.Variables[m[1]]
		if !declared || p.inputs[m[1]] != "" {
			continue
		}
		if in.IsRequired {
			variable.IsRequired = variable.IsRequired || variable.Default == ""
		}
		variable.IsSecret = variable.IsSecret || in.IsSecret
		if variable.Description == "" {
			variable.Description = in.Description
		}
		k := w.addInput(key+":"+m[1], m[1], place, variable)
		if k == "" {
			return part{}, false
		}
		p.inputs[m[1]] = k
	}
	return p, true
}

// addKeyValue adds a variable or a header.
func (w *Way) addKeyValue(place string, v wireKeyValue) {
	request := spec.ConnectRequest{Name: "x", Command: "x"}
	if place == "env" {
		request.Env = map[string]string{v.Name: ""}
	} else {
		request.Headers = map[string]string{v.Name: ""}
	}
	if place == "env" && policy.ChoosesProgram(v.Name) || request.Check() != nil {
		w.Why = fmt.Sprintf("it declares the %s %q, which cannot be set", map[string]string{"env": "variable",
			"header": "header"}[place], text(v.Name, 80))
		return
	}
	p, ok := w.addPart(place+":"+v.Name, v.Name, place, v.wireInput)
	if p.name = v.Name; !ok {
		return
	}
	if p.fixed {
		w.Fixed = append(w.Fixed, Fixed{Place: place, Name: v.Name, Value: p.template})
	}
	if place == "env" {
		w.env = append(w.env, p)
	} else {
		w.headers = append(w.headers, p)
	}
}

// addArgument adds the argument with that place.
func (w *Way) addArgument(i int, a wireArgument) {
	named := a.Type == "named"
	label := a.ValueHint
	if named {
		label = a.Name
	}
	if !named && a.Type != "positional" || named && (!strings.HasPrefix(a.Name, "-") || !spec.NeedsNoQuotes(a.Name) ||
		len(a.Name) > 100) {
		w.Why = "it has an argument of a form that is not known"
		return
	}
	if label == "" {
		label = fmt.Sprintf("argument %d", i+1)
	}
	key := fmt.Sprintf("argument:%d", i+1)
	if named {
		key = "argument:" + a.Name
	}
	if named && a.Value == "" && a.Format == "boolean" && !a.IsSecret {
		if k := w.addInput(key, label, "argument", a.wireInput); k != "" {
			w.arguments = append(w.arguments, part{name: a.Name, flag: true, inputs: map[string]string{"value": k}})
		}
		return
	}
	if named && a.Value == "" && a.Default == "" && a.Description == "" && !a.IsRequired && a.Placeholder == "" &&
		len(a.Choices) == 0 && a.ValueHint == "" { // a flag that the entry sets
		w.arguments = append(w.arguments, part{name: a.Name, fixed: true})
		w.Fixed = append(w.Fixed, Fixed{Place: "argument", Name: a.Name})
		return
	}
	p, ok := w.addPart(key, label, "argument", a.wireInput)
	if !ok {
		return
	}
	if a.IsRepeated && !p.fixed {
		w.Inputs[len(w.Inputs)-1].Repeated = true
	}
	if named {
		p.name = a.Name
	}
	if p.fixed {
		w.Fixed = append(w.Fixed, Fixed{Place: "argument", Name: p.name, Value: p.template})
	}
	w.arguments = append(w.arguments, p)
}
