package toolfiles

import (
	"fmt"
	"strings"
)

// anyTool is said of what stands for tools that are not known.
const anyTool = "The default export has each tool that the server may have: a call asks Sandlot, which says why it " +
	"fails."

// javascriptModule returns the module of a server.
func (s *served) javascriptModule() string {
	out := &strings.Builder{}
	fmt.Fprintf(out, "// Types and texts: %s.d.mts. Documents: %s/README.md.\n"+
		"import { tool as _tool } from './_client.mjs';\n", s.module, s.module)
	if s.State != "" && len(s.tools) == 0 {
		fmt.Fprintf(out, "%sexport default new Proxy({}, { get: (_, name) => "+
			"(typeof name === 'string' && name !== 'then' ? _tool(%s, name) : undefined) });\n",
			comment(s.intro()+". "+anyTool), quote(s.Name))
	}
	for _, t := range s.tools {
		fmt.Fprintf(out, "export const %s = _tool(%s, %s);\n", t.name, quote(s.Name), quote(t.Remote))
	}
	return out.String()
}

// declarations returns the TypeScript declarations of a server's module.
func (s *served) declarations() string {
	out := &strings.Builder{}
	fmt.Fprintf(out, "%simport type { Binary, CallOptions, Link } from './_client.mjs';\n", comment(s.intro()))
	if s.State != "" && len(s.tools) == 0 {
		fmt.Fprintf(out, "%sdeclare const _any: { [name: string]: (args?: { [name: string]: any }, "+
			"options?: CallOptions) => Promise<any> };\nexport default _any;\n", comment(anyTool))
	}
	for _, t := range s.tools {
		out.WriteString(t.typescript)
	}
	return out.String()
}

// typescriptDeclaration returns the declaration of a tool's function, and its types.
func (t *described) typescriptDeclaration() string {
	types := t.types(false)
	var members []string
	optional := "?"
	for _, a := range t.arguments {
		mark := "?"
		if a.required {
			mark, optional = "", ""
		}
		members = append(members, key(a.name)+mark+": "+types.of(a.schema, 0))
	}
	if t.open {
		members = append(members, "[name: string]: any")
	}
	result := "any"
	if t.output != nil {
		result = types.result(t.output)
	}
	out := &strings.Builder{}
	for _, n := range types.named {
		fmt.Fprintf(out, "type %s = %s;\n", n.name, n.text)
	}
	parameters := "{}"
	if len(members) > 0 {
		parameters = "{ " + strings.Join(members, "; ") + " }"
	}
	fmt.Fprintf(out, "%sexport function %s(args%s: %s, options?: CallOptions): Promise<%s>;\n",
		comment(t.docstringText(false)), t.name, optional, parameters, result)
	return out.String()
}

// comment writes a text as a comment.
func comment(text string) string {
	if text == "" {
		return ""
	}
	text = strings.ReplaceAll(text, "*/", "* /")
	return "/** " + strings.ReplaceAll(strings.ReplaceAll(text, "\n", "\n * "), " * \n", " *\n") + " */\n"
}
