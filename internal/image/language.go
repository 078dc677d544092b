package image

import (
	"slices"
	"strings"
)

// Language is a language of a template.
type Language struct {
	Name string
	// Driver is "python", "node" or "bash" for a language that keeps its
	// variables between calls, and empty for one that runs as `command file`.
	Driver  string
	Command []string
	// Extension is the extension, with its dot, of the file with the code; for languages without driver.
	Extension string
	// Aliases are other names of the language, in lower case.
	Aliases []string
}

// languages are those that an interpreter runs, by its name.
var languages = map[string][]Language{
	"python": {{Name: "python", Driver: "python", Extension: ".py", Aliases: []string{"py", "python3"}}},
	"node": {{Name: "node", Driver: "node", Extension: ".mjs", Aliases: []string{"javascript", "js", "nodejs"}},
		// If Node is too old for TypeScript, the driver reports it.
		{Name: "typescript", Driver: "node", Extension: ".mts", Aliases: []string{"ts"}}},
	"bash": {{Name: "bash", Driver: "bash", Extension: ".sh", Aliases: []string{"shell"}}},
	"sh":   {{Name: "sh", Extension: ".sh"}},
}

// LanguagesOf returns the languages that an interpreter ("python", "node", "bash" or "sh") runs, as the program of
// that path.
func LanguagesOf(interpreter, program string) []Language {
	list := slices.Clone(languages[interpreter])
	for i := range list {
		list[i].Command = []string{program}
	}
	return list
}

// Language returns a language by its name or an alias, ignoring case.
func (t *Template) Language(name string) (Language, bool) {
	name = strings.ToLower(name)
	for _, l := range t.Languages {
		if l.Name == name || slices.Contains(l.Aliases, name) {
			return l, true
		}
	}
	return Language{}, false
}

// LanguageNames lists the languages, in the table's order.
func (t *Template) LanguageNames() []string {
	names := make([]string, len(t.Languages))
	for i, l := range t.Languages {
		names[i] = l.Name
	}
	return names
}
