// Package service has the commands of `sandlot service`: the server as a service of the user's own system.
package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/app"
	"sandlot/internal/autostart"
	"sandlot/internal/config"
)

// Command returns the command `sandlot service`.
func Command(p Program) *cobra.Command { return command(&commands{p, System}) }

func command(p *commands) *cobra.Command {
	c := &cobra.Command{
		Use: "service", Short: "Run the server as a service of your own, from log-in on",
		Long: `Run the server as a service of your own: your system starts it when you log in, and again after a
crash. It is a user unit of systemd on Linux, or an agent of launchd on macOS, and runs as you, with your
files. A server for several people is better a service of the system, with a user of its own:
docs/guide/deploy.md.`,
		Example: "  sandlot service install --port 9000\n  sandlot service status\n  sandlot service logs --follow\n" +
			"  sandlot service remove",
	}
	c.AddCommand(p.installCommand(), p.removeCommand(), p.statusCommand(), p.logsCommand(),
		p.simple("start", "Start the server", autostart.System.Start, true),
		p.simple("stop", "Stop the server until the next log-in; sessions sleep", autostart.System.Stop, false),
		p.simple("restart", "Stop the server, and start it with changed settings", restart, true))
	return c
}

func (p *commands) installCommand() *cobra.Command {
	var yes, dryRun bool
	c := &cobra.Command{
		Use: "install", Short: "Install the service, or change it, and start the server", Args: cobra.NoArgs,
		Long: `Install the service, and start the server. The command shows what it writes and asks first. The
server gets the flags of this command; other settings are in the settings file, since variables of this shell do
not reach a service. Running the command again gives the service the new flags and the new program. A
definition that somebody else has written or changed is copied first.`,
		Example: "  sandlot service install\n  sandlot service install --port 9000 --yes\n  sandlot service install " +
			"--dry-run",
	}
	flags := p.ServerFlags(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show the definition without writing it")
	c.Flags().BoolVar(&yes, "yes", false, "install without asking")
	c.RunE = func(c *cobra.Command, _ []string) error {
		system, err := p.system()
		if err != nil {
			return err
		}
		return p.install(c.Context(), system, flags(), dryRun, yes)
	}
	return c
}

func (p *commands) install(ctx context.Context, system autostart.System, flags map[string]string,
	dryRun, yes bool) error {
	server, cfg, err := p.describe(system, flags)
	if err != nil {
		return err
	}
	text, err := system.Definition(server)
	if err != nil {
		return fmt.Errorf("the service cannot be installed: %w", err)
	}
	if !dryRun {
		if err := system.Check(ctx); err != nil {
			return err
		}
	}
	old, err := system.Installed(ctx)
	if err != nil && !dryRun {
		return err
	}
	if old != "" && old == text {
		fmt.Fprintf(p.Out, "%s has it already: nothing to write.\n", system.Path())
		if dryRun {
			return nil
		}
		return p.start(ctx, system, cfg, autostart.System.Start)
	}
	fmt.Fprint(p.Out, diff(system.Path(), old, text))
	if dryRun {
		return nil
	}
	if err := p.checkFree(ctx, system, cfg, old != ""); err != nil {
		return err
	}
	if !yes {
		if err := p.Confirm(ctx, "Install this, and start the server?"); err != nil {
			return err
		}
	}
	if err := p.backUp(system, old); err != nil {
		return err
	}
	return p.start(ctx, system, cfg, func(s autostart.System, ctx context.Context) error { return s.Apply(ctx, text) })
}

// diff shows what changes in a definition.
func diff(path, old, text string) string {
	name := path
	if old == "" {
		name = "/dev/null"
	}
	return udiff.Unified(name, path, old, text)
}

// backUp keeps a definition that Sandlot has not made.
func (p *commands) backUp(system autostart.System, old string) error {
	if old == "" || !autostart.Edited(system, old) {
		return nil
	}
	backup, err := autostart.BackUp(system, old, time.Now())
	if err != nil {
		return fmt.Errorf("no copy of the present definition can be made, so it is left as it is: %w", err)
	}
	fmt.Fprintf(p.Out, "As it was before: %s.\n", backup)
	return nil
}

// checkFree returns an error if another server than the service's has the state folder.
func (p *commands) checkFree(ctx context.Context, system autostart.System, cfg *config.Config, installed bool) error {
	folder, err := app.InspectStateFolder(ctx, nil, p.Log(), cfg.Server.StateDir)
	if err != nil || folder.Server == nil {
		return nil // a folder that cannot be inspected has no server yet
	}
	if installed {
		state, err := system.State(ctx)
		if err != nil {
			return err
		}
		if state.Running && (state.PID == 0 || state.PID == folder.Server.PID) {
			return nil
		}
	}
	return fmt.Errorf("a server runs already for %s, process %d, and is not the service's: stop it (`sandlot stop`), "+
		"and try again", folder.Path, folder.Server.PID)
}

// startTimeout is how long a server may take until it answers.
const startTimeout = time.Minute

// start calls begin, and waits until the server answers.
func (p *commands) start(ctx context.Context, system autostart.System, cfg *config.Config,
	begin func(autostart.System, context.Context) error) error {
	if err := begin(system, ctx); err != nil {
		return err
	}
	c, err := client.New(app.SocketPath(cfg.Server.StateDir), "", "")
	if err != nil {
		return err
	}
	late := time.After(startTimeout)
	for ended := 0; ; {
		state, err := system.State(ctx)
		if err != nil {
			return err
		}
		var health protocol.Health
		switch {
		case state.Running && c.Alive(ctx) && c.JSON(ctx, "GET", "/", nil, &health) == nil:
			fmt.Fprintf(p.Out, "The server runs (version %s): %s\n", health.Version, p.LocalURL(cfg))
			for _, note := range system.Notes(ctx) {
				fmt.Fprintln(p.Out, note)
			}
			return nil
		case !state.Ended:
			ended = 0
		case ended < 5: // a system may say that of the server before for a moment
			ended++
		default:
			return p.notStarted(ctx, system, "the server has ended: "+state.Text)
		}
		select {
		case <-late:
			return p.notStarted(ctx, system, fmt.Sprintf("the server does not answer after %s: %s", startTimeout,
				state.Text))
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// notStarted returns an error with the end of the log.
func (p *commands) notStarted(ctx context.Context, system autostart.System, what string) error {
	text := ""
	if tail, err := logTail(ctx, system, 10); err == nil && tail != "" {
		text = "; the end of its log:\n" + tail
	}
	return fmt.Errorf("%s. The service stays installed; `sandlot service logs` shows all of its log%s", what, text)
}

func (p *commands) removeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove", Short: "Stop the server, and remove the service", Args: cobra.NoArgs,
		Long: `Stop the server, and remove the service. The state folder with sessions, files, tokens and settings
stays as it is. Sessions sleep, and continue with the next server, unless the setting on_stop says otherwise.`,
		RunE: func(c *cobra.Command, _ []string) error {
			system, err := p.system()
			if err != nil {
				return err
			}
			old, err := system.Installed(c.Context())
			if err != nil {
				return err
			}
			if old == "" {
				fmt.Fprintln(p.Out, "No service is installed: nothing to do.")
				return nil
			}
			state := ""
			if server, found := autostart.Recorded(old); found {
				if cfg, err := p.recorded(server); err == nil {
					state = " of " + cfg.Server.StateDir
				}
			}
			if err := errors.Join(p.backUp(system, old), system.Remove(c.Context())); err != nil {
				return err
			}
			fmt.Fprintf(p.Out, "The service is removed. Sessions, files and settings%s are kept; `sandlot stop "+
				"--sessions` stops sandboxes that still run.\n", state)
			return nil
		},
	}
}

// restart ends the server, and starts it.
func restart(system autostart.System, ctx context.Context) error {
	if err := system.Stop(ctx); err != nil {
		return err
	}
	return system.Start(ctx)
}

// simple returns a command that does one thing with a service that is there. starts: it waits for the server.
func (p *commands) simple(name, short string, do func(autostart.System, context.Context) error,
	starts bool) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		system, definition, err := p.installed(c.Context())
		if err != nil {
			return err
		}
		if !starts {
			if err := do(system, c.Context()); err != nil {
				return err
			}
			fmt.Fprintln(p.Out, "The server has ended. Sessions go on with the next one, as the setting on_stop says; "+
				"`sandlot ps` lists what runs, or sleeps, meanwhile.")
			return nil
		}
		server, _ := autostart.Recorded(definition)
		cfg, err := p.recorded(server)
		if err != nil {
			return err
		}
		return p.start(c.Context(), system, cfg, do)
	}}
}
