// Package cli has the commands of the program sandlot.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/app"
	"sandlot/internal/cli/connection"
	"sandlot/internal/cli/image"
	"sandlot/internal/cli/install"
	"sandlot/internal/cli/plain"
	"sandlot/internal/cli/service"
	"sandlot/internal/cli/upgrade"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// exit ends the program with a code and no message.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// program has the streams and the global flags of all commands.
type program struct {
	in       io.Reader
	out, err io.Writer

	configFile string
	stateDir   string
	server     string
	asJSON     bool
}

// Main runs the program and returns its exit code: 0, 1 for an error, 2 for bad
// usage, or the code of the command that ran in a sandbox.
func Main(args []string, in io.Reader, out, errw io.Writer) int {
	p := &program{in: in, out: out, err: errw}
	root := p.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	defer context.AfterFunc(ctx, endAtNextInterrupt)()
	err := root.ExecuteContext(ctx)
	var code exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(errw, "sandlot:", err)
	var f *fault.Error
	if errors.As(err, &f) && f.Unwrap() != nil && f.Kind != fault.Configuration {
		fmt.Fprintln(errw, "  cause:", f.Unwrap())
	}
	if p, ok := errors.AsType[*protocol.Problem](err); ok {
		if log, _ := p.Context["log"].(string); log != "" {
			fmt.Fprintln(errw, "  it printed:\n    "+strings.ReplaceAll(plain.Text(log), "\n", "\n    "))
		}
	}
	var u usage
	if errors.As(err, &u) || strings.HasPrefix(err.Error(), "unknown command") {
		return 2
	}
	return 1
}

// endAtNextInterrupt ends the program when its user presses Ctrl-C again while it ends by itself. What is left then is
// what kill -9 leaves.
func endAtNextInterrupt() {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt)
	<-again
	os.Exit(128 + int(syscall.SIGINT))
}

// usage marks an error of how the program was called.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sandlot",
		Short: "A safe computer for every AI agent, over MCP",
		Long: `Sandlot runs code, commands and files of AI agents in isolated sandboxes, over MCP.

Start the server with "sandlot serve" and connect a client to http://localhost:8000/mcp,
or let the client start "sandlot stdio".`,
		SilenceUsage: true, SilenceErrors: true,
		RunE: p.begin,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w; see `%s --help`", err, c.CommandPath())}
	})
	f := root.PersistentFlags()
	f.StringVar(&p.configFile, "config", "",
		"settings file, or its folder (default: the variable SANDLOT_CONFIG, or sandlot.yaml in the state folder)")
	f.StringVar(&p.stateDir, "state-dir", "", "folder with the server's state (default "+config.StateDir()+")")
	f.StringVar(&p.server, "server", os.Getenv("SANDLOT_SERVER"),
		"URL of a server (default: the server of the state folder); the token is read from SANDLOT_TOKEN, and the "+
			"name of a service's user from SANDLOT_USER")
	root.AddCommand(p.serve(), p.ps(), p.stop(), p.stdio(), p.run(), p.exec(), p.shell(), p.sessions(), p.copyFile(),
		p.forward(), p.ports(), p.network(), p.events(), p.replicas(), p.mcp(), p.secret(), p.policy(), p.questions(),
		snapshotCommand(p.client, p.out), quotaCommand(p.connect, p.out), usageCommand(p.connect, p.out),
		image.Command(p.images, p.out, p.err),
		templateCommand(p.connectOperator, p.out),
		p.install(), p.uninstall(), p.service(), p.console(), p.ui(),
		p.doctor(), p.settings(), p.token(), p.backup(), p.restore(),
		p.upgrade(), p.version())
	names := []string{}
	for _, c := range root.Commands() {
		refuseUnknown(c)
		explainArgs(c)
		names = append(names, c.Name())
	}
	root.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return usage{fmt.Errorf("unknown command %q%s; see `sandlot --help`", args[0], fault.DidYouMean(args[0], names))}
	}
	return root
}

func (p *program) mcp() *cobra.Command {
	return connection.Command(connection.Program{In: p.in, Out: p.out, Err: p.err, Connect: p.connect,
		IsInteractive: p.isInteractive, Confirm: p.confirm,
		Hidden: p.readHidden, Ask: p.askLine,
		Usage: func(err error) error { return usage{err} }, Failed: exit(1)})
}

func (p *program) service() *cobra.Command {
	return service.Command(service.Program{Out: p.out, Err: p.err, Log: p.errorLog, Load: p.load,
		ServerFlags: serverFlags, Settings: serverSettings, LocalURL: install.LocalURL,
		Confirm: p.confirm, Failed: exit(1)})
}

func (p *program) upgrade() *cobra.Command {
	return upgrade.Command(upgrade.Program{Out: p.out, Confirm: p.confirm, Client: p.operator,
		Flags: func() ([]string, error) {
			cfg, err := p.load(nil)
			if err != nil {
				return nil, err
			}
			return install.ClientFlags(cfg), nil
		}})
}

func (p *program) install() *cobra.Command { return install.Command(p.installer(), p.withJSON) }

func (p *program) uninstall() *cobra.Command {
	return install.Uninstall(p.installer(), func(c *cobra.Command, run func(*cobra.Command, []string) error) *cobra.Command {
		c.RunE = run
		return c
	})
}

func (p *program) installer() install.Program {
	return install.Program{Out: p.out, Err: p.err, Server: func() string { return p.server },
		IsJSON: func() bool { return p.asJSON }, JSON: p.json, Load: p.load, Client: p.client, Confirm: p.confirm,
		ErrorLog: p.errorLog, Tokens: p.tokens, Usage: func(err error) error { return usage{err} }}
}

// explainArgs adds the usage of a command to the error for too few or too many arguments,
// for the command and its subcommands.
func explainArgs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		explainArgs(sub)
	}
	args := c.Args
	if args == nil {
		return
	}
	c.Args = func(c *cobra.Command, a []string) error {
		if err := args(c, a); err != nil {
			return usage{fmt.Errorf("%s; it is `%s`, see `%s --help`", argumentsFault(err, a), c.UseLine(), c.CommandPath())}
		}
		return nil
	}
}

// argumentsFault says what is wrong with the number of arguments, in other words than Cobra: "requires at least 1 arg(s),
// only received 0".
func argumentsFault(err error, args []string) string {
	text, few, many := err.Error(), "an argument is missing", "too many arguments"
	var want, got int
	if n, _ := fmt.Sscanf(text, "requires at least %d arg(s), only received %d", &want, &got); n == 2 {
		return few
	}
	if n, _ := fmt.Sscanf(text, "accepts at most %d arg(s), received %d", &want, &got); n == 2 {
		return many
	}
	if n, _ := fmt.Sscanf(text, "accepts %d arg(s), received %d", &want, &got); n == 2 {
		if got < want {
			return few
		}
		return many
	}
	if strings.HasPrefix(text, "unknown command") && len(args) > 0 { // it takes none
		return fmt.Sprintf("it does not take the argument %q", args[0])
	}
	return text
}

// alsoList lets a command that lists something be called as its subcommand "list" too, as those are that do more.
func alsoList(list *cobra.Command) {
	sub := &cobra.Command{Use: "list", Short: list.Short, Args: cobra.NoArgs, Hidden: true, RunE: list.RunE}
	sub.Flags().AddFlagSet(list.LocalNonPersistentFlags())
	list.AddCommand(sub)
}

// refuseUnknown makes a command with subcommands refuse an unknown subcommand.
func refuseUnknown(c *cobra.Command) {
	if !c.HasSubCommands() {
		return
	}
	names := []string{}
	for _, sub := range c.Commands() {
		refuseUnknown(sub)
		if !sub.Hidden {
			names = append(names, sub.Name())
		}
	}
	if c.Runnable() && c.Args != nil && c.Args(c, []string{""}) == nil {
		return // the first argument may be the argument of c itself
	}
	run := c.RunE
	if run == nil {
		run = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return run(c, args)
		}
		hint := cmp.Or(fault.DidYouMean(args[0], names), "; its commands are "+strings.Join(names, ", "))
		return usage{fmt.Errorf("unknown command %q for %q%s; see `%[2]s --help`", args[0], c.CommandPath(), hint)}
	}
}

// load reads the settings. flags has values by setting, from the flags of the command.
func (p *program) load(flags map[string]string) (*config.Config, error) {
	if flags == nil {
		flags = map[string]string{}
	}
	if _, set := flags["state_dir"]; p.stateDir != "" && !set {
		flags["state_dir"] = p.stateDir
	}
	return app.Load(config.Source{File: p.configFile, Env: config.Environ(), Flags: flags})
}

// client returns a client of the server that the flags name. The server may not run.
func (p *program) client() (*client.Client, error) {
	c, err := p.clientAs(secret.Value(os.Getenv("SANDLOT_TOKEN")))
	if err == nil {
		c.ActFor(os.Getenv("SANDLOT_USER"))
	}
	return c, err
}

// operator returns a client for the operations of operators: over the socket it acts as
// the owner, without the token in SANDLOT_TOKEN, which is for the user's own calls.
func (p *program) operator() (*client.Client, error) {
	if p.server == "" {
		return p.clientAs("")
	}
	return p.client()
}

// connectOperator is connect for the operations of operators.
func (p *program) connectOperator(ctx context.Context) (*client.Client, func() error, error) {
	_, done, err := p.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := p.operator()
	if err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return c, done, nil
}

func (p *program) clientAs(token secret.Value) (*client.Client, error) {
	socket := ""
	if p.server == "" {
		c, err := p.load(nil)
		if err != nil {
			return nil, err
		}
		socket = app.SocketPath(c.Server.StateDir)
	}
	return client.New(socket, p.server, token)
}

func (p *program) json(v any) error {
	enc := json.NewEncoder(p.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// line prints v as JSON on one line.
func (p *program) line(v any) error {
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// withJSON gives a command the flag --json and the function to run, which must respect p.asJSON.
func (p *program) withJSON(c *cobra.Command, run func(*cobra.Command, []string) error) *cobra.Command {
	c.RunE = run
	c.Flags().BoolVar(&p.asJSON, "json", false, "print JSON")
	return c
}

// sayIfNone says on standard error that a list is empty: on a terminal, nothing at all would look as if nothing was done.
func (p *program) sayIfNone(n int, text string) {
	if n == 0 {
		fmt.Fprintln(p.err, text)
	}
}

func (p *program) version() *cobra.Command {
	c := &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs}
	return p.withJSON(c, func(*cobra.Command, []string) error {
		if p.asJSON {
			return p.json(struct {
				Version string `json:"version"`
			}{app.Version})
		}
		_, err := fmt.Fprintln(p.out, "sandlot", app.Version)
		return err
	})
}
