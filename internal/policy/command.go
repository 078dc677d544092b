package policy

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// CommandLine returns the detail of a command: its line for a shell. A program with arguments
// is quoted as a shell needs it, unless it is a shell that runs one line: then it is that line.
// The names of variables stand in front, as the shell has them.
func CommandLine(argv []string, env map[string]string) string {
	line := ""
	if len(argv) == 3 && argv[1] == "-c" && isShell(argv[0]) {
		line = argv[2]
	} else {
		words := make([]string, len(argv))
		for i, a := range argv {
			words[i] = quoteWord(a)
		}
		line = strings.Join(words, " ")
	}
	return WithVariables(line, env)
}

// WithVariables returns the detail of a command that also has these variables.
func WithVariables(line string, env map[string]string) string {
	if len(env) == 0 {
		return line
	}
	names := make([]string, 0, len(env))
	for name := range env {
		if !isVariable(name) { // no shell takes it for one: it is not part of the command
			names = append(names, quote(name)+"=;")
			continue
		}
		names = append(names, name+"=")
	}
	slices.Sort(names)
	return strings.Join(names, " ") + " " + line
}

var shells = []string{"sh", "bash", "dash", "ash", "zsh"}

// isShell reports whether a program is a shell of the system: by its bare name, or in the system's folders.
// A program at any other path, such as /workspace/bash or ./sh, can be anything.
func isShell(program string) bool {
	for _, folder := range []string{"/usr/bin/", "/bin/"} {
		if name, ok := strings.CutPrefix(program, folder); ok {
			program = name
			break
		}
	}
	return slices.Contains(shells, program)
}

// quoteWord quotes a word for the shell, if that is necessary.
func quoteWord(w string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("@%+=:,./_~^-", r)
	}
	if w != "" && strings.IndexFunc(w, func(r rune) bool { return !plain(r) }) < 0 {
		return w
	}
	return quote(w)
}

// quote quotes a word for the shell.
func quote(w string) string { return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'" }

// operators are the characters that begin or end a command in a line for a shell, or expand to
// something else.
const operators = ";&|<>()`$\n\r{}"

// unquote removes what may stand inside of a word: c\url, 'c'url.
var unquote = strings.NewReplacer(`\`, "", `'`, "", `"`, "")

var (
	// redirection is one of the shell, which may stand before a command and in it. <(command) is none.
	redirection = regexp.MustCompile(`(?:[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\}|&)?(?:<<<|<<-?|<>|<&|<|>>|>\||>&|>)[ \t]*` +
		`(?:"[^"]*"|'[^']*'|\\.|[^\s;&|<>()'"\\])+`)
	// braces are words of the shell that it makes several of: {a,b}.
	braces = regexp.MustCompile(`\{[^\s{}]*,[^\s{}]*\}`)
	// encoded is a text of the shell with escapes as C has them, and escape one of them.
	encoded = regexp.MustCompile(`\$'(?:[^'\\]|\\(?s:.))*'`)
	escape  = regexp.MustCompile(`\\(?:[0-7]{1,3}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|(?s:.))`)
)

// decode writes the texts of a line that have escapes as C has them: $'c\165rl' becomes 'curl'.
func decode(line string) string {
	return encoded.ReplaceAllStringFunc(line, func(text string) string {
		return escape.ReplaceAllStringFunc(text[1:], func(e string) string {
			base, digits := 16, e[2:]
			switch c := e[1]; {
			case c >= '0' && c <= '7':
				base, digits = 8, e[1:]
			case strings.IndexByte("abefrtvn", c) >= 0:
				return "\n" // it ends a word, as spaces and control characters do
			case digits == "":
				return e[1:]
			}
			n, err := strconv.ParseUint(digits, base, 32)
			if err != nil {
				return e[1:]
			}
			return string(rune(n))
		})
	})
}

// shellForms returns other spellings of a line: without redirections, with {a,b} as two words, and with decoded texts.
func shellForms(line string) (forms []string) {
	if strings.Contains(line, "$'") {
		forms = append(forms, decode(line))
	}
	if strings.ContainsAny(line, "<>") {
		line = redirection.ReplaceAllString(line, " ")
		forms = append(forms, line)
	}
	if strings.Contains(line, "{") && braces.MatchString(line) {
		forms = append(forms, braces.ReplaceAllStringFunc(line, func(w string) string {
			return strings.ReplaceAll(w[1:len(w)-1], ",", " ")
		}))
	}
	return forms
}

// commandParts returns the commands of a line for a shell, each in the forms that rules are
// compared with. It does not understand the shell's quotes: a text in quotes is taken for a
// command, too, and then a rule denies too much. It returns false if the line cannot be compared: a command stands behind
// too many wrappers, or a shell runs a text of the line that something changes.
func commandParts(line string) (parts []string, ok bool) {
	add := func(s string) {
		if s != "" && !slices.Contains(parts[max(0, len(parts)-8):], s) {
			parts = append(parts, s)
		}
	}
	isEnd := func(r rune) bool { // ! also begins a command of git's aliases, and of editors
		return strings.ContainsRune(operators, r) || r == '\'' || r == '"' || r == '!'
	}
	line = strings.ReplaceAll(line, "\\\n", "") // the shell removes them first
	runsPrinted, hidden := printed(line)
	if hidden {
		return nil, false
	}
	texts := []string{line, unquote.Replace(line)}
	for _, form := range shellForms(line) {
		texts = append(texts, form, unquote.Replace(form))
	}
	for _, text := range texts {
		for part := range strings.FieldsFuncSeq(text, isEnd) {
			commands, all := unwrapped(collapse(part), runsPrinted)
			if !all {
				return parts, false
			}
			for _, command := range commands {
				add(command)
				word, rest, more := strings.Cut(command, " ")
				if base := path.Base(word); word != "" && base != word {
					if more {
						base += " " + rest
					}
					add(base)
				}
			}
		}
	}
	return parts, true
}

// isVariable reports whether a text is the name of a variable.
func isVariable(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool {
		return r != '_' && !(r >= '0' && r <= '9') && !(r|0x20 >= 'a' && r|0x20 <= 'z')
	}) < 0
}

// collapse replaces each run of spaces and tabs by one space.
func collapse(line string) string {
	if !strings.Contains(line, "  ") && !strings.Contains(line, "\t") {
		return strings.Trim(line, " ")
	}
	return strings.Join(strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' }), " ")
}

// commandPattern compares commands. In a rule that allows, * and ? do not stand for operators
// of the shell: `git *` does not allow `git status; rm x`. A rule that asks or denies matches
// each of the commands in a line, and `git *` also matches git alone.
func commandPattern(pattern string, strict bool) func(detail) bool {
	if strict {
		return func(d detail) bool { return glob(pattern, d.text, operators) }
	}
	bare, withArguments := strings.CutSuffix(pattern, " *")
	if strings.ContainsAny(bare, "*?") {
		withArguments = false
	}
	return func(d detail) bool {
		if glob(pattern, d.text, "") {
			return true
		}
		for _, part := range d.parts {
			if glob(pattern, part, "") || withArguments && part == bare {
				return true
			}
		}
		return false
	}
}
