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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/auth"
	"sandlot/internal/clientconfig"
	"sandlot/internal/config"
	"sandlot/internal/store"
)

// installing is what `sandlot install` is told.
type installing struct {
	server           clientconfig.Server
	file             string
	list, sure, show bool
}

func (p *program) install() *cobra.Command {
	var f installing
	c := &cobra.Command{
		Use: "install CLIENT", Short: "Put Sandlot into the settings of an MCP client", Args: cobra.MaximumNArgs(1),
		ValidArgs: clientconfig.IDs(),
		Long: `Put Sandlot into the settings of an MCP client on this machine: ` + strings.Join(clientconfig.IDs(), ", ") + `.

What changes is shown, and asked for. All else in the client's file stays as it is, and a copy of
the file is kept beside it. A second time nothing happens.

A token that is given with --token is written into the file. With --token-env the file has the
name of a variable only, and the client puts its value in.`,
		Example: "  sandlot install --list\n  sandlot install cursor\n  sandlot install vscode --dry-run\n  sandlot " +
			"install claude-code --token \"$(sandlot token create --user alice)\" --yes\n  sandlot install crush " +
			"--url https://sandlot.example.com/mcp --token-env SANDLOT_TOKEN",
	}
	flags := c.Flags()
	flags.StringVar(&f.server.Name, "name", "sandlot", "what the server is called there")
	flags.StringVar(&f.server.URL, "url", "",
		"address of MCP (default: of --server, or where the settings have it listen on this machine)")
	flags.StringVar(&f.server.Token, "token", "", "token that the client is to send")
	flags.StringVar(&f.server.TokenEnv, "token-env", "", "variable of the client's environment that has the token")
	flags.StringVar(&f.file, "file", "", "settings file of the client (default: where the client has it; see --list)")
	flags.BoolVar(&f.show, "dry-run", false, "show what would change, and change nothing")
	flags.BoolVar(&f.sure, "yes", false, "do not ask")
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

// clients lists the clients, where their files are and whether one has the server.
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

func (p *program) installInto(ctx context.Context, k clientconfig.Client, f installing) error {
	s := f.server
	if err := p.aim(ctx, k, &s); err != nil {
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
	if f.show {
		return nil
	}
	if !f.sure {
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

// aim says how the client reaches the server that is meant.
func (p *program) aim(ctx context.Context, k clientconfig.Client, s *clientconfig.Server) error {
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
			s.Args = append(s.Args, local(cfg)...)
			place, _, _ := cfg.Source.SettingsFile()
			if abs, err := filepath.Abs(place); err == nil {
				fmt.Fprintf(p.err, "note: wherever it is started, its settings are those of %s\n", abs)
			}
			return nil
		}
	}
	if s.URL == "" {
		s.URL = address(cfg)
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

// local are the flags by which a program that somebody else starts finds the
// same settings and the same state.
func local(cfg *config.Config) []string {
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

// address is where a server with these settings has MCP on its own machine, where
// the client is too: public_url may lead through a proxy that is elsewhere.
func address(cfg *config.Config) string {
	host := cfg.Server.Host
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(cfg.Server.Port)) + "/mcp"
}

// asksForToken says whether a server with these settings would.
func (p *program) asksForToken(ctx context.Context, cfg *config.Config) bool {
	if _, err := os.Stat(filepath.Join(cfg.Server.StateDir, "sandlot.db")); err != nil {
		return auth.Mode(cfg.Server.Auth) == auth.Required || !auth.Loopback(cfg.Server.Host)
	}
	asks := false
	err := p.tokens(ctx, func(db *store.DB) error {
		door, err := auth.NewAuthenticator(ctx, auth.Mode(cfg.Server.Auth), cfg.Server.Host, db)
		if err == nil {
			asks, err = door.TokenRequired(ctx)
		}
		return err
	})
	return asks || err != nil
}

// errUnsaid ends a command that was not confirmed.
var errUnsaid = errors.New("nothing was written")

// confirm asks on the terminal.
func (p *program) confirm(ctx context.Context, question string) error {
	if !p.onTerminal() {
		return fmt.Errorf("%w: there is no terminal to ask on; look at what is shown above, and give --yes", errUnsaid)
	}
	fmt.Fprint(p.err, question, " [y/N] ")
	said := make(chan string, 1)
	go func() { // it ends with the program
		line, _ := bufio.NewReader(p.in).ReadString('\n')
		said <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-said:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(p.err)
	}
	return errUnsaid
}
