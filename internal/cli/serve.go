package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/app"
	"sandlot/internal/cli/install"
	"sandlot/internal/config"
	"sandlot/internal/logfile"
	"sandlot/internal/tree"
)

// serverSettings has the settings that flags of serve override, by these flags.
var serverSettings = map[string]string{"host": "host", "port": "port", "enable-cors": "cors.enabled",
	"log-level": "log_level", "runtime": "runtime"}

// serverFlags adds the flags that override settings to serve, and returns a function that
// reads the given ones, by setting.
func serverFlags(c *cobra.Command) func() map[string]string {
	f := c.Flags()
	f.String("host", "", "address to listen on (default localhost)")
	f.String("port", "", "port to listen on (default 8000)")
	f.Bool("enable-cors", false, "send CORS headers")
	f.String("log-level", "", "DEBUG, INFO, WARNING or ERROR (default INFO)")
	f.String("runtime", "", "runtime that runs the sandboxes (default "+config.Default().Runtime.Name+")")
	return func() map[string]string {
		m := map[string]string{}
		for flag, key := range serverSettings {
			if f.Changed(flag) {
				m[key] = f.Lookup(flag).Value.String()
			}
		}
		return m
	}
}

func (p *program) serve() *cobra.Command {
	var jsonLog bool
	var logFile string
	c := &cobra.Command{
		Use: "serve", Short: "Start the server", Args: cobra.NoArgs,
		Example: "  sandlot serve\n  sandlot serve --port 9000 --log-level DEBUG\n  sandlot token create --user " +
			"alice && sandlot serve --host 0.0.0.0",
	}
	flags := serverFlags(c)
	c.Flags().BoolVar(&jsonLog, "log-json", false, "write the log as JSON")
	c.Flags().StringVar(&logFile, "log-file", "",
		"write the log to this file, and not to standard error; at 16 MiB it becomes FILE.1")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if logFile == "" {
			return p.runServe(c.Context(), flags(), p.err, jsonLog)
		}
		file, err := logfile.Open(logFile)
		if err != nil {
			return fmt.Errorf("the log cannot be written: %w", err)
		}
		err = p.runServe(c.Context(), flags(), file, jsonLog)
		if err != nil { // whoever reads the log does not see what this program prints
			app.Logger(file, "ERROR", jsonLog).Error("the server has ended", "error", err)
		}
		return errors.Join(err, file.Close())
	}
	return c
}

// runServe runs the server until ctx ends, with its log in to.
func (p *program) runServe(ctx context.Context, flags map[string]string, to io.Writer, jsonLog bool) error {
	cfg, err := p.load(flags)
	if err != nil {
		return err
	}
	log := app.Logger(to, cfg.Server.LogLevel, jsonLog)
	slog.SetDefault(log)
	for _, n := range cfg.Notes {
		log.Warn(n)
	}
	said := false
	return app.Serve(ctx, cfg, log, func(a *app.App, at net.Addr) {
		a.OfferCheckups(p.examine(flags, app.Logger(to, "ERROR", jsonLog)))
		if !said {
			fmt.Fprint(p.out, connectHelp(cfg, at.(*net.TCPAddr), a.NeedsToken(ctx)))
		}
		said = true
		log.Info("serving", "version", app.Version, "address", at.String(), "state", cfg.Server.StateDir,
			"runtime", cfg.Runtime.Name)
	})
}

// connectHelp returns the text that serve prints: how to connect a client. The address is
// public_url, or else the address that the server listens on.
func connectHelp(c *config.Config, at *net.TCPAddr, needsToken bool) string {
	host := c.Server.Host
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host, _ = os.Hostname()
	}
	server := c.Server
	server.Port = at.Port
	url, behind := server.LocalURL(host)+"/mcp", ""
	if c.Server.PublicURL != "" {
		url, behind = c.Server.PublicURL+"/mcp", fmt.Sprintf(" (public_url), and listens on %s", at)
	}
	self, err := os.Executable()
	if err != nil {
		self = "sandlot"
	}
	token, curl, claude, headers := "", "", "", ""
	if needsToken {
		token = "\n  Every client over HTTP needs a token, in the place of TOKEN below: sandlot token create --user " +
			"NAME"
		curl, claude = ` -H "Authorization: Bearer TOKEN"`, ` --header "Authorization: Bearer TOKEN"`
		headers = `, "headers": {"Authorization": "Bearer TOKEN"}`
	}
	state := ""
	for _, arg := range install.ClientFlags(c) {
		state += fmt.Sprintf(", %q", arg)
	}
	return fmt.Sprintf(`Sandlot %s is at %s%s%s

  curl            curl -X POST %s%s -H "Content-Type: application/json" -d '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"print(6*7)"}}}'
  Claude Code     claude mcp add --transport http sandlot %s%s
  Claude Desktop  claude_desktop_config.json: {"mcpServers": {"sandlot": {"command": %q, "args": ["stdio"%s]}}}
  Cursor          ~/.cursor/mcp.json:         {"mcpServers": {"sandlot": {"url": %q%s}}}
  VS Code         .vscode/mcp.json:           {"servers": {"sandlot": {"type": "http", "url": %q%s}}}

Stop it with Ctrl-C: %s
`, app.Version, url, behind, token, url, curl, url, claude, self, state, url, headers, url, headers,
		afterStop(c))
}

// afterStop says what becomes of sessions when the server is stopped, by the setting on_stop.
func afterStop(c *config.Config) string {
	const alone = "keep their files, and lose variables and processes"
	sleeps := slices.Contains(c.Runtime.Names, "gvisor") && c.Network.Mode != "open"
	switch s := c.Sessions; {
	case s.OnStop == config.StopKeep:
		return "sessions' sandboxes live on for the next start. To end them too: sandlot stop --sessions"
	case s.OnStop == config.StopEnd, !s.Hibernate.Enabled:
		return "sessions " + alone + "."
	case !sleeps:
		return "sessions cannot sleep here, so they " + alone + " (on_stop: keep lets them live on)."
	case len(c.Runtime.Names) > 1:
		return "sessions sleep, and go on at their next use; those on Docker cannot, and " + alone + "."
	}
	return "sessions sleep, and go on at their next use after the next start."
}

// connect returns a client of the server that the flags name. When they name none and the
// server of the state folder does not run, connect starts one, which runs until done is called.
func (p *program) connect(ctx context.Context) (c *client.Client, done func() error, err error) {
	c, err = p.client()
	if err != nil {
		return nil, nil, err
	}
	for range 50 {
		if p.server != "" || c.Alive(ctx) {
			return c, func() error { return nil }, nil
		}
		done, err = p.runServer(ctx, "", p.errorLog())
		if !errors.Is(err, app.ErrRunning) {
			return c, done, err
		}
		// Another process starts a server at this moment.
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return nil, nil, err
}

// runServer runs a server in this process, until done is called, that listens on its
// socket alone. A temporary folder is its state folder, and done empties it; with "" the
// state folder is that of the settings.
func (p *program) runServer(ctx context.Context, temporary string, log *slog.Logger) (done func() error, err error) {
	return p.runServerWith(ctx, nil, temporary, log)
}

// runServerWith is runServer with flags of serve.
func (p *program) runServerWith(ctx context.Context, flags map[string]string, temporary string,
	log *slog.Logger) (done func() error, err error) {
	flags = maps.Clone(flags)
	if temporary != "" {
		if flags == nil {
			flags = map[string]string{}
		}
		maps.Copy(flags, map[string]string{"state_dir": temporary, "pool_size": "0", "snapshots": "false", "auth": "off",
			"store": ""})
	}
	cfg, err := p.load(flags)
	if err != nil {
		return nil, err
	}
	cfg.Server.Host = "localhost"
	a, err := app.New(ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	owner, err := a.ListenOwner()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(run, nil, owner, app.Grace) }()
	return func() error {
		stop()
		err := <-ended
		if temporary != "" {
			return errors.Join(err, a.Destroy())
		}
		a.RestOwned()
		return errors.Join(err, a.Close())
	}, nil
}

const temporaryPrefix = "sandlot-fleeting-"

// sweepTemporary removes the folders and sandboxes of temporary servers that were killed.
func (p *program) sweepTemporary(ctx context.Context) {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	for _, dir := range dirs {
		if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
			continue
		}
		if _, own, err := app.ResolveStateFolder(dir); err != nil || !own {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
			continue // its server starts at this moment
		}
		if done, err := p.runServer(ctx, dir, p.errorLog()); err == nil && done() == nil {
			tree.Remove(ctx, dir) // after an error the next sweep tries again
		}
	}
}

// temporary starts a server with a state folder of its own and returns a client of it.
// done stops the server and removes its sandboxes and its folder.
func (p *program) temporary(ctx context.Context, log *slog.Logger) (*client.Client, func() error, error) {
	return p.temporaryWith(ctx, nil, log)
}

// temporaryWith is temporary with flags of serve.
func (p *program) temporaryWith(ctx context.Context, flags map[string]string,
	log *slog.Logger) (*client.Client, func() error, error) {
	p.sweepTemporary(ctx)
	dir, err := os.MkdirTemp("", temporaryPrefix)
	if err != nil {
		return nil, nil, err
	}
	done, err := p.runServerWith(ctx, flags, dir, log)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	client, err := client.New(app.SocketPath(dir), "", "")
	return client, func() error { return errors.Join(done(), tree.Remove(context.WithoutCancel(ctx), dir)) }, err
}

func (p *program) settings() *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Show the settings, their values and the source of each value", Args: cobra.NoArgs,
		Long: "Show the effective settings. A flag overrides a variable (SANDLOT_…, then the variables of other " +
			"systems), and a variable overrides sandlot.yaml.",
	}
	return p.withJSON(c, func(*cobra.Command, []string) error {
		cfg, err := p.load(nil)
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(cfg.Rows())
		}
		for _, r := range cfg.Rows() {
			fmt.Fprintf(p.out, "%-26s %-28s %s\n%26s # %s; %s\n", r.Key+":", strconv.Quote(r.Value), r.From, "",
				r.Help, r.Env)
		}
		for _, n := range cfg.Notes {
			fmt.Fprintln(p.out, "note:", n)
		}
		return nil
	})
}
