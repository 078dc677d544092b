// Package install has the command that adds Sandlot to the settings of an MCP client.
package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/app"
	"sandlot/internal/auth"
	"sandlot/internal/clientconfig"
	"sandlot/internal/config"
	"sandlot/internal/platform"
	"sandlot/internal/sandbox"
	"sandlot/internal/toolview"
	"sandlot/internal/wsl"
)

// Program is what the command needs of the program.
type Program struct {
	Out, Err io.Writer
	Server   func() string // of the flag --server
	IsJSON   func() bool
	JSON     func(any) error
	Load     func(map[string]string) (*config.Config, error)
	Client   func() (*client.Client, error)
	Confirm  func(ctx context.Context, question string) error
	ErrorLog func() *slog.Logger
	// Tokens calls a function with the database of the state folder.
	Tokens func(context.Context, func(app.Database) error) error
	Usage  func(error) error // marks an error of how the program was called
}

type program struct {
	Program
	system string // as in runtime.GOOS
}

// wslSettings is where a distribution of WSL has its settings. Tests have others.
var wslSettings = "/etc/wsl.conf"

// installFlags has the flags of `sandlot install`.
type installFlags struct {
	server            clientconfig.Server
	file              string
	list, yes, dryRun bool
	check             bool
	tools             string // what the client is shown of third-party tools; empty: the server's settings decide
	results           string // in which form it gets results; empty: what is known of the client decides
	stdio             bool   // the client starts the program, though a server runs
	wsl               string // a distribution of WSL whose Sandlot a client of Windows starts; ownWSL: the default one
	windows           bool   // the client is Windows's, and this program runs in WSL
	here              string // the distribution of WSL in which this program runs; empty: none
}

// ownWSL stands for WSL's default distribution.
const ownWSL = "default"

// Command returns `sandlot install`. With gives it the flag --json and the function to run.
func Command(env Program,
	with func(*cobra.Command, func(*cobra.Command, []string) error) *cobra.Command) *cobra.Command {
	return (&program{env, platform.System}).command(with)
}

func (p *program) command(with func(*cobra.Command, func(*cobra.Command, []string) error) *cobra.Command,
) *cobra.Command {
	var f installFlags
	c := &cobra.Command{
		Use: "install CLIENT", Short: "Add Sandlot to the settings of an MCP client", Args: cobra.MaximumNArgs(1),
		ValidArgs: clientconfig.IDs(),
		Long: `Add Sandlot to the settings file of an MCP client on this machine. CLIENT is one of
` + strings.Join(clientconfig.IDs(), ", ") + `.

The command shows the change and asks before it writes. The rest of the file stays as it is, and a
backup is kept beside it. Running the command again changes nothing.
"sandlot uninstall CLIENT" takes the server out again; --check asks the client about it, where the
client has a command for that, and calls a tool as the client would.

If the server runs, the client connects to its URL. If not, the client starts "sandlot stdio", which
makes all that it needs, and uses the server as soon as one runs. Claude Desktop can do nothing else.

On Windows, --wsl makes a client start the Sandlot of a distribution of WSL, which needs no Docker. In
such a distribution, --windows writes the settings of Windows's client; without it, it does so if only
Windows has the client.

--token writes the token itself into the file. --token-env writes only the name of a variable, and
the client inserts its value.`,
		Example: "  sandlot install --list\n  sandlot install cursor\n  sandlot install vscode --dry-run\n  sandlot install codex --check\n  sandlot " +
			"install claude-code --token \"$(sandlot token create --user alice)\" --yes\n  sandlot install crush " +
			"--url https://sandlot.example.com/mcp --token-env SANDLOT_TOKEN",
	}
	p.placeFlags(c, &f)
	flags := c.Flags()
	flags.StringVar(&f.server.URL, "url", "",
		"MCP address (default: the address of --server, or the local address in the settings)")
	flags.StringVar(&f.server.Token, "token", "", "token that the client sends")
	flags.StringVar(&f.server.TokenEnv, "token-env", "", "environment variable from which the client reads the token")
	flags.StringVar(&f.tools, "tools", "", "third-party tools that the client is shown: all, search, code or auto "+
		"(default: the server's setting tools)")
	flags.StringVar(&f.results, "results", "", "form of results: text, data or both (default: what fits the client)")
	flags.BoolVar(&f.stdio, "stdio", false, "let the client start Sandlot, though a server runs")
	flags.StringVar(&f.wsl, "wsl", "", "distribution of WSL whose Sandlot the client starts (alone: the default one)")
	flags.Lookup("wsl").NoOptDefVal = ownWSL
	flags.BoolVar(&f.check, "check", false, "change nothing: ask the client about the server, and call a tool as it would")
	flags.BoolVar(&f.list, "list", false, "list the clients and their files")
	return with(c, func(c *cobra.Command, args []string) error {
		if f.list {
			return p.clients(f.server.Name)
		}
		k, err := p.clientOf(args)
		if err != nil {
			return err
		}
		if f.check {
			f.here = wsl.Here(c.Context())
			return p.check(c.Context(), k, f)
		}
		return p.installInto(c.Context(), k, f)
	})
}

// clients prints the clients, their settings files, and which of them have the server.
func (p *program) clients(name string) error {
	type row struct {
		Client    string `json:"client"`
		Title     string `json:"name"`
		File      string `json:"file"`
		Exists    bool   `json:"exists"`
		Installed bool   `json:"installed"`
	}
	var rows []row
	home, _ := os.UserHomeDir()
	for _, k := range clientconfig.All() {
		file, err := k.File(p.system, home, os.Getenv)
		if err != nil {
			return err
		}
		file = present(k, file)
		text, err := os.ReadFile(file)
		rows = append(rows, row{k.ID, k.Title, file, err == nil, k.Has(text, name)})
	}
	if p.IsJSON() {
		return p.JSON(rows)
	}
	for _, r := range rows {
		state := "no file"
		if r.Exists {
			state = "not there"
		}
		if r.Installed {
			state = "installed"
		}
		fmt.Fprintf(p.Out, "%-15s %-15s %-10s %s\n", r.Client, r.Title, state, r.File)
	}
	return nil
}

func (p *program) installInto(ctx context.Context, k clientconfig.Client, f installFlags) error {
	s := f.server
	mode, err := toolview.Parse(f.tools)
	if err != nil {
		return p.Usage(fmt.Errorf("--tools %w", err))
	}
	form, err := toolview.ParseResults(f.results)
	if err != nil {
		return p.Usage(fmt.Errorf("--results %w", err))
	}
	f.here = wsl.Here(ctx)
	file, err := p.fileOf(ctx, k, &f)
	if err != nil {
		return err
	}
	isLocal, err := p.setAddress(ctx, k, f, &s)
	if err != nil {
		return err
	}
	if err := k.Check(&s); err != nil {
		return p.Usage(err)
	}
	if s.URL != "" && !k.StdioOnly() { // the program that such a client starts has flags for it
		if s.URL, err = withAsked(s.URL, string(mode), string(form)); err != nil {
			return p.Usage(err)
		}
	}
	change, err := k.Plan(file, s)
	if err != nil {
		return err
	}
	if change.Unchanged() {
		fmt.Fprintf(p.Out, "%s has it already: nothing to do.\n", change.Path)
		return nil
	}
	fmt.Fprint(p.Out, change.Diff())
	if _, err := os.Stat(filepath.Dir(change.Path)); err != nil {
		fmt.Fprintf(p.Err, "note: there is no %s: is %s installed for this user?\n", filepath.Dir(change.Path), k.Title)
	}
	if err := p.write(ctx, change, f, k.Next); err != nil {
		return err
	}
	if isLocal && !f.dryRun {
		p.adviseRuntime(ctx)
	}
	return nil
}

// adviseRuntime says what is missing on this machine for sandboxes, if that is a Docker daemon.
func (p *program) adviseRuntime(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cfg, err := p.Load(nil)
	if err != nil || cfg.Runtime.Name != "docker" {
		return
	}
	try := app.Candidate{Name: "docker", Runtime: cfg.Docker.Runtime}
	if _, err := try.Try(ctx, cfg, p.ErrorLog()); errors.Is(err, sandbox.ErrUnavailable) {
		fmt.Fprintf(p.Err, "note: no sandboxes can be made yet: %s\n", sandbox.Advice(err))
	}
}

// fileOf returns the client's settings file: the one that is named, or that of its usual place, of Windows if this
// program runs in WSL and only Windows has the client.
func (p *program) fileOf(ctx context.Context, k clientconfig.Client, f *installFlags) (string, error) {
	home, _ := os.UserHomeDir()
	file, err := k.File(p.system, home, os.Getenv)
	file = present(k, file)
	if f.file != "" {
		file, err = f.file, nil
	}
	_, missing := os.Stat(filepath.Dir(file))
	isSure := f.windows && f.file == ""
	if f.here == "" || !isSure && (f.file != "" || err != nil || missing == nil) {
		if f.windows && f.here == "" {
			return "", p.Usage(errors.New("--windows is for a Sandlot that runs in WSL, and neither WSL_DISTRO_NAME " +
				"nor `wslpath -w /` says in which distribution. In WSL, run this in a terminal of the distribution; " +
				"if you need sudo, as `sudo --preserve-env=WSL_DISTRO_NAME,WSL_INTEROP`. On Windows itself, leave " +
				"--windows out"))
		}
		return file, err
	}
	settings, _ := os.ReadFile(wslSettings)
	theirs, windowsErr := windowsFile(ctx, k, wsl.Root(string(settings)))
	_, missing = os.Stat(filepath.Dir(theirs))
	switch {
	case isSure:
		return theirs, windowsErr
	case windowsErr != nil || missing != nil:
		return file, err
	}
	f.windows = true
	fmt.Fprintf(p.Err, "note: this machine's Windows has %s, and the distribution %s has not; this is for Windows's\n",
		k.Title, f.here)
	return theirs, nil
}

// windowsFile returns where a distribution of WSL has the settings file of Windows's client.
func windowsFile(ctx context.Context, k clientconfig.Client, root string) (string, error) {
	w, err := wsl.Find(ctx, root)
	if err != nil {
		return "", err
	}
	file, err := k.File("windows", "", w.Getenv)
	if err != nil {
		return "", err
	}
	file, err = w.Path(file)
	return present(k, file), err
}

// setAddress sets how the client reaches the server that the flags name: by URL, or by `sandlot stdio`. It reports
// whether the latter makes sandboxes on this machine.
func (p *program) setAddress(ctx context.Context, k clientconfig.Client, f installFlags, s *clientconfig.Server) (
	isLocal bool, err error) {
	cfg, err := p.Load(nil)
	if err != nil {
		return false, err
	}
	if s.URL == "" {
		s.URL = p.Server()
	}
	if f.wsl != "" {
		return false, p.setDistribution(ctx, f, s)
	}
	if s.Program, err = os.Executable(); err != nil {
		return false, err
	}
	s.Args = f.stdioArguments()
	hasToken := s.Token != "" || s.TokenEnv != ""
	starts := k.StdioOnly() || f.stdio || f.windows
	if f.windows && s.URL != "" {
		return false, p.Usage(errors.New("--windows starts the Sandlot of this distribution; for a server elsewhere, " +
			"leave --url and SANDLOT_SERVER out, or install Sandlot in Windows and run this there"))
	}
	if s.URL == "" && (starts || !hasToken && p.address(ctx) == "") {
		if hasToken {
			return false, p.Usage(fmt.Errorf("%s starts `sandlot stdio`, which needs no token on this machine; give "+
				"--url too for a server elsewhere", k.Title))
		}
		s.Args = append(s.Args, ClientFlags(cfg)...)
		place, _, _ := cfg.Source.SettingsFile()
		if abs, err := filepath.Abs(place); err == nil && exists(abs) {
			fmt.Fprintf(p.Err, "note: wherever it is started, its settings are those of %s\n", abs)
		}
		if f.windows {
			s.Args = wsl.Arguments(f.here, os.Getenv("USER"), append([]string{s.Program}, s.Args...)...)
			s.Program = wsl.Program
		}
		return true, nil
	}
	if s.URL == "" {
		s.URL = cmp.Or(p.address(ctx), LocalURL(cfg))
		if !hasToken && p.asksForToken(ctx, cfg) {
			fmt.Fprintln(p.Err, "note: this server asks for a token, and none is given: make one with `sandlot token "+
				"create --user NAME`, and give it with --token")
		}
	}
	if u, err := url.Parse(s.URL); err == nil && (u.Path == "" || u.Path == "/") {
		u.Path = "/mcp"
		s.URL = u.String()
	}
	return false, nil
}

// stdioArguments make Sandlot's program speak MCP on its standard streams.
func (f *installFlags) stdioArguments() []string {
	arguments := []string{"stdio"}
	if f.tools != "" {
		arguments = append(arguments, "--tools", f.tools)
	}
	if f.results != "" {
		arguments = append(arguments, "--results", f.results)
	}
	return arguments
}

// setDistribution makes the client start the Sandlot of a distribution of WSL.
func (p *program) setDistribution(ctx context.Context, f installFlags, s *clientconfig.Server) error {
	if s.URL != "" || s.Token != "" || s.TokenEnv != "" {
		return p.Usage(errors.New("--wsl starts Sandlot in WSL, and needs no URL and no token; leave them out"))
	}
	name := f.wsl
	if name == ownWSL {
		name = ""
	}
	found, err := wsl.Locate(ctx, name)
	if err != nil {
		return err
	}
	command := append([]string{found.Sandlot}, f.stdioArguments()...)
	s.Program, s.Args = wsl.Program, wsl.Arguments(found.Name, "", command...)
	return nil
}

// address returns the MCP address of the server of the state folder, whatever its port is; empty: it does not run, or
// takes connections of this machine's owner alone.
func (p *program) address(ctx context.Context) string {
	c, err := p.Client()
	if err != nil || p.Server() != "" || !c.Alive(ctx) {
		return ""
	}
	return c.Address(ctx)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ClientFlags returns the flags with which a program that the client starts, in another folder
// and environment, uses the same settings file and state folder.
func ClientFlags(cfg *config.Config) []string {
	var args []string
	if place, named, needed := cfg.Source.SettingsFile(); named {
		if abs, err := filepath.Abs(place); err == nil && needed {
			args = append(args, "--config", abs)
		} else if err == nil {
			args = append(args, "--config", filepath.Dir(abs)+"/")
		}
	}
	if cfg.Origin["state_dir"] != "default" {
		args = append(args, "--state-dir", cfg.Server.StateDir)
	}
	return args
}

// LocalURL returns the MCP address of a server with these settings on its own machine. It is
// not public_url, which may lead through a proxy on another machine.
func LocalURL(cfg *config.Config) string {
	host := cfg.Server.Host
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return cfg.Server.LocalURL(host) + "/mcp"
}

// asksForToken reports whether a server with these settings requires a token.
func (p *program) asksForToken(ctx context.Context, cfg *config.Config) bool {
	if len(cfg.Server.OIDC) > 0 && auth.Mode(cfg.Server.Auth) != auth.Off {
		return true
	}
	_, err := os.Stat(filepath.Join(cfg.Server.StateDir, "sandlot.db"))
	if cfg.Server.Store == "" && err != nil {
		return auth.Mode(cfg.Server.Auth) == auth.Required || !auth.Loopback(cfg.Server.Host)
	}
	asks := false
	err = p.Tokens(ctx, func(db app.Database) error {
		door, err := auth.NewAuthenticator(ctx, auth.Mode(cfg.Server.Auth), cfg.Server.Host, db, nil)
		if err == nil {
			asks, err = door.TokenRequired(ctx)
		}
		return err
	})
	return asks || err != nil
}

// withAsked returns an address with the view of tools that its list is to have, and the form of its results; empty
// ones change nothing.
func withAsked(address, mode, form string) (string, error) {
	if mode == "" && form == "" {
		return address, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	values := u.Query()
	for name, value := range map[string]string{"tools": mode, "results": form} {
		if value != "" {
			values.Set(name, value)
		}
	}
	u.RawQuery = values.Encode()
	return u.String(), nil
}
