package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/pool"
)

// shell runs commands in a sandbox in which a template is built.
type shell struct {
	booted *pool.Booted
	report func(string) // gets the last line of what commands print; nil: nobody is to know
}

const (
	// probeTimeout is how long one look into an image may take, installTimeout one package manager.
	probeTimeout   = time.Minute
	installTimeout = 30 * time.Minute
	// maxProbe is how many characters of a probe's output are read.
	maxProbe = 256 << 10
	// lastLines is how many lines of a failed command's output its error has.
	lastLines = 15
)

// run runs a command, and returns an error with the end of its output if it fails. What completes the error text.
func (s *shell) run(ctx context.Context, what string, env map[string]string, args ...string) error {
	var last tail
	observer := agent.Observer{Output: func(text []byte) error {
		if line := last.add(text); line != "" && s.report != nil {
			s.report(what + ": " + line)
		}
		return nil
	}}
	if s.report != nil {
		s.report(what)
	}
	r, err := s.booted.Agent.Exec(ctx, agent.Exec{Command: agent.Command{Args: args, Env: env, Dir: "/"},
		Timeout: installTimeout, Inline: agent.InlineBounds{Head: 1, Tail: 1}}, observer)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case r.TimedOut:
		return fmt.Errorf("%s: it took longer than %s:\n%s", what, installTimeout, last.text())
	case r.ExitCode != 0 && r.KilledBy != "":
		return fmt.Errorf("%s: it was killed, for it reached the sandbox's limit of %s:\n%s", what, r.KilledBy,
			last.text())
	case r.ExitCode != 0:
		return failedWith(what, r.ExitCode, s.refusals(), last.text())
	}
	return nil
}

// failedWith returns the error of a command that failed. The first cause stands first: the text may be long, and is cut.
func failedWith(what string, code int, refusals, output string) error {
	why := refusals
	if why == "" {
		why = fault.Telling(output)
	}
	if why == "" {
		return fmt.Errorf("%s: it ended with code %d, and printed nothing", what, code)
	}
	return fmt.Errorf("%s: %s\nit ended with code %d:\n%s", what, why, code, output)
}

// refusals says which hosts the sandbox was not allowed to reach since the last call.
func (s *shell) refusals() string {
	if s.booted.Outlet == nil {
		return ""
	}
	hosts := map[string]bool{}
	for _, r := range s.booted.Outlet.TakeRefusals() {
		hosts[fault.Printable(r.Host, 100)] = true
	}
	if len(hosts) == 0 {
		return ""
	}
	return "the network policy of the template does not allow " +
		strings.Join(slices.Sorted(maps.Keys(hosts)), ", ") + ": add what is needed to network.allow of the template"
}

// output runs a script of /bin/sh and returns what it prints.
func (s *shell) output(ctx context.Context, script string) (string, error) {
	command := agent.Command{Args: []string{"/bin/sh", "-c", script}, Dir: "/"}
	r, err := s.booted.Agent.Exec(ctx, agent.Exec{Command: command, Timeout: probeTimeout,
		Inline: agent.InlineBounds{Head: maxProbe, Tail: 1}}, agent.Observer{})
	if err != nil {
		return "", err
	}
	if r.ExitCode != 0 {
		return "", fmt.Errorf("/bin/sh ended with code %d: %s", r.ExitCode, fault.Printable(string(r.Stderr.Head), 500))
	}
	return string(r.Stdout.Head), nil
}

// install adds a template's files and packages to the sandbox.
func (s *shell) install(ctx context.Context, d config.Template) error {
	for _, target := range slices.Sorted(maps.Keys(d.Files)) {
		if _, mounted := s.booted.Template.Files[strings.TrimPrefix(target, "/")]; mounted {
			return fmt.Errorf("files: Sandlot writes %s itself, for each sandbox: remove it from the template", target)
		}
		if err := s.writeFile(ctx, target, d.Files[target]); err != nil {
			return err
		}
	}
	apt := []string{"apt-get", "-y", "-q", "-o", "APT::Sandbox::User=root", "-o", "Dpkg::Use-Pty=0"}
	aptEnv := map[string]string{"DEBIAN_FRONTEND": "noninteractive"}
	if p := d.Packages.Apt; len(p) > 0 {
		// They belong to apt's own user: where root has no capabilities, it cannot write there.
		owned := "rm -rf /var/lib/apt/lists/partial /var/cache/apt/archives/partial"
		if err := s.run(ctx, "apt-get", aptEnv, "/bin/sh", "-c", owned); err != nil {
			return err
		}
		if err := s.run(ctx, "apt-get update", aptEnv, append(apt, "update")...); err != nil {
			return err
		}
		install := slices.Concat(apt, []string{"install", "--no-install-recommends", "--"}, p)
		if err := s.run(ctx, "apt-get install", aptEnv, install...); err != nil {
			return err
		}
		clean := "apt-get clean; rm -rf /var/lib/apt/lists/*"
		if err := s.run(ctx, "apt-get clean", aptEnv, "/bin/sh", "-c", clean); err != nil {
			return err
		}
	}
	if p := d.Packages.Npm; len(p) > 0 {
		install := append([]string{"npm", "install", "--global", "--prefix", "/usr/local", "--no-audit", "--no-fund",
			"--loglevel", "http", "--"}, p...)
		env := map[string]string{"npm_config_prefix": "/usr/local", "npm_config_cache": "/tmp/npm"}
		if err := s.run(ctx, "npm install", env, install...); err != nil {
			return err
		}
	}
	if p := d.Packages.Pip; len(p) > 0 {
		install := append([]string{"python3", "-m", "pip", "install", "--no-input", "--no-cache-dir", "--progress-bar",
			"off", "--"}, p...)
		return s.run(ctx, "pip install", map[string]string{"PIP_BREAK_SYSTEM_PACKAGES": "1"}, install...)
	}
	return nil
}

// writeFile writes a file into the sandbox, and makes the folders that it needs.
func (s *shell) writeFile(ctx context.Context, target string, f config.File) error {
	s.report("writing " + target)
	script := `mkdir -p -- "$1" && cat >"$2" && chmod "$3" "$2"`
	r, err := s.booted.Agent.Exec(ctx, agent.Exec{Command: agent.Command{Args: []string{"/bin/sh", "-c", script, "sh",
		path.Dir(target), target, fmt.Sprintf("%o", f.Mode.Perm())}, Dir: "/"}, Stdin: f.Content, Timeout: probeTimeout,
		Inline: agent.InlineBounds{Head: 500, Tail: 500}}, agent.Observer{})
	if err != nil {
		return fmt.Errorf("writing %s: %w", target, err)
	}
	if r.ExitCode != 0 {
		return fmt.Errorf("writing %s: %s", target, fault.Printable(string(r.Stderr.Head), 500))
	}
	return nil
}

// probeScript prints a line for each interpreter that it finds: a language and a path.
const probeScript = `exec 2>/dev/null
p=$(command -v python3 || command -v python) &&
	p=$("$p" -c 'import sys; assert sys.version_info >= (3, 8); print(sys.executable)') && echo "python $p"
p=$(command -v node || command -v nodejs) && p=$("$p" -e 'console.log(process.execPath)') && echo "node $p"
p=$(command -v bash) && echo "bash $p"
p=$(command -v sh) && echo "sh $p"
exit 0`

// accountsScript prints /etc/passwd, a line with a colon, and /etc/group, with nothing but the shell.
const accountsScript = `for f in /etc/passwd /etc/group; do
	if [ -r "$f" ]; then while IFS= read -r l || [ -n "$l" ]; do printf '%s\n' "$l"; done <"$f"; fi
	echo :
done`

// probe finds out which languages an image has, and who its user is. Both come from the sandbox, and are checked.
func (r *record) probe(ctx context.Context, s *shell, d config.Template) error {
	if len(d.Languages) == 0 {
		out, err := s.output(ctx, probeScript)
		if err != nil {
			return fmt.Errorf("its languages could not be found, name them in the settings (languages): %w", err)
		}
		if r.Languages = parseLanguages(out); len(r.Languages) == 0 {
			return errors.New("no interpreter was found in the image (python3, node, bash or sh in PATH): name its " +
				"languages in the settings (languages)")
		}
	}
	if isRoot(r.Image.User) {
		return nil
	}
	out, err := s.output(ctx, accountsScript)
	if err != nil {
		return fmt.Errorf("the user %q of the image could not be looked up: %w", r.Image.User, err)
	}
	passwd, group, _ := strings.Cut(out, "\n:\n")
	r.User, err = image.ResolveUser(r.Image.User, passwd, group)
	return err
}

func isRoot(user string) bool {
	return slices.Contains([]string{"", "0", "root", "0:0", "root:root"}, user)
}

// parseLanguages reads the output of probeScript.
func parseLanguages(out string) (found []image.Language) {
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		name, program, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if seen[name] || !path.IsAbs(program) || len(program) > 4000 || fault.Printable(program, 4000) != program {
			continue
		}
		seen[name] = true
		found = append(found, image.LanguagesOf(name, program)...)
	}
	return found
}

// tail has the last lines of an output.
type tail struct {
	lines   []string
	current []byte
}

// maxLine bounds a line of a tail, in bytes.
const maxLine = 500

// add adds a part of the output, and returns the last line that it completes.
func (t *tail) add(text []byte) (line string) {
	for _, c := range text {
		if c != '\n' && c != '\r' {
			if len(t.current) < maxLine {
				t.current = append(t.current, c)
			}
			continue
		}
		if l := strings.TrimSpace(fault.Printable(string(t.current), maxLine)); l != "" {
			t.lines, line = append(t.lines, l), l
			t.lines = t.lines[max(0, len(t.lines)-lastLines):]
		}
		t.current = t.current[:0]
	}
	return line
}

func (t *tail) text() string {
	t.add([]byte("\n"))
	return strings.Join(t.lines, "\n")
}
