package app

import (
	"context"
	"log/slog"

	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/store"
)

// Backup writes the database of the settings to a file. A server may run.
func Backup(ctx context.Context, c *config.Config, file string, replace bool) error {
	if where := c.Server.Database(); !store.Exists(where) {
		return fault.New(fault.Configuration, "the state folder %s has no database yet", where)
	}
	return store.Backup(ctx, c.Server.Database(), file, replace)
}

// Restore replaces the content of the settings' database by that of a backup. No server may be running.
func Restore(ctx context.Context, c *config.Config, log *slog.Logger, file string) error {
	lock, err := lockStateFolder(&c.Server)
	if err != nil {
		return fault.Wrap(fault.Configuration, err,
			"nothing is restored: %v. Stop the server (sandlot stop), restore, "+
				"and start it again: sandboxes keep running meanwhile", err)
	}
	defer lock.Close()
	db, err := store.OpenServer(ctx, c.Server.Database(), log)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Restore(ctx, file); err != nil {
		return err
	}
	return checkDatabase(ctx, c, db, true)
}

// KeyFile returns where the key is with which secrets and log-ins are stored: its path, or the name of the setting.
func KeyFile(c *config.Config) string {
	if c.Server.SecretsKey != "" {
		return "the setting secrets.key"
	}
	return openVault(c, nil).KeyFile
}
