package policy

import (
	"path"
	"slices"
	"strings"
)

// wrapper says how a program, or a word of the shell, is followed by the command that it runs. What the table does not
// say about an option, a rule that denies takes both ways: as an option alone, and with a value in the next word.
type wrapper struct {
	flags     string   // short options without a value
	values    string   // short options whose value is the rest of the word, or else the next word
	long      []string // long options whose value may be the next word
	operands  int      // words that stand before the command, such as the time of timeout
	after     []string // words after which a command stands, wherever they are
	behind    int      // operands between such a word and the command, such as an image
	settings  []string // settings whose value is a command, in lower case: -o ProxyCommand=curl
	optional  bool     // one more word may stand before the command, such as an architecture
	only      bool     // a command stands after those words alone
	variables bool     // words set variables, whose values may be commands
	anywhere  bool     // options have several values: any word may begin the command
}

// maxCommands is in how many places a command may begin behind wrappers, in a part of a line without operators of the
// shell. A line with more cannot be compared.
const maxCommands = 100

var (
	shellWrapper = wrapper{flags: "abcefhilmnprstuvxBCDEHPT", values: "oO", long: []string{"rcfile", "init-file"}}
	runWrapper   = wrapper{after: []string{"run", "exec", "x", "dlx"}, only: true}
	npmWrapper   = wrapper{after: []string{"run", "exec", "x", "dlx", "-c", "--call"}, only: true}
	userWrapper  = wrapper{flags: "lmpP", values: "gGsw", operands: 1, after: []string{"-c", "--command", "--session-command"}}
	// boxWrapper is that of programs that run commands in containers and on other machines.
	boxWrapper = wrapper{after: []string{"run", "exec", "create", "enter", "shell", "ssh", "attach", "rsh", "debug", "-c", "--command",
		"--entrypoint", "--cmd"}, behind: 1, only: true}
	tarWrapper = wrapper{after: []string{"-I", "-F", "--to-command", "--use-compress-program", "--rsh-command", "--info-script",
		"--new-volume-script", "--checkpoint-action=exec"}, only: true}
	sshSettings = []string{"proxycommand", "localcommand", "knownhostscommand", "pkcs11provider", "xauthlocation"}
	sshWrapper  = wrapper{flags: "46AaCfGgKkMNnqsTtVvXxYy", values: "BbcDEeFIiJLlmOoPpQRSWw", operands: 1,
		settings: sshSettings}
	variableWrapper = wrapper{only: true, variables: true}
	// commandVariables have commands as their values, and so has each whose name ends in one of commandEnds.
	commandVariables = words(`PAGER EDITOR VISUAL BROWSER SHELL FCEDIT MANPAGER LESSOPEN LESSCLOSE PROMPT_COMMAND HGEDITOR
		GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_PROXY_COMMAND FZF_DEFAULT_COMMAND RSYNC_CONNECT_PROG MAKE CC CXX AR LD`)
	commandEnds = words(`_PAGER _EDITOR _BROWSER _ASKPASS _SSH _RSH _WRAPPER`)
	gitSettings = []string{"core.sshcommand", "core.pager", "core.editor", "core.fsmonitor", "core.askpass", "core.gitproxy",
		"sequence.editor", "diff.external", "gpg.program", "credential.helper", "textconv", "clean", "smudge", "process", "cmd"}
)

// wrappers are words that a command may follow in the same line. A program at any path counts as the one of its name.
var wrappers = map[string]wrapper{
	"!": {}, "then": {}, "do": {}, "else": {}, "if": {}, "elif": {}, "while": {}, "until": {}, "coproc": {}, "trap": {},
	"builtin": {}, "eval": {},
	"export": variableWrapper, "declare": variableWrapper, "typeset": variableWrapper, "readonly": variableWrapper,
	"local":   variableWrapper,
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
	"runuser":  {flags: "lmpP", values: "gGsuw", long: []string{"user", "group"}, after: []string{"-c", "--command", "--session-command"}},
	"sg":       {operands: 1, after: []string{"-c"}},
	"docker":   boxWrapper, "podman": boxWrapper, "nerdctl": boxWrapper, "finch": boxWrapper, "docker-compose": boxWrapper,
	"podman-compose": boxWrapper, "buildah": boxWrapper, "kubectl": boxWrapper, "oc": boxWrapper, "lxc": boxWrapper,
	"incus": boxWrapper, "apptainer": boxWrapper, "singularity": boxWrapper, "toolbox": boxWrapper, "distrobox": boxWrapper,
	"flatpak": boxWrapper, "ctr": boxWrapper, "crictl": boxWrapper, "runc": boxWrapper, "crun": boxWrapper,
	"udocker": boxWrapper, "container": boxWrapper, "machinectl": boxWrapper, "adb": boxWrapper, "vagrant": boxWrapper,
	"gcloud": boxWrapper, "wsl": {anywhere: true}, "wsl.exe": {anywhere: true}, "systemd-nspawn": {anywhere: true},
	"arch-chroot": {operands: 1}, "schroot": {anywhere: true}, "lxc-attach": {anywhere: true}, "lxc-execute": {anywhere: true},
	"mosh": {anywhere: true}, "sshpass": {values: "pfdP"}, "autossh": sshWrapper,
	"scp": {after: []string{"-S"}, only: true, settings: sshSettings}, "sftp": {after: []string{"-S"}, only: true, settings: sshSettings},
	"tar": tarWrapper, "bsdtar": tarWrapper, "gtar": tarWrapper, "rsync": {flags: "avzrlptgoDHAXSnhPiuqcWxbC",
		after: []string{"-e", "--rsh", "--rsync-path"}, only: true},
	"sort": {after: []string{"--compress-program"}, only: true}, "split": {after: []string{"--filter"}, only: true},
	"zip": {after: []string{"-TT", "--unzip-command"}, only: true}, "man": {after: []string{"-P", "--pager"}, only: true},
	"tcpdump": {after: []string{"-z"}, only: true}, "ncat": {after: []string{"-e", "-c", "--exec", "--sh-exec"}, only: true},
	"nc": {after: []string{"-e", "-c"}, only: true}, "netcat": {after: []string{"-e", "-c"}, only: true},
	"watchexec": {anywhere: true}, "nodemon": {after: []string{"-x", "--exec"}, only: true},
	"concurrently": {anywhere: true}, "retry": {anywhere: true}, "run-one": {}, "with-contenv": {}, "s6-setuidgid": {operands: 1},
	"pdsh": {anywhere: true}, "pssh": {anywhere: true}, "ansible": {after: []string{"-a", "--args"}, only: true}, "cmake": {after: []string{"command", "env", "time"}, only: true},
	"script":  {flags: "aefqV", values: "EImoOTB", after: []string{"-c", "--command"}, only: true},
	"ssh":     sshWrapper,
	"setpriv": {}, "unshare": {}, "nsenter": {}, "prlimit": {}, "setarch": {optional: true}, "linux32": {}, "linux64": {},
	"i386": {}, "uname26": {}, "runcon": {optional: true},
	"systemd-run": {}, "systemd-inhibit": {}, "dbus-run-session": {}, "dbus-launch": {}, "firejail": {}, "fakeroot": {}, "chronic": {},
	"bwrap": {anywhere: true}, "proot": {anywhere: true}, "fakechroot": {}, "cgexec": {}, "numactl": {}, "capsh": {after: []string{"-c"}, only: true},
	"eatmydata": {}, "unbuffer": {}, "rlwrap": {}, "proxychains": {}, "proxychains4": {}, "torsocks": {}, "catchsegv": {},
	"busybox": {}, "toybox": {}, "torify": {}, "tsocks": {}, "faketime": {operands: 1}, "xvfb-run": {flags: "a", values: "enfpsw"},
	"tini": {}, "dumb-init": {}, "catatonit": {}, "gosu": {operands: 1}, "su-exec": {operands: 1}, "setuidgid": {operands: 1},
	"chpst": {}, "softlimit": {}, "ssh-agent": {}, "daemonize": {}, "daemon": {}, "entr": {}, "tsp": {}, "screen": {}, "gtimeout": {flags: "fpv",
		values: "ks", long: []string{"kill-after", "signal"}, operands: 1},
	"tmux": {anywhere: true}, "gdb": {after: []string{"--args", "-args"}, only: true}, "valgrind": {}, "hyperfine": {}, "perf": {operands: 1},
	"rg": {after: []string{"--pre"}, only: true}, "git": {after: []string{"run", "--exec", "foreach", "--upload-pack", "--receive-pack", "--extcmd"},
		only: true, settings: gitSettings},
	"start-stop-daemon": {after: []string{"--exec", "-x", "--startas", "-a"}, only: true},
	"uv":                runWrapper, "poetry": runWrapper, "pipenv": runWrapper, "pdm": runWrapper, "hatch": runWrapper, "rye": runWrapper,
	"conda": runWrapper, "mamba": runWrapper, "micromamba": runWrapper, "npm": npmWrapper, "pnpm": npmWrapper, "yarn": runWrapper,
	"bun": runWrapper, "direnv": {anywhere: true}, "bundle": runWrapper, "mise": runWrapper, "pipx": runWrapper, "asdf": runWrapper,
	"rbenv": runWrapper, "pyenv": runWrapper, "uvx": {}, "npx": {flags: "yq", values: "p", long: []string{"package"}, after: []string{"-c", "--call"}},
	"nix-shell": {after: []string{"--run", "--command"}, only: true},
	"sh":        shellWrapper, "bash": shellWrapper, "dash": shellWrapper, "ash": shellWrapper, "zsh": shellWrapper,
	"ksh": shellWrapper, "mksh": shellWrapper, "rbash": shellWrapper, "hush": shellWrapper, "yash": shellWrapper,
	"fish": shellWrapper, "csh": shellWrapper, "tcsh": shellWrapper, "pwsh": shellWrapper, "xonsh": shellWrapper, "nu": shellWrapper,
}

// unwrapped returns where commands may begin in a part of a line, which has single spaces and no operators of the shell:
// the part itself, and what wrappers and variables in front of it run. With printed, a shell runs what others print. It
// returns false if there are too many.
func unwrapped(part string, printed bool) (commands []string, ok bool) {
	seen := map[string]bool{}
	for rest := []string{part}; len(rest) > 0; rest = rest[1:] { // what is joined to an option is a part of its own
		words := strings.Split(rest[0], " ")
		starts := make([]int, len(words)+1) // where each word begins
		for i, w := range words {
			starts[i+1] = starts[i] + len(w) + 1
		}
		found := []int{0}
		for next := 0; next < len(found); next++ {
			at := found[next]
			commands = append(commands, rest[0][starts[at]:])
			follow, joined := following(words[at:], printed)
			for _, i := range follow {
				if !slices.Contains(found, at+i) {
					found = append(found, at+i)
				}
			}
			for _, j := range joined {
				if !seen[j] {
					seen[j], rest = true, append(rest, j)
				}
			}
			if len(found) > maxCommands || len(commands) > maxCommands {
				return commands, false
			}
		}
	}
	return commands, true
}

// following returns at which words a command may begin that the first word runs, and commands that begin in a word: the
// value of an option.
func following(words []string, printed bool) (at []int, joined []string) {
	if name, _, assigns := strings.Cut(words[0], "="); assigns && isAssigned(name) {
		if command := commandIn(words[0]); command != "" {
			joined = append(joined, strings.Join(append([]string{command}, words[1:]...), " "))
		}
		return inside(words, 1), joined
	}
	name := path.Base(words[0])
	w, is := wrapperOf(name)
	if p, prints := printers[name]; prints && printed {
		w, is = p, true
	}
	if !is {
		return nil, nil
	}
	for i, word := range words[1:] {
		if w.stands(word) {
			at = append(at, w.command(words, i+2)...)
		}
		value := w.setting(word)
		if w.variables {
			value = commandIn(word)
		}
		for _, command := range []string{w.joined(word), value} {
			if command != "" {
				joined = append(joined, strings.Join(append([]string{command}, words[i+2:]...), " "))
			}
		}
	}
	return append(at, w.begins(words)...), joined
}

// begins returns at which words a command may begin that is no value of an option.
func (w wrapper) begins(words []string) (at []int) {
	if w.anywhere {
		for i := range words[1:] {
			at = append(at, i+1)
		}
		return at
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

// wrapperOf returns the wrapper that a program of that name is. The loader of programs has the processor in its name.
func wrapperOf(name string) (wrapper, bool) {
	if strings.HasPrefix(name, "ld-linux") || strings.HasPrefix(name, "ld-musl") || name == "ld.so" {
		return wrapper{}, true
	}
	w, is := wrappers[name]
	return w, is
}

// stands reports whether a command stands after a word: also after `-qec`, which is -q, -e and -c.
func (w wrapper) stands(word string) bool {
	if slices.Contains(w.after, word) {
		return true
	}
	letters, short := strings.CutPrefix(word, "-")
	return short && len(letters) > 1 && letters[0] != '-' &&
		strings.Trim(letters, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" &&
		slices.Contains(w.after, "-"+letters[len(letters)-1:])
}

// joined returns the beginning of a command that is in the same word as the option before it: of `-ccurl`, `-lccurl`,
// `--command=curl`. It is empty if there is none.
func (w wrapper) joined(word string) string {
	if !strings.HasPrefix(word, "-") {
		return ""
	}
	for _, option := range w.after {
		if strings.HasPrefix(option, "--") {
			if command, ok := strings.CutPrefix(word, option+"="); ok {
				return command
			}
			continue
		}
		if len(option) != 2 || option[0] != '-' {
			continue
		}
		flags, command, found := strings.Cut(word[1:], option[1:])
		if found && strings.Trim(flags, w.flags) == "" {
			return command
		}
	}
	return ""
}

// setting returns the beginning of a command that is the value of a setting in a word: ProxyCommand=curl, -oProxyCommand=curl.
func (w wrapper) setting(word string) string {
	name, command, found := strings.Cut(word, "=")
	if !found || len(w.settings) == 0 {
		return ""
	}
	name = strings.ToLower(name)
	for _, s := range w.settings {
		prefix, ok := strings.CutSuffix(name, s)
		if ok && (prefix == "" || strings.HasPrefix(prefix, "-") || strings.HasSuffix(prefix, ".")) {
			return command
		}
	}
	return ""
}

// commandIn returns the beginning of a command that is the value of a variable in a word: PAGER=curl, GIT_PAGER+=curl.
func commandIn(word string) string {
	name, value, assigns := strings.Cut(word, "=")
	name = strings.ToUpper(strings.TrimSuffix(name, "+"))
	if assigns && (slices.Contains(commandVariables, name) || strings.HasPrefix(name, "GIT_CONFIG_VALUE_") ||
		slices.ContainsFunc(commandEnds, func(end string) bool { return strings.HasSuffix(name, end) })) {
		return value
	}
	return ""
}

// command returns where the command may begin that stands after a word, from i on: of some programs behind options, and
// a value of each, or operands.
func (w wrapper) command(words []string, i int) (at []int) {
	for maybe := w.behind; i < len(words); i++ {
		if strings.HasPrefix(words[i], "-") {
			maybe++
			continue
		}
		at = append(at, i)
		if maybe--; maybe < 0 {
			break
		}
	}
	return at
}

// isAssigned reports whether a text before = is a variable of the shell, or one of an array: A, A+, A[0].
func isAssigned(name string) bool {
	name = strings.TrimSuffix(name, "+")
	if i := strings.IndexByte(name, '['); i > 0 && strings.HasSuffix(name, "]") {
		name = name[:i]
	}
	return isVariable(name)
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
