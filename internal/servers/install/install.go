// Package install installs third-party servers in a folder of a sandbox: packages of npm,
// distributions for pip, and Git repositories. The installed code may be hostile: its
// output is bounded and made safe.
package install

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
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
	spec.ConnectRequest        // Name, Env, and the Command and Args to start it, which may be empty
	Type, Spec          string // npm, pip or git; what to install
	// SHA256 is that of the package's file, in hexadecimal; empty: any file of the package is right.
	SHA256  string
	Workdir string // beneath /workspace; empty: external-mcp/{name}
	// Progress is called with a line of text for each step; may be nil.
	Progress func(text string)
}

// maxLog is how many bytes of an installation's output Log returns.
const maxLog = 16 << 10

var (
	notSlug    = regexp.MustCompile(`[^a-z0-9._-]+`)
	shaPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)
	refPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}$`)
)

func slug(name string) string {
	s := strings.Trim(notSlug.ReplaceAllString(strings.ToLower(name), "-"), "-.")
	if s == "" {
		return "server"
	}
	return s
}

// Check checks a request, and returns the folder to install in.
func (r *Request) Check() (folder string, err error) {
	if err := spec.CheckName(r.Name); err != nil {
		return "", err
	}
	r.Spec = strings.TrimSpace(r.Spec)
	switch {
	case r.Type != "npm" && r.Type != "pip" && r.Type != "git":
		return "", fault.Argument("install", "install.type %q: must be npm, pip or git", spec.ClipName(r.Type))
	case r.Spec == "" || len(r.Spec) > 500 || spec.HasControl(r.Spec):
		return "", fault.Argument("install",
			"install.spec must name a package, or for git a URL, in at most 500 characters")
	case strings.HasPrefix(r.Spec, "-"):
		return "", fault.Argument("install", "install.spec %q begins with a -, which would be an option",
			spec.ClipName(r.Spec))
	}
	if r.SHA256 != "" && (!shaPattern.MatchString(r.SHA256) || r.Type == "git" || strings.ContainsAny(r.Spec, " \"'\\;")) {
		return "", fault.Argument("install", "install.sha256 is the SHA-256 of a package's file, in 64 hexadecimal digits, "+
			"for npm or pip")
	}
	if r.Type == "git" {
		if u, err := url.Parse(r.Spec); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return "", fault.Argument("install", "install.spec %q: git URLs begin with https:// and hold no password; "+
				"a branch, tag or commit may follow after #", spec.ClipName(r.Spec))
		} else if u.Fragment != "" && !refPattern.MatchString(u.Fragment) {
			return "", fault.Argument("install", "install.spec: %q is not a name of a branch, tag or commit",
				spec.ClipName(u.Fragment))
		}
	}
	start := r.ConnectRequest // check it before anything is installed
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
			return "", fault.Argument("workdir", "workdir %q: must be a folder beneath %s", spec.ClipName(r.Workdir),
				pool.WorkspaceDir)
		}
	}
	return folder, nil
}

// Change returns the change that a request means, for the user's consent.
func (r Request) Change(folder string) spec.Change {
	a := r.ConnectRequest
	a.Kind, a.Cwd = spec.Stdio, folder
	a.Install = &spec.Install{Type: r.Type, Spec: r.Spec, Folder: folder, SHA256: r.SHA256}
	c := a.Change()
	c.Workdir = r.Workdir
	var commands [][]string
	switch r.Type {
	case "npm":
		commands = [][]string{npmInstallCommand(folder, r.Spec)}
		if r.SHA256 != "" {
			commands = [][]string{npmPackCommand(folder, r.Spec), checkFileCommand(r.SHA256),
				npmInstallCommand(folder, packageFolder+"/*.tgz")}
		}
	case "pip":
		venv := path.Join(folder, "venv")
		commands = [][]string{makeVenvCommand(venv), pipCommand(venv, ofPyPI(r.Spec)...)}
		if r.SHA256 != "" {
			commands = slices.Insert(commands, 1, []string{"echo", hashedRequirement(r)}, pipCommand(venv, hashedArguments...))
		}
	case "git":
		from, ref, _ := strings.Cut(r.Spec, "#")
		c.Cwd = path.Join(folder, "repo")
		commands = [][]string{cloneCommand(from, ref, c.Cwd)}
	}
	for _, argv := range commands {
		c.Commands = append(c.Commands, spec.ExactCommandLine(argv))
	}
	if r.Type == "pip" {
		c.Commands = append(c.Commands, "# where the sandbox has uv, in place of pip: "+
			spec.ExactCommandLine(uvCommand(path.Join(folder, "venv"), ofPyPI(r.Spec)...)))
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

// ServerProgram returns the program that is the server, or an error if that is not clear.
func (result Result) ServerProgram(r Request) (string, error) {
	if len(result.Bins) == 1 {
		return result.Bins[0], nil
	}
	// A program with the package's name is the server.
	base := path.Base(r.Spec)
	for _, sep := range []string{"@", "=", "<", ">", "~", "!", "[", "#", " "} {
		if i := strings.Index(base, sep); i > 0 {
			base = base[:i]
		}
	}
	for _, bin := range result.Bins {
		if bin == strings.TrimSuffix(base, ".git") {
			return bin, nil
		}
	}
	if len(result.Bins) == 0 {
		return "", fault.Argument("start", "it is installed in %s, but brings no program: "+
			"say with start how its server starts", result.Cwd)
	}
	some := result.Bins[:min(len(result.Bins), 20)]
	return "", fault.Argument("start", "it is installed in %s, and brings %d programs (%s): "+
		"say with start which of them is the server", result.Cwd, len(result.Bins), strings.Join(some, ", ")).
		With("programs", some)
}

// ofPyPI are the arguments of pip and uv for a package.
func ofPyPI(spec string) []string { return []string{"--upgrade", "--", spec} }

// Installer runs one installation.
type Installer struct {
	lease      *session.Lease
	folder     string
	request    Request
	started    time.Time
	limit      time.Duration
	env        map[string]string // of the server; secrets are in it
	commands   []string
	log        process.Log
	lastReport time.Time
	hasUV      bool // the sandbox has uv, which starts
}

// New returns the installer for a request that was checked. All of its commands together
// may take limit. env has the variables of the server, with secrets in place of references; see variables.
func New(l *session.Lease, r Request, folder string, limit time.Duration, env map[string]string) *Installer {
	return &Installer{lease: l, request: r, folder: folder, started: time.Now(), limit: limit, env: env}
}

// Commands returns the commands that were run, as one types them in a shell.
func (i *Installer) Commands() []string { return i.commands }

// Log returns the end of the commands' output.
func (i *Installer) Log() string {
	t, _ := i.log.Tail(0)
	return t[max(0, len(t)-maxLog):]
}

// run runs one program without a shell. With show, the program and its output are logged
// and reported.
func (i *Installer) run(ctx context.Context, cwd string, show bool, argv ...string) (string, error) {
	if show {
		i.commands = append(i.commands, displayCommand(argv))
		i.log.Printf("$ %s", displayCommand(argv))
		i.report("Running " + displayCommand(argv))
	}
	remaining := time.Until(i.started.Add(i.limit))
	var o agent.Observer
	env := map[string]string{"CI": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1",
		"UV_NO_PROGRESS": "1", "GIT_TERMINAL_PROMPT": "0", "NO_COLOR": "1"}
	var withheld []string
	if show {
		withheld = i.withheld(argv)
		o.Output = i.reportOutput
		maps.Copy(env, i.variables(argv))
	}
	result, err := i.lease.Agent().Exec(ctx, agent.Exec{
		Command: agent.Command{Args: argv, Dir: cwd, Env: env},
		Timeout: max(remaining, time.Second), Inline: agent.InlineBounds{Head: 4 << 10, Tail: 64 << 10}}, o)
	if err != nil {
		return "", i.lease.Fault(ctx, err, fault.CommandExecution)
	}
	out := string(result.Stdout.Head) + string(result.Stdout.Tail)
	errs := string(result.Stderr.Head) + string(result.Stderr.Tail)
	if show {
		i.log.Write([]byte(out))
		i.log.Write([]byte(errs))
	}
	if result.ExitCode != 0 {
		return out, i.failed(result, argv, withheld, i.refused())
	}
	return out, nil
}

// installerVariables are prefixes of the names of variables that are for the installers themselves, such as the address of
// a registry and the credentials there.
var installerVariables = map[string][]string{"npm": {"NPM_", "NODE_AUTH_TOKEN", "NODE_EXTRA_CA_CERTS"},
	"python3": {"PIP_"}, "uv": {"UV_", "PIP_"}, "git": {"GIT_"}}

// isOfNetwork reports whether a variable says by which proxy, or with which certificates, programs reach the network.
func isOfNetwork(name string) bool {
	name = strings.ToUpper(name)
	return strings.HasSuffix(name, "_PROXY") || strings.HasPrefix(name, "SSL_CERT_") || strings.HasSuffix(name, "_CA_BUNDLE") ||
		name == "NODE_EXTRA_CA_CERTS"
}

// variables returns the variables of the server that a command of an installation gets. What is installed is a stranger's
// code, and may run then: stored secrets are for the server that it becomes, and only those that the installer itself needs
// are for the installation. What only fetches a package, or compares its file, gets nothing else but what it needs to reach
// the network.
func (i *Installer) variables(argv []string) map[string]string {
	env := map[string]string{}
	if argv[0] == "sh" || slices.Equal(argv[:min(len(argv), 3)], []string{"python3", "-m", "venv"}) {
		return env // an installer is not running yet, and could be another program than it seems with some variables
	}
	fetches := argv[0] == "git" || slices.Contains(argv, "--require-hashes") || slices.Equal(argv[:min(len(argv), 2)],
		[]string{"npm", "pack"})
	for name, value := range i.env {
		own := slices.ContainsFunc(installerVariables[argv[0]], func(prefix string) bool {
			return strings.HasPrefix(strings.ToUpper(name), prefix)
		})
		given, ok := i.request.Env[name]
		literal := ok && given == value // without a reference to a secret
		if own || literal && (!fetches || isOfNetwork(name)) {
			env[name] = value
		}
	}
	return env
}

// withheld returns the names of the variables of the server that a command of an installation does not get.
func (i *Installer) withheld(argv []string) (names []string) {
	given := i.variables(argv)
	for _, name := range slices.Sorted(maps.Keys(i.env)) {
		if _, ok := given[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// refused returns the hosts that the sandbox was refused lately, and why.
func (i *Installer) refused() (all []string) {
	for _, r := range i.lease.Refusals() {
		all = append(all, fault.Printable(r.Host, 260)+": "+fault.Printable(r.Reason, 300))
	}
	return all
}

// failed returns the fault of a command that ended with a failure.
func (i *Installer) failed(result *agent.ExecResult, argv, withheld, refused []string) error {
	how := fmt.Sprintf("ended with exit code %d", result.ExitCode)
	if result.TimedOut {
		how = fmt.Sprintf("took longer than %s (mcp_install_timeout); what is there is kept, and a second try goes on "+
			"from it", i.limit)
	}
	if result.KilledBy != "" {
		how = "was ended, as the sandbox reached its limit of " + result.KilledBy
	}
	ended, why := displayCommand(argv)+" "+how, ""
	if result.ExitCode != 0 && !result.TimedOut && result.KilledBy == "" {
		why = fault.Telling(cmp.Or(strings.TrimSpace(string(result.Stderr.Head)+string(result.Stderr.Tail)),
			string(result.Stdout.Head)+string(result.Stdout.Tail)))
	}
	f := fault.New(fault.CommandExecution, "the installation of %q failed: ", i.request.Spec).
		With("exit_code", result.ExitCode).With("command", displayCommand(argv)).With("log", i.Log())
	switch { // the first cause first
	case len(refused) > 0:
		f.Message += "Network access was refused: " + strings.Join(refused, "; ") +
			". The operator of this server can allow it: network.allow in sandlot.yaml. "
		f = f.With("network_refused", refused)
	case why != "":
		f.Message += spec.SafeText(why, 300) + ". "
	}
	f.Message += ended
	if len(withheld) > 0 {
		f.Message += ". The command did not get these variables, which are for the server: " +
			strings.Join(withheld[:min(len(withheld), 20)], ", ")
		f = f.With("variables_withheld", withheld)
	}
	return f
}

// reportOutput reports the last line of new output, at most once a second.
func (i *Installer) reportOutput(output []byte) error {
	if time.Since(i.lastReport) > time.Second {
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		i.report(spec.SafeText(lines[len(lines)-1], 300))
	}
	return nil
}

func (i *Installer) report(line string) {
	if i.request.Progress != nil && line != "" {
		i.lastReport = time.Now()
		i.request.Progress(line)
	}
}

// displayCommand returns a command for a log or a message.
func displayCommand(argv []string) string {
	short := make([]string, len(argv))
	for i, a := range argv {
		short[i] = spec.SafeText(a, 500)
	}
	return spec.CommandLine(short)
}
