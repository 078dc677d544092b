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

// Change is what is about to be installed, started or connected for a principal:
// all that there is to know before it is.
type Change struct {
	Name string
	// Install is nil where nothing is installed. Commands install it, as they
	// would be typed, as far as they are known before.
	Install  *Install
	Workdir  string // as it was asked for
	Commands []string
	Kind     Kind
	// Command is empty when what is installed says what it is.
	Command    string
	Args       []string
	Cwd        string
	URL        string
	EnvKeys    []string
	HeaderKeys []string
	// Env and Headers are those of the values that refer to stored secrets; all
	// else that stands in them is a "…".
	Env, Headers map[string]string
	// Instead is what runs, or is reached, under that name so far, if anything.
	Instead string
}

// Consent is called before anything is installed, started or connected that was
// not yet, and not when the same runs again. An error stops it, and nothing has
// changed then. Nil agrees to everything.
type Consent func(ctx context.Context, c Change) error

// Change is what an ask comes to.
func (a Ask) Change() Change {
	return Change{Name: a.Name, Install: a.Install, Kind: a.Kind, Command: a.Command, Args: a.Args, Cwd: a.Cwd,
		URL:     a.URL,
		EnvKeys: slices.Sorted(maps.Keys(a.Env)), HeaderKeys: slices.Sorted(maps.Keys(a.Headers)),
		Env: shownReferences(a.Env), Headers: shownReferences(a.Headers)}
}

// Change is what starting it comes to. What was installed for it is there.
func (s Spec) Change() Change {
	return Change{Name: s.Name, Kind: s.Kind, Command: s.Command, Args: s.Args, Cwd: s.Cwd, URL: s.URL,
		EnvKeys: s.EnvKeys, HeaderKeys: s.HeaderKeys, Env: shownReferences(s.Env), Headers: shownReferences(s.Headers)}
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_~^-]+$`)

// Plain says whether a word needs no quotes where commands are typed.
func Plain(word string) bool { return plainWord.MatchString(word) }

// CommandLine is a command as it would be typed.
func CommandLine(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		if words[i] = a; !Plain(a) {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// Exactly is a command as it would be typed, in which nothing can hide: what is
// not seen, or looks like something else, is written in escapes.
func Exactly(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = CommandLine([]string{a})
		if strings.ContainsFunc(a, hides) {
			words[i] = escaped(a)
		}
	}
	return strings.Join(words, " ")
}

// hides says whether a character is none that people see for what it is.
func hides(r rune) bool { return r > unicode.MaxASCII || unicode.IsControl(r) }

// escaped is a word in the form of the shell that has escapes.
func escaped(s string) string {
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
