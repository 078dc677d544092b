package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandlot/internal/auth"
	"sandlot/internal/clientconfig"
	"sandlot/internal/config"
	"sandlot/internal/store"
)

// installFlags has the flags of `sandlot install`.
type installFlags struct {
	server            clientconfig.Server
	file              string
	list, yes, dryRun bool
}

func (p *program) install() *cobra.Command {
	var f installFlags
	c := &cobra.Command{
		Use: "install CLIENT", Short: "Add Sandlot to the settings of an MCP client", Args: cobra.MaximumNArgs(1),
		ValidArgs: clientconfig.IDs(),
		Long: `Add Sandlot to the settings file of an MCP client on this machine. CLIENT is one of
` + strings.Join(clientconfig.IDs(), ", ") + `.

The command shows the change and asks before it writes. The rest of the file stays as it is, and a
backup is kept beside it. Running the command again changes nothing.

--token writes the token itself into the file. --token-env writes only the name of a variable, and
the client inserts its value.`,
		Example: "  sandlot install --list\n  sandlot install cursor\n  sandlot install vscode --dry-run\n  sandlot " +
			"install claude-code --token \"$(sandlot token create --user alice)\" --yes\n  sandlot install crush " +
			"--url https://sandlot.example.com/mcp --token-env SANDLOT_TOKEN",
	}
	flags := c.Flags()
	flags.StringVar(&f.server.Name, "name", "sandlot", "name of the server in the client")
	flags.StringVar(&f.server.URL, "url", "",
		"MCP address (default: the address of --server, or the local address in the settings)")
	flags.StringVar(&f.server.Token, "token", "", "token that the client sends")
	flags.StringVar(&f.server.TokenEnv, "token-env", "", "environment variable from which the client reads the token")
	flags.StringVar(&f.file, "file", "", "settings file of the client (default: its usual place; see --list)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show the change without writing it")
	flags.BoolVar(&f.yes, "yes", false, "write without asking")
	flags.BoolVar(&f.list, "list", false, "list the clients and their files")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		if f.list {
			return p.clients(f.server.Name)
		}
		if len(args) == 0 {
			return usage{fmt.Errorf("which client? One of %s; see `sandlot install --list`",
				strings.Join(clientconfig.IDs(), ", "))}
		}
		k, err := clientconfig.Find(args[0])
		if err != nil {
			return usage{err}
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
		file, err := k.File(runtime.GOOS, home, os.Getenv)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		rows = append(rows, row{k.ID, k.Title, file, err == nil, k.Has(text, name)})
	}
	if p.asJSON {
		return p.json(rows)
	}
	for _, r := range rows {
		state := "no file"
		if r.Exists {
			state = "not there"
		}
		if r.Installed {
			state = "installed"
		}
		fmt.Fprintf(p.out, "%-15s %-15s %-10s %s\n", r.Client, r.Title, state, r.File)
	}
	return nil
}

func (p *program) installInto(ctx context.Context, k clientconfig.Client, f installFlags) error {
	s := f.server
	if err := p.setAddress(ctx, k, &s); err != nil {
		return err
	}
	if err := k.Check(&s); err != nil {
		return usage{err}
	}
	file := f.file
	if file == "" {
		home, _ := os.UserHomeDir()
		var err error
		if file, err = k.File(runtime.GOOS, home, os.Getenv); err != nil {
			return err
		}
	}
	change, err := k.Plan(file, s)
	if err != nil {
		return err
	}
	if change.Unchanged() {
		fmt.Fprintf(p.out, "%s has it already: nothing to do.\n", change.Path)
		return nil
	}
	fmt.Fprint(p.out, change.Diff())
	if _, err := os.Stat(filepath.Dir(change.Path)); err != nil {
		fmt.Fprintf(p.err, "note: there is no %s: is %s installed for this user?\n", filepath.Dir(change.Path), k.Title)
	}
	if f.dryRun {
		return nil
	}
	if !f.yes {
		if err := p.confirm(ctx, "Write this to "+change.Path+"?"); err != nil {
			return err
		}
	}
	backup, err := change.Write(time.Now())
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "\n%s is written.", change.Path)
	if backup != "" {
		fmt.Fprintf(p.out, " As it was before: %s.", backup)
	}
	fmt.Fprintf(p.out, "\n%s\n", k.Next)
	return nil
}

// setAddress sets how the client reaches the server that the flags name: by URL, or by `sandlot stdio`.
func (p *program) setAddress(ctx context.Context, k clientconfig.Client, s *clientconfig.Server) error {
	cfg, err := p.load(nil)
	if err != nil {
		return err
	}
	if s.URL == "" {
		s.URL = p.server
	}
	if k.StdioOnly() {
		if s.Program, err = os.Executable(); err != nil {
			return err
		}
		s.Args = []string{"stdio"}
		if s.URL == "" {
			if s.Token != "" || s.TokenEnv != "" {
				return usage{fmt.Errorf("%s starts `sandlot stdio`, which needs no token on this machine; give --url "+
					"too for a server elsewhere", k.Title)}
			}
			s.Args = append(s.Args, clientFlags(cfg)...)
			place, _, _ := cfg.Source.SettingsFile()
			if abs, err := filepath.Abs(place); err == nil {
				fmt.Fprintf(p.err, "note: wherever it is started, its settings are those of %s\n", abs)
			}
			return nil
		}
	}
	if s.URL == "" {
		s.URL = localURL(cfg)
		if s.Token == "" && s.TokenEnv == "" && p.asksForToken(ctx, cfg) {
			fmt.Fprintln(p.err, "note: this server asks for a token, and none is given: make one with `sandlot token "+
				"create --user NAME`, and give it with --token")
		}
	}
	if u, err := url.Parse(s.URL); err == nil && (u.Path == "" || u.Path == "/") {
		u.Path = "/mcp"
		s.URL = u.String()
	}
	return nil
}

// clientFlags returns the flags with which a program that the client starts, in another folder
// and environment, uses the same settings file and state folder.
func clientFlags(cfg *config.Config) []string {
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

// localURL returns the MCP address of a server with these settings on its own machine. It is
// not public_url, which may lead through a proxy on another machine.
func localURL(cfg *config.Config) string {
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
	err = p.tokens(ctx, func(db *store.DB) error {
		door, err := auth.NewAuthenticator(ctx, auth.Mode(cfg.Server.Auth), cfg.Server.Host, db, nil)
		if err == nil {
			asks, err = door.TokenRequired(ctx)
		}
		return err
	})
	return asks || err != nil
}

// errNotConfirmed is the error of a command that the user did not confirm.
var errNotConfirmed = errors.New("nothing was written")

// confirm asks a question on the terminal; nil: the user answered yes.
func (p *program) confirm(ctx context.Context, question string) error {
	if !p.isInteractive() {
		return fmt.Errorf("%w: there is no terminal to ask on; look at what is shown above, and give --yes",
			errNotConfirmed)
	}
	fmt.Fprint(p.err, question, " [y/N] ")
	answers := make(chan string, 1)
	go func() { // ends with the program, since a read of a terminal cannot be interrupted
		line, _ := bufio.NewReader(p.in).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(p.err)
	}
	return errNotConfirmed
}

// isInteractive reports whether standard input is a terminal, on which the user can answer.
func (p *program) isInteractive() bool {
	in, ok := p.in.(*os.File)
	return ok && term.IsTerminal(int(in.Fd()))
}
