package mcpcommand

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// options are the options of "mcp call".
type options struct {
	timeout float64
	folder  string
	raw     bool
	json    *string
}

// call calls a tool.
func (c *command) call(args []string) error {
	var o options
	positional, err := o.read(args)
	if err != nil {
		return err
	}
	if len(positional) < 2 {
		return misuseOf("it is `mcp call SERVER TOOL NAME=VALUE...`, or `mcp call SERVER TOOL --json -`")
	}
	s, t, unknown := c.findCallable(positional[0], positional[1])
	if t == nil {
		return unknown
	}
	var arguments map[string]json.RawMessage
	if o.json != nil {
		if len(positional) > 2 {
			return misuseOf("the arguments are given by --json or by NAME=VALUE, not by both")
		}
		arguments, err = c.readJSON(*o.json)
	} else {
		arguments, err = t.readArguments(positional[2:])
	}
	if err != nil {
		return err
	}
	result, err := c.request(request{Call: &callRequest{Server: s.Name, Tool: t.Remote, Arguments: arguments,
		Timeout: o.timeout}}, "result")
	if unknown != nil && isUnknown(err) {
		return unknown
	}
	if err != nil {
		return err
	}
	return c.printResult(result, o)
}

// findCallable finds a tool. Where the tree does not have it, but the host may say why, the tool takes any arguments,
// and err is what is to be said if the host does not know it either. A nil tool: it is not there.
func (c *command) findCallable(serverName, name string) (s *server, t *tool, err error) {
	anything := &tool{Name: name, Remote: name, Open: true}
	if s, err = c.findServer(serverName); err != nil { // it may be disconnected
		return &server{Name: serverName}, anything, err
	}
	if t, err = s.findTool(name); err != nil && s.State != "" { // what it offers may not be known
		return s, anything, err
	}
	return s, t, err
}

// isUnknown reports whether an error says that there is no such server or tool, or that nobody could be asked.
func isUnknown(err error) bool {
	if _, ok := errors.AsType[unreachable](err); ok {
		return true
	}
	said, ok := errors.AsType[refusal](err)
	return ok && said.Code == "not_found"
}

// read reads the options, and returns the other arguments. After "--" there are no options.
func (o *options) read(args []string) (positional []string, err error) {
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		switch {
		case args[i] == "--":
			return append(positional, args[i+1:]...), nil
		case args[i] == "--raw":
			o.raw = true
			continue
		case name != "--timeout" && name != "--out" && name != "--json":
			if strings.HasPrefix(name, "--") {
				return nil, misuseOf("there is no option %s (`mcp --help`)", name)
			}
			positional = append(positional, args[i])
			continue
		case !given:
			if i++; i == len(args) {
				return nil, misuseOf("%s needs a value", name)
			}
			value = args[i]
		}
		switch name {
		case "--timeout":
			if o.timeout, err = strconv.ParseFloat(value, 64); err != nil || !(o.timeout > 0) {
				return nil, misuseOf("--timeout needs a number of seconds, and not %q", value)
			}
		case "--out":
			o.folder = value
		case "--json":
			o.json = &value
		}
	}
	return positional, nil
}

// maxInput bounds arguments from standard input, in bytes: the host takes no more.
const maxInput = 16 << 20

// readJSON reads all arguments as one object.
func (c *command) readJSON(text string) (arguments map[string]json.RawMessage, err error) {
	data := []byte(text)
	if text == "-" {
		if data, err = io.ReadAll(io.LimitReader(c.in, maxInput+1)); err != nil {
			return nil, err
		}
		if len(data) > maxInput {
			return nil, misuseOf("the arguments have more than %d bytes", maxInput)
		}
	}
	if err := json.Unmarshal(data, &arguments); err != nil {
		return nil, misuseOf("the arguments are not a JSON object: %v", err)
	}
	return arguments, nil
}

// readArguments reads NAME=VALUE and NAME:=JSON.
func (t *tool) readArguments(args []string) (map[string]json.RawMessage, error) {
	found := map[string]json.RawMessage{}
	for _, text := range args {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, misuseOf("%q is not NAME=VALUE. The tool is  %s", text, t.signature())
		}
		name, asJSON := strings.CutSuffix(name, ":")
		a := t.find(name)
		if a == nil && t.Open && name != "" {
			a = &argument{Name: name, Type: "any"}
		}
		if a == nil {
			return nil, misuseOf("%s has no argument %q. It is %s", t.Name, name, t.signature())
		}
		var err error
		if asJSON {
			if !json.Valid([]byte(value)) {
				return nil, misuseOf("the value of %s is not JSON: %.100s", name, value)
			}
			found[a.Name] = json.RawMessage(value)
		} else {
			found[a.Name], err = a.value(value, found[a.Name])
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range t.Args {
		if a := &t.Args[i]; a.Required && found[a.Name] == nil {
			return nil, misuseOf("%s is missing. The tool is %s", a.shown(), t.signature())
		}
	}
	return found, nil
}

// find finds an argument by the tool's name for it or Python's.
func (t *tool) find(name string) *argument {
	for _, of := range []func(argument) string{func(a argument) string { return a.Name },
		func(a argument) string { return a.Python }} {
		if i := slices.IndexFunc(t.Args, func(a argument) bool { return of(a) == name && name != "" }); i >= 0 {
			return &t.Args[i]
		}
	}
	return nil
}

// value reads a value by the type of its argument. previous is the value that the argument has already.
func (a *argument) value(text string, previous json.RawMessage) (json.RawMessage, error) {
	plain, _ := json.Marshal(text)
	isJSON := json.Valid([]byte(text))
	if previous != nil && a.Type != "array" {
		return nil, misuseOf("%s is given twice, and is not a list", a.shown())
	}
	wrong := func(want string) error {
		return misuseOf("%s needs %s, and not %.100q", a.shown(), want, text)
	}
	number := isJSON && strings.ContainsAny(text[:1], "-0123456789")
	switch a.Type {
	case "string":
		return plain, nil
	case "integer", "number":
		if !number {
			return nil, wrong("a number")
		}
	case "boolean":
		if text != "true" && text != "false" {
			return nil, wrong("true or false")
		}
	case "object":
		if !isJSON || !strings.HasPrefix(strings.TrimSpace(text), "{") {
			return nil, wrong("a JSON object")
		}
	case "array":
		if isJSON && previous == nil && strings.HasPrefix(strings.TrimSpace(text), "[") {
			break
		}
		element := json.RawMessage(plain)
		if isJSON && a.Items != "string" {
			element = json.RawMessage(text)
		}
		return appended(previous, element), nil
	default: // any
		if !isJSON {
			return plain, nil
		}
	}
	return json.RawMessage(text), nil
}

// appended returns a list with one more element.
func appended(list, element json.RawMessage) json.RawMessage {
	list = bytes.TrimSpace(list)
	if len(list) < 2 || string(list) == "[]" {
		return json.RawMessage("[" + string(element) + "]")
	}
	return json.RawMessage(fmt.Sprintf("%s,%s]", list[:len(list)-1], element))
}
