package policy

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// printers are words that print what stands behind them. In a line in which a shell runs what others print, they are
// wrappers.
var printers = map[string]wrapper{"echo": {flags: "neE"}, "print": {flags: "nlrN"}, "yes": {}, "printf": {anywhere: true}}

// readers are the programs that run what comes to their standard input.
var readers = append([]string{"ksh", "mksh", "rbash", "yash", "hush", "fish", "csh", "tcsh", "parallel", "at", "batch"},
	shells...)

var (
	// printedWord is the beginning of what eval, a shell or source runs, if others print it: eval "$(…)", sh -c `…`,
	// . <(…).
	printedWord = regexp.MustCompile("(?:^|[\\s;&|(){/`])(?:eval|source|\\.|" + strings.Join(readers, "|") +
		")(?:\\s+[-+][^\\s$`<]+)*\\s+(?:[0-9]*<\\s+)?(?:\\$\\(|`|<\\()([^()`]*)")
	// printedFile is the beginning of what a shell reads when it starts, by a variable: BASH_ENV=<(…) bash.
	printedFile = regexp.MustCompile("\\b(?:BASH_ENV=(?:\\$\\(|`|<\\()|ENV=<\\()([^()`]*)")
	// printedName is where a command begins whose name others print: $(…) x.
	printedName = regexp.MustCompile("(?:^|[;&|\n]|\\b(?:do|then|else|if|while|until)\\s)\\s*(?:\\$\\(|`)([^()`]*)")
	// quoted is a text in quotes.
	quoted = regexp.MustCompile(`'[^']*'|"(?:[^"\\]|\\(?s:.))*"`)
	// groupEnd is the end of commands whose output goes to a pipe together.
	groupEnd = regexp.MustCompile(`[;\s]*[)}]\s*\|`)
	// groupBegin is the beginning of commands that read a pipe together: | (sh), | { sh; }, and tee >(sh).
	groupBegin = regexp.MustCompile(`\|\s*[({]\s*|>\s*\(\s*`)
	// escapes are characters that printf and echo -e write in other ways, and what printf puts into its text.
	escapes  = regexp.MustCompile(`\b(?:printf|echo\s+-[nE]*e|print)\b.*(?:\\+[x0-7uU]|%)`)
	copies   = regexp.MustCompile(`[0-9]*[<>]&[0-9-]+`) // of descriptors
	pipeOnly = strings.NewReplacer("||", ";", "|&", "|", "&&", ";", "&>", ">", ">|", ">", "'", "", `"`, "", "$SHELL", "sh", "${SHELL}", "sh")
)

// printed reports whether a shell runs what other commands of a line print: `echo curl x | sh`. Hidden: the line has
// that text, and something changes it before: `echo x lruc | rev | sh`. What comes from elsewhere, such as
// `cat file | sh`, is a script, of which rules know nothing.
func printed(line string) (runs, hidden bool) {
	if !strings.ContainsAny(line, "|`(") {
		return false, false
	}
	text := pipeOnly.Replace(copies.ReplaceAllString(line, " "))
	for _, found := range append(printedWord.FindAllStringSubmatch(text, -1), printedFile.FindAllStringSubmatch(text, -1)...) {
		runs, hidden = true, hidden || hides(strings.Split(found[1], "|"))
	}
	between := quoted.ReplaceAllStringFunc(line, func(q string) string { // what separates commands, in a text
		return strings.Map(func(r rune) rune {
			if strings.ContainsRune(";&|\n", r) && !strings.HasPrefix(strings.TrimLeft(q, `"`), "$(") {
				return ' '
			}
			return r
		}, q)
	})
	for _, found := range printedName.FindAllStringSubmatch(pipeOnly.Replace(copies.ReplaceAllString(between, " ")), -1) {
		runs, hidden = true, hidden || hides(strings.Split(found[1], "|"))
	}
	text = groupBegin.ReplaceAllString(groupEnd.ReplaceAllString(text, "|"), "|")
	for pipeline := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(";&\n\r(){}`", r) }) {
		stages := strings.Split(pipeline, "|")
		for i := 1; i < len(stages); i++ {
			if slices.ContainsFunc(commandsOf(stages[i]), readsCommands) {
				runs, hidden = true, hidden || hides(stages[:i])
			}
		}
	}
	return runs, hidden
}

// hides reports whether the commands of a pipeline print a text that stands in the line, in another form.
func hides(stages []string) bool {
	first := commandsOf(stages[0])
	prints := slices.ContainsFunc(first, func(words []string) bool {
		_, is := printers[path.Base(words[0])]
		return is
	})
	copied := slices.Contains([]string{"cat", "tee"}, path.Base(first[0][0]))
	return prints && (len(stages) > 1 || escapes.MatchString(stages[0])) ||
		strings.Contains(stages[0], "<<") && (len(stages) > 1 || !copied)
}

// commandsOf returns where commands may begin in a part of a line, as words. There is one at least.
func commandsOf(part string) (commands [][]string) {
	all, _ := unwrapped(collapse(unquote.Replace(redirection.ReplaceAllString(part, " "))), false)
	for _, c := range all {
		commands = append(commands, strings.Split(c, " "))
	}
	return commands
}

// readsCommands reports whether a command runs what comes to its standard input: it is a shell without a script, or
// reads a file that is the input.
func readsCommands(words []string) bool {
	name := path.Base(words[0])
	input := func(word string) bool {
		return slices.Contains([]string{"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}, word)
	}
	if name == "." || name == "source" {
		return len(words) > 1 && input(words[1])
	}
	if startsShell(name, words) {
		return true
	}
	if !slices.Contains(readers, name) {
		return false
	}
	if name == "at" || name == "batch" { // the time stands behind it
		return true
	}
	for i := 1; i < len(words); i++ {
		word := words[i]
		letters, short := strings.CutPrefix(word, "-")
		switch {
		case input(word):
			return true
		case short && !strings.HasPrefix(letters, "-") && strings.Contains(letters, "c"):
			return i == len(words)-1 // xargs sh -c
		case short && !strings.HasPrefix(letters, "-") && strings.Contains(letters, "s"):
			return true
		case !short && !strings.HasPrefix(word, "+"):
			return false // it is a script
		}
		if value, _ := shellWrapper.takesNext(word); value {
			i++
		}
	}
	return true
}

// startsShell reports whether a program that is no shell starts one, because no command stands behind it.
func startsShell(name string, words []string) bool {
	switch name {
	case "su", "runuser", "chroot", "unshare", "nsenter", "newgrp", "script", "ssh":
	case "sudo", "doas":
		if !slices.ContainsFunc(words, func(w string) bool {
			letters, long := strings.CutPrefix(w, "--")
			return long && (letters == "shell" || letters == "login") ||
				!long && strings.HasPrefix(w, "-") && strings.ContainsAny(w, "si")
		}) {
			return false
		}
	default:
		return false
	}
	at, joined := following(words, false)
	return len(at) == 0 && len(joined) == 0
}
