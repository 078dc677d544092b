package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sandlot/internal/app"
)

// errElsewhere is the error of commands for the database with --server.
var errElsewhere = errors.New("this works on the server's own machine, without --server")

// backupResult is the JSON of a backup.
type backupResult struct {
	File    string `json:"file"`
	Bytes   int64  `json:"bytes"`
	KeyFile string `json:"key_file"`
}

func (p *program) backup() *cobra.Command {
	var force bool
	c := &cobra.Command{Use: "backup FILE", Short: "Write the database to a file, also while the server runs",
		Args: cobra.ExactArgs(1),
		Long: `Write what the database has at this moment to a file: tokens, sessions, exposed ports, connections, events,
and the encrypted secrets and log-ins. It can be restored into SQLite and PostgreSQL, whichever it came
from. The files of workspaces, and the keys, are not in it.`,
		Example: "  sandlot backup sandlot-backup.db\n  sandlot backup --force /backup/sandlot.db"}
	c.Flags().BoolVar(&force, "force", false, "replace the file if it exists")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		cfg, err := p.load(nil)
		if err != nil {
			return err
		}
		if p.server != "" {
			return usage{errElsewhere}
		}
		file, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		if err := app.Backup(c.Context(), cfg, file, force); err != nil {
			return err
		}
		st, err := os.Stat(file)
		if err != nil {
			return err
		}
		key := app.KeyFile(cfg)
		if p.asJSON {
			return p.json(backupResult{file, st.Size(), key})
		}
		fmt.Fprintf(p.out, "The database is in %s (%d kB).\nNot in it: the files of workspaces (%s), and the key of "+
			"secrets and log-ins (%s). Keep the key elsewhere: whoever has both can read them.\n", file,
			(st.Size()+1023)/1024, filepath.Join(cfg.Server.StateDir, "workspaces"), key)
		return nil
	})
}

func (p *program) restore() *cobra.Command {
	return &cobra.Command{Use: "restore FILE",
		Short: "Replace the database's content by a backup, while no server runs",
		Args:  cobra.ExactArgs(1),
		Long: `Replace everything in the database by what sandlot backup has written to a file, in one step: after an error or
a crash the database is as it was. The server must not run; sandboxes may. What was stored after the backup
is lost, and the workspaces of sessions that are not in the backup are removed by the server, after a while.`,
		Example: "  sandlot stop && sandlot restore sandlot-backup.db && sandlot serve",
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := p.load(nil)
			if err != nil {
				return err
			}
			if p.server != "" {
				return usage{errElsewhere}
			}
			if err := app.Restore(c.Context(), cfg, p.errorLog(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(p.out, "The database has what %s has. Secrets and log-ins need the key of that time, in %s.\n",
				args[0], app.KeyFile(cfg))
			return nil
		}}
}
