package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sandlot/internal/app"
	"sandlot/internal/hub"
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
		Long: `Write the database's content to a file: tokens, sessions, exposed ports, connections, events,
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

// restored is the JSON of a restore: where what was there before is.
type restored struct {
	Before  string `json:"before"`
	KeyFile string `json:"key_file,omitempty"`
}

func (p *program) restore() *cobra.Command {
	c := &cobra.Command{Use: "restore FILE", Args: cobra.ExactArgs(1),
		Short: "Replace the database's content with a backup, also while the server runs",
		Long: `Replace everything in the database with a file of sandlot backup, in one step: after an error or a crash the
database has the old content or the new one. The whole file is checked first. A running server restarts within its
process, which takes seconds; sandboxes of sessions in the backup keep running. The old content is stored as a
backup in the state folder. Workspaces are not removed. With --server, the token needs the role operator.`,
		Example: "  sandlot restore sandlot-backup.db\n  sandlot --server https://sandlot.example.com restore " +
			"sandlot-backup.db"}
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		done, err := p.restoreFrom(c.Context(), args[0])
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(done)
		}
		fmt.Fprintf(p.out, "The database has the content of %s. Its old content is in %s.\nSecrets and log-ins need "+
			"the key of the time of the backup.\n", args[0], done.Before)
		if done.KeyFile != "" {
			fmt.Fprintf(p.out, "It belongs into %s.\n", done.KeyFile)
		}
		return nil
	})
}

// restoreFrom restores a backup: by the server if it runs, else in its state folder.
func (p *program) restoreFrom(ctx context.Context, file string) (restored, error) {
	server, err := p.operator()
	if err != nil {
		return restored{}, err
	}
	key := ""
	if p.server == "" {
		cfg, err := p.load(nil)
		if err != nil {
			return restored{}, err
		}
		key = app.KeyFile(cfg)
		if !server.Alive(ctx) {
			before, err := app.Restore(ctx, cfg, p.errorLog(), file)
			return restored{before, key}, err
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return restored{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return restored{}, err
	}
	if !st.Mode().IsRegular() {
		return restored{}, fmt.Errorf("the backup %s is not a file", file)
	}
	fmt.Fprintln(p.err, "the server checks the backup, and restarts")
	r, err := server.Restore(ctx, f, st.Size())
	if err == nil && r.State == hub.RestoreFailed {
		err = fmt.Errorf("the backup is not restored, and the database is unchanged: %s", r.Problem)
	}
	return restored{r.Before, key}, err
}
