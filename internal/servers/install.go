package servers

import (
	"context"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/pool"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
)

// Order is what a principal wants to be installed and connected.
type Order struct {
	spec.Ask          // Name, Env, and Command and Args of the start, which may be left out
	Type, Spec string // npm, pip or git; what to install
	Workdir    string // beneath /workspace; empty: external-mcp/{name}
	// Progress is told what happens.
	Progress func(text string)
}

// Installed is what an installation printed.
type Installed struct {
	Info
	Commands []string // that were run, as they would be typed
	Log      string   // its end
	Took     time.Duration
}

// installTail is how much of an installation's output is kept, in bytes.
const installTail = 16 << 10

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

// check says what is wrong with an order, and where it goes.
func (o *Order) check() (folder string, err error) {
	wrong := func(argument, format string, args ...any) (string, error) {
		return "", fault.New(fault.InvalidParameters, format, args...).With("argument", argument)
	}
	if err := spec.CheckName(o.Name); err != nil {
		return "", err
	}
	o.Spec = strings.TrimSpace(o.Spec)
	switch {
	case o.Type != "npm" && o.Type != "pip" && o.Type != "git":
		return wrong("install", "install.type %q: must be npm, pip or git", spec.Clip(o.Type))
	case o.Spec == "" || len(o.Spec) > 500 || spec.HasControl(o.Spec):
		return wrong("install", "install.spec must name a package, or for git a URL, in at most 500 characters")
	case strings.HasPrefix(o.Spec, "-"):
		return wrong("install", "install.spec %q begins with a -, which would be an option", spec.Clip(o.Spec))
	}
	if o.Type == "git" {
		if u, err := url.Parse(o.Spec); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil {
			return wrong("install", "install.spec %q: git URLs begin with https:// and hold no password; a branch, tag or commit may follow after #", spec.Clip(o.Spec))
		} else if u.Fragment != "" && !refForm.MatchString(u.Fragment) {
			return wrong("install", "install.spec: %q is no name of a branch, tag or commit", spec.Clip(u.Fragment))
		}
	}
	start := o.Ask // what is wrong with it is said before anything is installed
	if start.Command == "" {
		start.Command = "the program that it brings"
	}
	if err := start.Check(); err != nil {
		return "", err
	}
	folder = path.Join(pool.WorkspaceDir, "external-mcp", slug(o.Name))
	if o.Workdir != "" {
		folder = path.Join(pool.WorkspaceDir, strings.TrimPrefix(o.Workdir, pool.WorkspaceDir))
		if folder == pool.WorkspaceDir || !strings.HasPrefix(folder, pool.WorkspaceDir+"/") || spec.HasControl(folder) {
			return wrong("workdir", "workdir %q: must be a folder beneath %s", spec.Clip(o.Workdir), pool.WorkspaceDir)
		}
	}
	return folder, nil
}

// change is what an order comes to.
func (o Order) change(folder string) spec.Change {
	a := o.Ask
	a.Kind, a.Cwd = spec.Stdio, folder
	a.Install = &spec.Install{Type: o.Type, Spec: o.Spec, Folder: folder}
	c := a.Change()
	c.Workdir = o.Workdir
	var commands [][]string
	switch o.Type {
	case "npm":
		commands = [][]string{npmInstall(folder, o.Spec)}
	case "pip":
		venv := path.Join(folder, "venv")
		commands = [][]string{makeVenv(venv), pipInstall(venv, o.Spec)}
	case "git":
		from, ref, _ := strings.Cut(o.Spec, "#")
		c.Cwd = path.Join(folder, "repo")
		commands = [][]string{clone(from, ref, c.Cwd)}
	}
	for _, argv := range commands {
		c.Commands = append(c.Commands, spec.Exactly(argv))
	}
	return c
}

// Install installs a server in its owner's home, and connects it. An
// installation that fails is a fault with its output; nothing is connected then.
func (b *Book) Install(ctx context.Context, p auth.Principal, o Order) (Installed, error) {
	folder, err := o.check()
	if err != nil {
		return Installed{}, err
	}
	if _, err := b.revealed(ctx, p.ID, o.Values()); err != nil { // before anything is installed
		return Installed{}, err
	}
	release, err := b.hold(p)
	if err != nil {
		return Installed{}, err
	}
	defer release()
	if err := b.free(p, o.Name); err != nil {
		return Installed{}, err
	}
	if err := b.agreed(ctx, b.named(p, o.Name), o.Consent, o.change(folder)); err != nil {
		return Installed{}, err
	}
	o.Consent = nil // to all that follows
	leave, err := b.installing(ctx, p, o.Name, folder)
	if err != nil {
		return Installed{}, err
	}
	defer leave()
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, b.InstallTimeout)
	defer cancel()
	l, err := b.Sessions.Open(limited, p, session.Ask{ID: "home"})
	if err != nil {
		return Installed{}, err
	}
	defer l.Release()
	w := &worker{lease: l, folder: folder, order: o, began: began, limit: b.InstallTimeout}
	found, err := w.install(limited)
	if err != nil {
		return Installed{Commands: w.commands, Log: w.log()}, err
	}
	a := o.Ask
	a.Cwd, a.Path = found.cwd, found.path
	a.Install = &spec.Install{Type: o.Type, Spec: o.Spec, Folder: folder, Version: found.version}
	if a.Command == "" {
		if a.Command, err = found.only(o); err != nil {
			return Installed{Commands: w.commands, Log: w.log()}, err
		}
	}
	if o.Progress != nil {
		o.Progress("Installed; starting " + strings.Join(append([]string{a.Command}, a.Args...), " "))
	}
	info, err := b.Connect(ctx, p, a)
	info.Install = a.Install // whatever was connected under that name meanwhile
	return Installed{Info: info, Commands: w.commands, Log: w.log(), Took: time.Since(began)}, err
}

// free says whether a principal may give a connection that name.
func (b *Book) free(p auth.Principal, name string) error {
	if err := b.configure(p); err != nil {
		return err
	}
	n := 0
	for _, s := range b.all(p.ID) {
		if s.name == name {
			if s.configured {
				return taken(name)
			}
			return nil
		}
		if !s.configured {
			n++
		}
	}
	return crowded(n)
}

// installing takes a folder for one installation, and shows that it is on its
// way. What is there of the same name, of another connection, is not taken.
func (b *Book) installing(ctx context.Context, p auth.Principal, name, folder string) (leave func(), err error) {
	for _, s := range b.all(p.ID) {
		s.mu.Lock()
		i := s.rec.Install
		s.mu.Unlock()
		if i != nil && i.Folder == folder && s.name != name {
			return nil, fault.New(fault.InvalidParameters, "the folder %s is that of %q; choose another name, or a workdir", folder, s.name).With("argument", "name")
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owner(p)
	if o.installs[folder] {
		return nil, fault.New(fault.InvalidParameters, "something is being installed into %s already; wait until that is done", folder).With("argument", "name")
	}
	if o.installs == nil {
		o.installs = map[string]bool{}
	}
	o.installs[folder] = true
	for _, s := range o.servers {
		if s.name == name {
			s.mu.Lock()
			s.installs = true
			s.mu.Unlock()
		}
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(o.installs, folder)
		for _, s := range o.servers {
			if s.name == name {
				s.mu.Lock()
				s.installs = false
				s.mu.Unlock()
			}
		}
	}, nil
}

// product is what an installation brought.
type product struct {
	cwd     string
	path    []string // folders with its programs
	bins    []string // its own programs' names
	version string
}

// only is the one program that it has.
func (f product) only(o Order) (string, error) {
	if len(f.bins) == 1 {
		return f.bins[0], nil
	}
	// One of the package's own name is the one that is meant.
	base := path.Base(o.Spec)
	for _, sep := range []string{"@", "=", "<", ">", "~", "!", "[", "#", " "} {
		if i := strings.Index(base, sep); i > 0 {
			base = base[:i]
		}
	}
	for _, bin := range f.bins {
		if bin == strings.TrimSuffix(base, ".git") {
			return bin, nil
		}
	}
	if len(f.bins) == 0 {
		return "", fault.New(fault.InvalidParameters, "it is installed in %s, but brings no program: say with start how its server starts", f.cwd).With("argument", "start")
	}
	return "", fault.New(fault.InvalidParameters, "it is installed in %s, and brings %d programs (%s): say with start which of them is the server", f.cwd, len(f.bins), strings.Join(f.bins[:min(len(f.bins), 20)], ", ")).
		With("argument", "start").With("programs", f.bins[:min(len(f.bins), 20)])
}

// worker runs one installation.
type worker struct {
	lease    *session.Lease
	folder   string
	order    Order
	began    time.Time
	limit    time.Duration
	commands []string
	output   logbook
	told     time.Time
}

func (w *worker) log() string {
	t, _ := w.output.tail(0)
	return t[max(0, len(t)-installTail):]
}

// run runs one program, with all arguments as they are.
func (w *worker) run(ctx context.Context, cwd string, show bool, argv ...string) (string, error) {
	if show {
		w.commands = append(w.commands, shown(argv))
		w.output.line("$ %s", shown(argv))
		w.say("Running " + shown(argv))
	}
	left := time.Until(w.began.Add(w.limit))
	var o agent.Observer
	if show {
		o.Output = w.passOn
	}
	d, err := w.lease.Agent().Exec(ctx, agent.Exec{
		Command: agent.Command{Args: argv, Dir: cwd, Env: map[string]string{"CI": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1",
			"GIT_TERMINAL_PROMPT": "0", "NO_COLOR": "1"}},
		Timeout: max(left, time.Second), Inline: agent.Inline{Head: 4 << 10, Tail: 64 << 10}}, o)
	if err != nil {
		return "", w.lease.Fault(ctx, err, fault.CommandExecution)
	}
	out := string(d.Stdout.Head) + string(d.Stdout.Tail)
	errs := string(d.Stderr.Head) + string(d.Stderr.Tail)
	if show {
		w.output.Write([]byte(out))
		w.output.Write([]byte(errs))
	}
	if d.ExitCode != 0 {
		return out, w.failed(d, argv)
	}
	return out, nil
}

func (w *worker) failed(d *agent.ExecResult, argv []string) error {
	how := fmt.Sprintf("ended with exit code %d", d.ExitCode)
	if d.TimedOut {
		how = fmt.Sprintf("took longer than %s (mcp_install_timeout); what is there is kept, and a second try goes on from it", w.limit)
	}
	if d.KilledBy != "" {
		how = "was ended, as the sandbox reached its limit of " + d.KilledBy
	}
	f := fault.New(fault.CommandExecution, "the installation of %q failed: %s %s", w.order.Spec, shown(argv), how).
		With("exit_code", d.ExitCode).With("command", shown(argv)).With("log", w.log())
	var refused []string
	for _, r := range w.lease.Refusals() {
		refused = append(refused, agent.Printable(r.Host, 260)+": "+agent.Printable(r.Reason, 300))
	}
	if len(refused) > 0 {
		f.Message += ". Network access was refused: " + strings.Join(refused, "; ") + ". The operator of this server can allow it: network.allow in sandlot.yaml"
		f = f.With("network_refused", refused)
	}
	return f
}

// passOn passes on what a command prints, now and then.
func (w *worker) passOn(output []byte) error {
	if time.Since(w.told) > time.Second {
		lines := strings.Split(strings.TrimSpace(string(output)), "\n")
		w.say(spec.Text(lines[len(lines)-1], 300))
	}
	return nil
}

func (w *worker) say(line string) {
	if w.order.Progress != nil && line != "" {
		w.told = time.Now()
		w.order.Progress(line)
	}
}

// shown is a command in a log or a message.
func shown(argv []string) string {
	short := make([]string, len(argv))
	for i, a := range argv {
		short[i] = spec.Text(a, 500)
	}
	return spec.CommandLine(short)
}
