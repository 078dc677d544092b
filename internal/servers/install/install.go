// Package install installs third-party servers in a folder of a sandbox: packages of npm,
// distributions for pip, and Git repositories. The installed code may be hostile: its
// output is bounded and made safe.
package install

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/pool"
	"sandlot/internal/servers/process"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
)

// Request is a principal's request to install and connect a server.
type Request struct {
	spec.Ask          // Name, Env, and the Command and Args to start it, which may be empty
	Type, Spec string // npm, pip or git; what to install
	Workdir    string // beneath /workspace; empty: external-mcp/{name}
	// Progress is called with a line of text for each step; may be nil.
	Progress func(text string)
}

// tail is how many bytes of an installation's output Log returns.
const tail = 16 << 10

var (
	slugForm = regexp.MustCompile(`[^a-z0-9._-]+`)
	refForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}$`)
)

func slug(name string) string {
	s := strings.Trim(slugForm.ReplaceAllString(strings.ToLower(name), "-"), "-.")
	if s == "" {
		return "server"
	}
	return s
}

// Check checks a request, and returns the folder to install in.
func (r *Request) Check() (folder string, err error) {
	wrong := func(argument, format string, args ...any) (string, error) {
		return "", fault.New(fault.InvalidParameters, format, args...).With("argument", argument)
	}
	if err := spec.CheckName(r.Name); err != nil {
		return "", err
	}
	r.Spec = strings.TrimSpace(r.Spec)
	switch {
	case r.Type != "npm" && r.Type != "pip" && r.Type != "git":
		return wrong("install", "install.type %q: must be npm, pip or git", spec.Clip(r.Type))
	case r.Spec == "" || len(r.Spec) > 500 || spec.HasControl(r.Spec):
		return wrong("install", "install.spec must name a package, or for git a URL, in at most 500 characters")
	case strings.HasPrefix(r.Spec, "-"):
		return wrong("install", "install.spec %q begins with a -, which would be an option", spec.Clip(r.Spec))
	}
	if r.Type == "git" {
		if u, err := url.Parse(r.Spec); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return wrong("install", "install.spec %q: git URLs begin with https:// and hold no password; "+
				"a branch, tag or commit may follow after #", spec.Clip(r.Spec))
		} else if u.Fragment != "" && !refForm.MatchString(u.Fragment) {
			return wrong("install", "install.spec: %q is no name of a branch, tag or commit", spec.Clip(u.Fragment))
		}
	}
	start := r.Ask // check it before anything is installed
	if start.Command == "" {
		start.Command = "the program that it brings"
	}
	if err := start.Check(); err != nil {
		return "", err
	}
	folder = path.Join(pool.WorkspaceDir, "external-mcp", slug(r.Name))
	if r.Workdir != "" {
		folder = path.Join(pool.WorkspaceDir, strings.TrimPrefix(r.Workdir, pool.WorkspaceDir))
		if folder == pool.WorkspaceDir || !strings.HasPrefix(folder, pool.WorkspaceDir+"/") || spec.HasControl(folder) {
			return wrong("workdir", "workdir %q: must be a folder beneath %s", spec.Clip(r.Workdir), pool.WorkspaceDir)
		}
	}
	return folder, nil
}

// Change returns the change that a request means, for the user's consent.
func (r Request) Change(folder string) spec.Change {
	a := r.Ask
	a.Kind, a.Cwd = spec.Stdio, folder
	a.Install = &spec.Install{Type: r.Type, Spec: r.Spec, Folder: folder}
	c := a.Change()
	c.Workdir = r.Workdir
	var commands [][]string
	switch r.Type {
	case "npm":
		commands = [][]string{npmInstall(folder, r.Spec)}
	case "pip":
		venv := path.Join(folder, "venv")
		commands = [][]string{makeVenv(venv), pipInstall(venv, r.Spec)}
	case "git":
		from, ref, _ := strings.Cut(r.Spec, "#")
		c.Cwd = path.Join(folder, "repo")
		commands = [][]string{clone(from, ref, c.Cwd)}
	}
	for _, argv := range commands {
		c.Commands = append(c.Commands, spec.Exactly(argv))
	}
	return c
}

// Result is what an installation installed.
type Result struct {
	Cwd     string
	Path    []string // folders with its programs
	Bins    []string // the names of its programs
	Version string
}

// Only returns the program that is the server, or an error if that is not clear.
func (f Result) Only(r Request) (string, error) {
	if len(f.Bins) == 1 {
		return f.Bins[0], nil
	}
	// A program with the package's name is the server.
	base := path.Base(r.Spec)
	for _, sep := range []string{"@", "=", "<", ">", "~", "!", "[", "#", " "} {
		if i := strings.Index(base, sep); i > 0 {
			base = base[:i]
		}
	}
	for _, bin := range f.Bins {
		if bin == strings.TrimSuffix(base, ".git") {
			return bin, nil
		}
	}
	if len(f.Bins) == 0 {
		return "", fault.New(fault.InvalidParameters, "it is installed in %s, but brings no program: "+
			"say with start how its server starts", f.Cwd).With("argument", "start")
	}
	some := f.Bins[:min(len(f.Bins), 20)]
	return "", fault.New(fault.InvalidParameters, "it is installed in %s, and brings %d programs (%s): "+
		"say with start which of them is the server", f.Cwd, len(f.Bins), strings.Join(some, ", ")).
		With("argument", "start").With("programs", some)
}

// Installer runs one installation.
type Installer struct {
	lease    *session.Lease
	folder   string
	request  Request
	began    time.Time
	limit    time.Duration
	commands []string
	output   process.Log
	said     time.Time
}

// New returns the installer for a request that was checked. All of its commands together
// may take limit.
func New(l *session.Lease, r Request, folder string, limit time.Duration) *Installer {
	return &Installer{lease: l, request: r, folder: folder, began: time.Now(), limit: limit}
}

// Commands returns the commands that were run, as one types them in a shell.
func (i *Installer) Commands() []string { return i.commands }

// Log returns the end of the commands' output.
func (i *Installer) Log() string {
	t, _ := i.output.Tail(0)
	return t[max(0, len(t)-tail):]
}

// run runs one program without a shell. With show, the program and its output are logged
// and reported.
func (i *Installer) run(ctx context.Context, cwd string, show bool, argv ...string) (string, error) {
	if show {
		i.commands = append(i.commands, shown(argv))
		i.output.Line("$ %s", shown(argv))
		i.say("Running " + shown(argv))
	}
	left := time.Until(i.began.Add(i.limit))
	var o agent.Observer
	if show {
		o.Output = i.passOn
	}
	d, err := i.lease.Agent().Exec(ctx, agent.Exec{
		Command: agent.Command{Args: argv, Dir: cwd,
			Env: map[string]string{"CI": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1",
				"GIT_TERMINAL_PROMPT": "0", "NO_COLOR": "1"}},
		Timeout: max(left, time.Second), Inline: agent.Inline{Head: 4 << 10, Tail: 64 << 10}}, o)
	if err != nil {
		return "", i.lease.Fault(ctx, err, fault.CommandExecution)
	}
	out := string(d.Stdout.Head) + string(d.Stdout.Tail)
	errs := string(d.Stderr.Head) + string(d.Stderr.Tail)
	if show {
		i.output.Write([]byte(out))
		i.output.Write([]byte(errs))
	}
	if d.ExitCode != 0 {
		return out, i.failed(d, argv)
	}
	return out, nil
}

func (i *Installer) failed(d *agent.ExecResult, argv []string) error {
	how := fmt.Sprintf("ended with exit code %d", d.ExitCode)
	if d.TimedOut {
		how = fmt.Sprintf("took longer than %s (mcp_install_timeout); what is there is kept, and a second try goes on "+
			"from it", i.limit)
	}
	if d.KilledBy != "" {
		how = "was ended, as the sandbox reached its limit of " + d.KilledBy
	}
	f := fault.New(fault.CommandExecution, "the installation of %q failed: %s %s", i.request.Spec, shown(argv), how).
		With("exit_code", d.ExitCode).With("command", shown(argv)).With("log", i.Log())
	var refused []string
	for _, r := range i.lease.Refusals() {
		refused = append(refused, fault.Printable(r.Host, 260)+": "+fault.Printable(r.Reason, 300))
	}
	if len(refused) > 0 {
		f.Message += ". Network access was refused: " + strings.Join(refused, "; ") +
			". The operator of this server can allow it: network.allow in sandlot.yaml"
		f = f.With("network_refused", refused)
	}
	return f
}

// passOn reports the last line of new output, at most once a second.
func (i *Installer) passOn(output []byte) error {
	if time.Since(i.said) > time.Second {
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		i.say(spec.Text(lines[len(lines)-1], 300))
	}
	return nil
}

func (i *Installer) say(line string) {
	if i.request.Progress != nil && line != "" {
		i.said = time.Now()
		i.request.Progress(line)
	}
}

// shown returns a command for a log or a message.
func shown(argv []string) string {
	short := make([]string, len(argv))
	for i, a := range argv {
		short[i] = spec.Text(a, 500)
	}
	return spec.CommandLine(short)
}
