package policy

import (
	"path"
	"slices"
	"strings"
)

// wrapper says how a program, or a word of the shell, is followed by the command that it runs. What the table does not
// say about an option, a rule that denies takes both ways: as an option alone, and with a value in the next word.
type wrapper struct {
	flags    string   // short options without a value
	values   string   // short options whose value is the rest of the word, or else the next word
	long     []string // long options whose value may be the next word
	operands int      // words that stand before the command, such as the time of timeout
	after    []string // words after which a command stands, wherever they are
	optional bool     // one more word may stand before the command, such as an architecture
	only     bool     // a command stands after those words alone
}

// maxCommands is in how many places a command may begin behind wrappers, in a part of a line without operators of the
// shell. A line with more cannot be compared.
const maxCommands = 100

var (
	shellWrapper = wrapper{flags: "abcefhilmnprstuvxBCDEHPT", values: "oO", long: []string{"rcfile", "init-file"}}
	userWrapper  = wrapper{flags: "lmpP", values: "gGsw", operands: 1, after: []string{"-c", "--command", "-lc", "-mc"}}
)

// wrappers are words that a command may follow in the same line. A program at any path counts as the one of its name.
var wrappers = map[string]wrapper{
	"!": {}, "then": {}, "do": {}, "else": {}, "if": {}, "elif": {}, "while": {}, "until": {}, "coproc": {}, "trap": {},
	"builtin": {}, "eval": {},
	"command": {flags: "pvV"}, "exec": {flags: "cl", values: "a"},
	"time": {flags: "pavq", values: "fo", long: []string{"format", "output"}},
	"sudo": {flags: "ABbEeHiKklNnPSsVv", values: "CcDghpRrtTUu", long: []string{"close-from", "chdir", "group", "host",
		"prompt", "chroot", "role", "type", "command-timeout", "other-user", "user"}},
	"doas":   {flags: "Lns", values: "aCu"},
	"pkexec": {long: []string{"user"}},
	"env":    {flags: "i0v", values: "uCS", long: []string{"unset", "chdir"}, after: []string{"-S", "--split-string"}},
	"nohup":  {}, "setsid": {flags: "cfw"},
	"nice":     {values: "n", long: []string{"adjustment"}},
	"ionice":   {flags: "t", values: "cnpPu", long: []string{"class", "classdata"}},
	"chrt":     {flags: "abdefimorRvp", values: "TPD", operands: 1},
	"taskset":  {flags: "acp", operands: 1},
	"timeout":  {flags: "fpv", values: "ks", long: []string{"kill-after", "signal"}, operands: 1},
	"stdbuf":   {values: "ioe", long: []string{"input", "output", "error"}},
	"chroot":   {long: []string{"userspec", "groups"}, operands: 1},
	"flock":    {flags: "eFnosux", values: "wEc", long: []string{"timeout", "wait", "conflict-exit-code"}, operands: 1, after: []string{"-c"}},
	"xargs":    {flags: "0oprtx", values: "aEdIJLnPRsS", long: []string{"arg-file", "delimiter", "max-lines", "max-args", "max-procs", "max-chars", "process-slot-var"}},
	"parallel": {},
	"watch":    {flags: "bcdegptwx", values: "nq", long: []string{"interval"}},
	"strace":   {flags: "cCdDfFhiknqrtTvVwxyYzZ", values: "aeEIobpPsSuUX"},
	"ltrace":   {flags: "bcCfhiLrStTV", values: "aADelnopsuwxX"},
	"find":     {after: []string{"-exec", "-execdir", "-ok", "-okdir"}, only: true},
	"fd":       {after: []string{"-x", "-X", "--exec", "--exec-batch"}, only: true},
	"su":       userWrapper,
	"runuser":  {flags: "lmpP", values: "gGsuw", long: []string{"user", "group"}, after: []string{"-c", "--command"}},
	"sg":       {operands: 1, after: []string{"-c"}},
	"script":   {flags: "aefqV", values: "EImoOTB", after: []string{"-c", "--command"}, only: true},
	"setpriv":  {}, "unshare": {}, "nsenter": {}, "prlimit": {}, "setarch": {optional: true}, "linux32": {}, "linux64": {},
	"systemd-run": {}, "systemd-inhibit": {}, "dbus-run-session": {}, "firejail": {}, "bwrap": {}, "fakeroot": {}, "chronic": {},
	"eatmydata": {}, "unbuffer": {}, "rlwrap": {}, "proxychains": {}, "proxychains4": {}, "torsocks": {}, "catchsegv": {},
	"busybox": {}, "toybox": {},
	"sh": shellWrapper, "bash": shellWrapper, "dash": shellWrapper, "ash": shellWrapper, "zsh": shellWrapper,
	"ksh": shellWrapper, "mksh": shellWrapper, "rbash": shellWrapper,
}

// unwrapped returns where commands may begin in a part of a line, which has single spaces and no operators of the shell:
// the part itself, and what wrappers and variables in front of it run. It returns false if there are too many.
func unwrapped(part string) (commands []string, ok bool) {
	words := strings.Split(part, " ")
	starts := make([]int, len(words)+1) // where each word begins
	for i, w := range words {
		starts[i+1] = starts[i] + len(w) + 1
	}
	found := []int{0}
	for next := 0; next < len(found); next++ {
		at := found[next]
		commands = append(commands, part[starts[at]:])
		for _, i := range following(words[at:]) {
			if !slices.Contains(found, at+i) {
				found = append(found, at+i)
			}
		}
		if len(found) > maxCommands {
			return commands, false
		}
	}
	return commands, true
}

// following returns at which words a command may begin that the first word runs.
func following(words []string) (at []int) {
	if name, _, assigns := strings.Cut(words[0], "="); assigns && isVariable(name) {
		return inside(words, 1)
	}
	w, is := wrappers[path.Base(words[0])]
	if !is {
		return nil
	}
	for i, word := range words[1:] {
		if slices.Contains(w.after, word) {
			at = append(at, inside(words, i+2)...)
		}
	}
	operands, options := w.operands, true
	maybe := 0 // options whose values may be among the words
	if w.only {
		return at
	}
	if w.optional {
		maybe++
	}
	for i, seen := 1, 0; i < len(words); i++ {
		word := words[i]
		switch {
		case options && word == "--":
			options = false
		case options && (strings.HasPrefix(word, "-") || strings.HasPrefix(word, "+")):
			value, known := w.takesNext(word)
			if value {
				i++
			} else if !known {
				maybe++
			}
		case seen < operands: // it is an operand, or the value of an option
			seen++
		default:
			at = append(at, i)
			if seen >= operands+maybe {
				return at
			}
			seen++
		}
	}
	return at
}

// inside returns i if there is a word i.
func inside(words []string, i int) []int {
	if i < len(words) {
		return []int{i}
	}
	return nil
}

// takesNext reports whether the value of an option is the next word, and whether the table says so.
func (w wrapper) takesNext(option string) (value, known bool) {
	if name, long := strings.CutPrefix(option, "--"); long {
		if strings.Contains(name, "=") {
			return false, true
		}
		for _, l := range w.long {
			if strings.HasPrefix(l, name) { // options may be shortened
				return true, true
			}
		}
		return false, false
	}
	letters := option[1:]
	if strings.Trim(letters, "0123456789") == "" { // "-", and `nice -5`
		return false, true
	}
	for i := range len(letters) {
		switch c := letters[i]; {
		case strings.IndexByte(w.values, c) >= 0:
			return i == len(letters)-1, true
		case strings.IndexByte(w.flags, c) < 0:
			return false, false
		}
	}
	return false, true
}
