package app

import (
	"context"

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

// KeyFile returns where the key of stored secrets and log-ins is: its path, the name of the setting, or
// that in the keyring.
func KeyFile(c *config.Config) string {
	switch {
	case c.Server.SecretsKey != "":
		return "the setting secrets.key"
	case c.Server.SecretsKeyring != "":
		return "the keyring, as " + c.Server.SecretsKeyring
	}
	return openVault(c, nil).KeyFile
}
