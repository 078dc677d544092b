package spec

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Change is what is about to be installed, started or connected for a principal. It has
// all that the principal can know before that.
type Change struct {
	Name string
	// Install is nil if nothing is installed. Commands are the shell commands that
	// install it, as far as they are known before.
	Install  *Install
	Workdir  string // as in the request
	Commands []string
	Kind     Kind
	// Command is empty if it is known only after the installation.
	Command    string
	Args       []string
	Cwd        string
	URL        string
	EnvKeys    []string
	HeaderKeys []string
	// Env and Headers are the values that refer to stored secrets; all other text in
	// them is replaced by "…".
	Env, Headers map[string]string
	// Replaces is the command or URL of the server that has the name so far, if any.
	Replaces string
}

// Consent asks the user to agree to a change. It is called before anything new is
// installed, started or connected, and not when the same program is started again. An
// error refuses the change; nothing has changed then. Nil agrees to everything.
type Consent func(ctx context.Context, c Change) error

// Change returns the change that a request means.
func (a ConnectRequest) Change() Change {
	return Change{Name: a.Name, Install: a.Install, Kind: a.Kind, Command: a.Command, Args: a.Args, Cwd: a.Cwd,
		URL:     a.URL,
		EnvKeys: slices.Sorted(maps.Keys(a.Env)), HeaderKeys: slices.Sorted(maps.Keys(a.Headers)),
		Env: maskedReferences(a.Env), Headers: maskedReferences(a.Headers)}
}

// Change returns the change that starting the server means; it is installed already.
func (s Spec) Change() Change {
	return Change{Name: s.Name, Kind: s.Kind, Command: s.Command, Args: s.Args, Cwd: s.Cwd, URL: s.URL,
		EnvKeys: s.EnvKeys, HeaderKeys: s.HeaderKeys, Env: maskedReferences(s.Env),
		Headers: maskedReferences(s.Headers)}
}

var plainWordPattern = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_~^-]+$`)

// NeedsNoQuotes reports whether a word needs no quotes in a shell.
func NeedsNoQuotes(word string) bool { return plainWordPattern.MatchString(word) }

// CommandLine returns a command as one types it in a shell.
func CommandLine(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		if words[i] = a; !NeedsNoQuotes(a) {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// ExactCommandLine is CommandLine with escapes for all characters that are invisible or may look
// like others, so that a user sees exactly what runs.
func ExactCommandLine(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = CommandLine([]string{a})
		if strings.ContainsFunc(a, mayDeceive) {
			words[i] = quoteEscaped(a)
		}
	}
	return strings.Join(words, " ")
}

// mayDeceive reports whether a character may be invisible, or look like another one.
func mayDeceive(r rune) bool { return r > unicode.MaxASCII || unicode.IsControl(r) }

// quoteEscaped returns a word in the shell's quotes with escapes, $'…'.
func quoteEscaped(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\\' || r == '\'':
			b.WriteString(`\` + string(r))
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case r > unicode.MaxASCII:
			fmt.Fprintf(&b, `\u%04x`, r)
		case unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('\'')
	return b.String()
}
