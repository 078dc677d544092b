package toolfiles

import (
	"fmt"
	"strings"
)

// Bounds of the texts beside a function; the whole text is in the document of the tool.
const (
	maxDocstring = 800
	maxArgument  = 200
	maxBrief     = 80
)

// pythonModule returns the module of a server, and how much of it are its tools.
func (s *served) pythonModule() string {
	out := &strings.Builder{}
	fmt.Fprintf(out, "%s\n", docstring(s.intro(), ""))
	out.WriteString("from __future__ import annotations\n" +
		"from mcp_tools._client import Aio as _Aio, caller as _caller, loaded as _loaded\n" +
		"TYPE_CHECKING = False\n" +
		"if TYPE_CHECKING:\n" +
		"    from typing import Any, Literal, Required, TypeAlias, TypedDict\n" +
		"    from mcp_tools import Binary, Link\n")
	for _, t := range s.tools {
		out.WriteString(t.pythonTypes)
	}
	fmt.Fprintf(out, "\n_call = _caller(%s)\naio = _Aio(__name__, %s)\n__getattr__ = _loaded(__name__, __file__)\n",
		quote(s.Name), quote(s.Name))
	if s.State != "" {
		fmt.Fprintf(out, "_why = %s\n", quote(oneLine(s.State, maxState)))
	}
	for _, t := range s.tools {
		out.WriteString(t.python)
	}
	return out.String()
}

// pythonFunction returns the function of a tool, and its types, which type checkers alone read.
func (t *described) pythonFunction() (function, named string) {
	types := t.types(true)
	var parameters, names []string
	for _, a := range t.arguments {
		p := a.python + ": " + types.of(a.schema, 0)
		if !a.required {
			p += " = ..."
		}
		parameters = append(parameters, p)
		if a.python != a.name || a.python == "timeout" {
			names = append(names, quote(a.python)+": "+quote(a.name))
		}
	}
	rest, renamed := "", ""
	if t.open {
		rest = ", **_more: Any"
	}
	if len(names) > 0 {
		renamed = ", {" + strings.Join(names, ", ") + "}"
	}
	if !t.hasTimeout() {
		parameters = append(parameters, "timeout: float | None = None")
	}
	parameters = append(parameters, "_timeout=None")
	result := "Any"
	if t.output != nil {
		result = types.result(t.output)
	}
	for _, n := range types.named {
		if strings.HasPrefix(n.text, "{") {
			named += fmt.Sprintf("    %s = TypedDict(%s, %s, total=False)\n", n.name, quote(n.name), n.text)
		} else {
			named += fmt.Sprintf("    %s: TypeAlias = %s\n", n.name, quote(n.text))
		}
	}
	return fmt.Sprintf("\n\ndef %s(*, %s%s) -> %s:\n    %s\n    return _call(%s, locals()%s)\n", t.name,
		strings.Join(parameters, ", "), rest, result, docstring(t.docstringText(true), "    "), quote(t.Remote),
		renamed), named
}

// docstringText is what stands beside the function of a tool, with its arguments or, where it is brief, without.
func (t *described) docstringText(withArguments bool) string {
	text, limit := clean(t.Description, maxDocstring), maxArgument
	if t.brief {
		text, limit = line(t.Description, maxLine), maxBrief
	}
	if text == "" {
		text = oneLine(t.Title, maxArgument)
	}
	lines := []string{}
	for _, a := range t.arguments {
		if note := a.note(limit); note != "" && (withArguments || !t.brief) {
			lines = append(lines, a.python+": "+note)
		}
	}
	if len(lines) > 0 {
		text += "\n\n" + strings.Join(lines, "\n")
	}
	if t.Held != "" {
		text = "HELD BACK: " + oneLine(t.Held, maxDocstring) + "\n\n" + text
	}
	return strings.TrimSpace(text)
}

// note says what an argument is, in one line.
func (a argument) note(limit int) string {
	note := oneLine(a.text, limit)
	if a.initial != nil {
		if value := oneLine(compact(a.initial), maxArgument); value != "" {
			note = strings.TrimSpace(note + " (default: " + value + ")")
		}
	}
	return note
}

// docstring writes a text as a literal of Python that begins and ends with three quotation marks.
func docstring(text, indent string) string {
	text = strings.NewReplacer(`\`, `\\`, `""`, `\"\"`).Replace(text)
	if strings.HasSuffix(text, `"`) {
		text += " "
	}
	return `"""` + strings.ReplaceAll(strings.ReplaceAll(text, "\n", "\n"+indent), "\n"+indent+"\n", "\n\n") + `"""`
}
