package servers

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"sandlot/internal/pool"
)

// Plan is what is about to be installed, started or connected for a principal:
// all that there is to know before it is.
type Plan struct {
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

// Agree is called before anything is installed, started or connected that was
// not yet, and not when the same runs again. An error stops it, and nothing has
// changed then. Nil agrees to everything.
type Agree func(ctx context.Context, p Plan) error

// plan is what an ask comes to.
func (a Ask) plan() Plan {
	p := Plan{Name: a.Name, Install: a.Install, Kind: a.Kind, Command: a.Command, Args: a.Args, Cwd: a.Cwd, URL: a.URL,
		EnvKeys: slices.Sorted(maps.Keys(a.Env)), HeaderKeys: slices.Sorted(maps.Keys(a.Headers)),
		Env: shownReferences(a.Env), Headers: shownReferences(a.Headers)}
	if p.Cwd == "" {
		p.Cwd = pool.WorkspaceDir
	}
	return p
}

// plan is what a record comes to.
func (r Record) plan() Plan {
	p := Ask{Name: r.Name, Kind: r.Kind, Command: r.Command, Args: r.Args, Cwd: r.Cwd, URL: r.URL, Env: r.Env, Headers: r.Headers}.plan()
	p.EnvKeys, p.HeaderKeys = r.EnvKeys, r.HeaderKeys
	return p
}

// plan is what an order comes to.
func (o Order) plan(folder string) Plan {
	a := o.Ask
	a.Kind, a.Cwd = Stdio, folder
	a.Install = &Install{Type: o.Type, Spec: o.Spec, Folder: folder}
	p := a.plan()
	p.Workdir = o.Workdir
	var commands [][]string
	switch o.Type {
	case "npm":
		commands = [][]string{npmInstall(folder, o.Spec)}
	case "pip":
		venv := path.Join(folder, "venv")
		commands = [][]string{makeVenv(venv), pipInstall(venv, o.Spec)}
	case "git":
		from, ref, _ := strings.Cut(o.Spec, "#")
		p.Cwd = path.Join(folder, "repo")
		commands = [][]string{clone(from, ref, p.Cwd)}
	}
	for _, c := range commands {
		p.Commands = append(p.Commands, Exactly(c))
	}
	return p
}

// agreed asks for consent to a plan, where it has to be asked for.
func (b *Book) agreed(ctx context.Context, old *server, agree Agree, p Plan) error {
	if agree == nil {
		return nil
	}
	if old != nil {
		old.mu.Lock()
		p.Instead = old.rec.runsAs()
		old.mu.Unlock()
	}
	return agree(ctx, p)
}

// runsAs is what runs, or is reached, by a record.
func (r Record) runsAs() string {
	if r.Kind != Stdio {
		return Exactly([]string{r.URL})
	}
	return Exactly(append([]string{r.Command}, r.Args...))
}

// covers says whether what a record runs is known to be agreed to, as another
// one runs it: the same, with no variables, headers or stored secrets that this
// one has not.
func (r Record) covers(o Record) bool {
	return o.runs(r) && within(o.EnvKeys, r.EnvKeys) && within(o.HeaderKeys, r.HeaderKeys) && within(o.secretNames(), r.secretNames())
}

func within(some, all []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
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
