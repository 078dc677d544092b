package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"

	"sandlot/internal/app/restore"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/store"
)

// restoresOf returns the restores of the settings' state folder.
func restoresOf(c *config.Config, log *slog.Logger) restore.Restores {
	return restore.Restores{StateDir: c.Server.StateDir, Database: c.Server.Database(), Log: log,
		Check: func(ctx context.Context, db *store.DB) error { return checkStart(ctx, c, db) }}
}

// checkStart returns an error if a server with these settings would not start with the content of a database.
func checkStart(ctx context.Context, c *config.Config, db *store.DB) error {
	v := openVault(c, db)
	if err := errors.Join(v.SelectKey(ctx, db), v.OpenKeyring(ctx, db)); err != nil {
		return err
	}
	if err := v.CheckStored(ctx, db); err != nil {
		return err
	}
	ac, err := authenticating(ctx, c, nil, db)
	if err != nil {
		return err
	}
	return (&App{Config: c, access: ac}).checkListen(ctx)
}

// restarts are the restarts of the server within its process, for restores.
type restarts struct {
	c         *config.Config
	log       *slog.Logger
	restart   chan struct{} // receives when the server is to restart; nil: it cannot
	restoring sync.Mutex    // held while a restore is prepared
}

// Restore implements hub.Restorer: it prepares a restore, and restarts the server within its process.
func (r *restarts) Restore(ctx context.Context, content io.Reader, size int64) (hub.Restore, error) {
	if r.c.Server.ReplicaAddress != "" {
		return hub.Restore{}, fault.New(fault.Configuration, "a backup replaces what all servers of the database have: "+
			"it cannot be restored while servers share it")
	}
	if r.restart == nil {
		return hub.Restore{}, fault.New(fault.Configuration, "this server runs within another command, such as "+
			"sandlot stdio, and cannot restart: end it, and run sandlot restore while no server runs, or sandlot "+
			"serve in its place")
	}
	if !r.restoring.TryLock() {
		return hub.Restore{}, restore.ErrUnderWay
	}
	defer r.restoring.Unlock()
	record, err := restoresOf(r.c, r.log).Prepare(ctx, content, size)
	if err != nil {
		return hub.Restore{}, err
	}
	r.log.Info("a backup is going to be restored; the server restarts", "id", record.ID)
	select {
	case r.restart <- struct{}{}:
	default:
	}
	return record, nil
}

// LastRestore implements hub.Restorer.
func (r *restarts) LastRestore(context.Context) (hub.Database, error) {
	record, err := restoresOf(r.c, r.log).Last()
	return hub.Database{Restore: record}, err
}

// Restore replaces the content of the settings' database by that of a backup, and returns the file that has what was
// there before. No server may be running.
func Restore(ctx context.Context, c *config.Config, log *slog.Logger, file string) (before string, err error) {
	lock, err := lockStateFolder(&c.Server)
	if err != nil {
		return "", fault.Wrap(fault.Configuration, err, "nothing is restored: %v", err)
	}
	defer lock.Close()
	db, err := store.OpenServer(ctx, c.Server.Database(), log)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if before, err = restoresOf(c, log).Now(ctx, db, file); err != nil {
		return "", err
	}
	return before, checkDatabase(ctx, c, db, true)
}
