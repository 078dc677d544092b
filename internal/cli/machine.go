package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/app"
	"sandlot/internal/cli/image"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/inventory"
	"sandlot/internal/oci"
	"sandlot/internal/plural"
	"sandlot/internal/template"
)

// machineState is the JSON of ps.
type machineState struct {
	StateFolders []app.StateFolder `json:"state_folders"`
}

func (p *program) ps() *cobra.Command {
	c := &cobra.Command{
		Use: "ps", Short: "Show the servers and sandboxes on this machine", Args: cobra.NoArgs,
		Long: `Show the servers and sandboxes that run on this machine, by state folder. Sandboxes
are shown even when their server does not run. Users see what they may see; root sees
everything. --state-dir selects one folder.`,
		Example: "  sandlot ps\n  sandlot ps --json",
	}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		folders, err := p.folders(c.Context())
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(machineState{folders})
		}
		return showFolders(p.out, folders)
	})
}

// errorLog returns a logger that prints errors only.
func (p *program) errorLog() *slog.Logger { return app.Logger(p.err, "ERROR", false) }

// images opens the images for their commands: those of the server that --server names, or of the state folder.
func (p *program) images() (image.Images, error) {
	if p.server != "" {
		c, err := p.operator()
		return image.Images{Server: c}, err
	}
	cfg, err := p.load(nil)
	if err != nil {
		return image.Images{}, err
	}
	dir := cfg.Server.StateDir
	records := app.RecordsFolder(dir)
	all := &inventory.Inventory{Store: oci.Open(app.ImagesFolder(dir), app.Logger(p.err, "WARNING", false))}
	built := template.Used(records, cfg.Templates)
	// A folder that cannot be inspected has no server yet.
	folder, err := app.InspectStateFolder(context.Background(), nil, p.errorLog(), dir)
	if err == nil && folder.Server != nil {
		all.Since, built = folder.Server.Since, template.AllUsed(records) // its settings may be others
	}
	all.Uses = func() inventory.Uses { return inventory.Uses{Named: app.NamedImages(cfg.Templates), Built: built} }
	return image.Images{Inventory: all}, nil
}

// loaded returns the settings, or nil where they are wrong.
func (p *program) loaded() *config.Config {
	if c, err := p.load(nil); err == nil {
		return c
	}
	return nil
}

// folders reads the state folder of --state-dir, or without it all that have a running
// server or sandbox, and the one of the settings.
func (p *program) folders(ctx context.Context) ([]app.StateFolder, error) {
	if p.stateDir == "" {
		return append([]app.StateFolder{}, app.RunningStateFolders(ctx, p.loaded(), p.errorLog())...), nil
	}
	dir, own, err := app.ResolveStateFolder(p.stateDir)
	if err != nil {
		return nil, fault.Wrap(fault.Configuration, err, "the state folder %s cannot be read: %v", p.stateDir, err)
	}
	var cfg *config.Config
	if own { // else another user has put its settings there
		cfg = p.loaded()
	}
	f, err := app.InspectStateFolder(ctx, cfg, p.errorLog(), dir)
	return []app.StateFolder{f}, err
}

func (p *program) stop() *cobra.Command {
	var sessions bool
	c := &cobra.Command{
		Use: "stop", Short: "Stop the server; with --sessions also sandboxes that run without it", Args: cobra.NoArgs,
		Long: `Stop the server of the state folder and wait until it has ended. Running calls have
half a minute to finish. Then sessions are put to sleep, which takes some seconds, and
continue at their next use after the next start. A session that does not fit on the disk
keeps running for the next server. The setting on_stop can say that sessions
end, or that all sandboxes keep running (keep).

With --sessions, sandboxes that run without a server are ended: with on_stop: keep, or
after the server was killed, also a while ago. Sessions and the files in their workspaces
are kept, and so are sessions that sleep. To remove sessions with their files, use
"sandlot sessions stop".`,
		Example: "  sandlot stop\n  sandlot stop --sessions",
		RunE:    func(c *cobra.Command, _ []string) error { return p.stopAll(c.Context(), sessions) },
	}
	c.Flags().BoolVar(&sessions, "sessions", false, "end sandboxes that run without a server, too")
	return c
}

// stopLost stops the sandboxes of a state folder that was deleted.
func (p *program) stopLost(ctx context.Context, c *config.Config, dir string, sessions bool) error {
	fmt.Fprintf(p.out, "there is no state folder %s\n", dir)
	if !sessions {
		return nil
	}
	n, err := app.EndLost(ctx, c, p.errorLog(), dir)
	if err == nil || n > 0 {
		fmt.Fprintf(p.out, "%s ended\n", plural.Of(n, "sandbox was", "sandboxes were"))
	}
	return err
}

func (p *program) stopAll(ctx context.Context, sessions bool) error {
	cfg, configErr := p.load(nil)
	folder := p.stateDir // a server can be stopped even when its settings are invalid by now
	if configErr == nil {
		folder = cfg.Server.StateDir
	} else if folder == "" || sessions {
		return configErr
	}
	dir, err := filepath.EvalSymlinks(folder)
	if errors.Is(err, os.ErrNotExist) {
		return p.stopLost(ctx, cfg, folder, sessions)
	}
	if err != nil {
		return err
	}
	f, err := app.InspectStateFolder(ctx, nil, p.errorLog(), dir)
	if err != nil {
		return err
	}
	if f.UID != os.Getuid() {
		return fault.New(fault.Configuration,
			"the state folder %s is not yours, but the user's with the id %d; stop it as that user", dir, f.UID)
	}
	wait, cancel := context.WithTimeout(ctx, app.Grace+90*time.Second)
	defer cancel()
	stopped, err := app.StopServer(wait, f)
	if err != nil {
		return err
	}
	if stopped {
		fmt.Fprintf(p.out, "the server of %s, process %d, has ended\n", dir, f.Server.PID)
	} else {
		fmt.Fprintf(p.out, "%s has no server\n", dir)
	}
	if sessions {
		n, err := app.EndSandboxes(ctx, cfg, p.errorLog())
		if err == nil || n > 0 {
			fmt.Fprintf(p.out, "%s ended; sessions and their files are kept\n",
				plural.Of(n, "sandbox was", "sandboxes were"))
		}
		if err != nil {
			return err
		}
	}
	f, err = app.InspectStateFolder(ctx, p.loaded(), p.errorLog(), dir)
	asleep, paused := f.Resting()
	if err == nil && asleep > 0 {
		fmt.Fprintf(p.out, "%s at the next use\n",
			plural.Of(asleep, "session sleeps, and goes on", "sessions sleep, and go on"))
	}
	if err == nil && paused > 0 {
		fmt.Fprintf(p.out, "%s paused\n", plural.Of(paused, "session stays", "sessions stay"))
	}
	live := plural.Of(len(f.Sandboxes), "sandbox lives", "sandboxes live")
	if err == nil && len(f.Sandboxes) > 0 && configErr != nil {
		fmt.Fprintf(p.out, "%s on; the settings are wrong: %v\n", live, configErr)
	} else if err == nil && len(f.Sandboxes) > 0 {
		fmt.Fprintf(p.out, "%s on, for the next server or until %s without one are over; `sandlot "+
			"stop --sessions` ends what is left\n", live, cfg.Sessions.OrphanTimeout)
	}
	return err
}
