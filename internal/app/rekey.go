package app

import (
	"context"
	"log/slog"
	"path/filepath"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/keyring"
	"sandlot/internal/secret"
	"sandlot/internal/store"
	"sandlot/internal/vault"
)

// Rekey creates a new key for users' secrets and log-ins, and encrypts all of them with it. No server may
// be running. With drop it removes those that cannot be decrypted, else it fails if there are any.
func Rekey(ctx context.Context, c *config.Config, log *slog.Logger, drop bool) (sealed, dropped int, err error) {
	lock, err := lockStateFolder(&c.Server)
	if err != nil {
		return 0, 0, fault.Wrap(fault.Configuration, err, "the key is not changed: %v", err)
	}
	defer lock.Close()
	db, err := store.OpenServer(ctx, c.Server.Database(), log)
	if err != nil {
		return 0, 0, err
	}
	defer db.Close()
	addresses, err := loginAddresses(ctx, c, db)
	if err != nil {
		return 0, 0, err
	}
	v := openVault(c, db)
	sealed, dropped, err = v.Rekey(ctx, sealedStore{db, c.Server.StateDir}, func(owner, connection string) string {
		if connection != "" && connection[0] == '=' {
			owner = ""
		}
		return addresses[[2]string{owner, connection}]
	}, drop)
	if err != nil {
		return sealed, dropped, err
	}
	if err = v.OpenKeyring(ctx, db); err == nil {
		_, _, err = settleImageKeys(ctx, v, db, c.Server.StateDir)
	}
	if err != nil { // the next start of the server does the same
		log.Warn("the keys of sleeping sessions are still stored for the old key too", "error", err)
	}
	return sealed, dropped, nil
}

// loginAddresses returns the addresses for which log-ins are sealed, by owner and connection. The connection
// of a server in the settings is "=" and its name, and its owner is empty.
func loginAddresses(ctx context.Context, c *config.Config, db *store.DB) (map[[2]string]string, error) {
	addresses := map[[2]string]string{}
	logins, err := db.Logins(ctx)
	if err != nil || len(logins) == 0 {
		return nil, err
	}
	for _, l := range logins {
		all, err := db.Connections(ctx, l[0])
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if !r.Configured {
				addresses[[2]string{r.Owner, r.ID}] = r.URL
			}
		}
	}
	servers, _ := c.Servers(ctx, auth.ParseID)
	for _, s := range servers {
		addresses[[2]string{"", "=" + s.Name}] = s.URL
	}
	return addresses, nil
}

// openVault returns the vault, with the key, the keyring or the key file of the settings or, by default, the key file
// of the state folder.
func openVault(c *config.Config, db *store.DB) *vault.Vault {
	v := &vault.Vault{Store: db, KeyFile: c.Server.SecretsKeyFile}
	if v.KeyFile == "" {
		v.KeyFile, v.CreateKey = filepath.Join(c.Server.StateDir, "secrets.key"), true
	}
	if c.Server.SecretsKeyring != "" {
		v.Keyring, v.KeyName, v.CreateKey = keyring.Keyring{}, c.Server.SecretsKeyring, false
	}
	// The settings have checked them, so they parse, or are empty.
	v.Key, _ = secret.ParseKey(c.Server.SecretsKey.Reveal())
	v.NewKey, _ = secret.ParseKey(c.Server.SecretsNewKey.Reveal())
	return v
}
