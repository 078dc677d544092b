package hub

import (
	"context"
	"io"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
)

// RestoreState says how far a restore is.
type RestoreState string

// The states of a restore.
const (
	RestorePending RestoreState = "pending" // it is checked, and the server restarts
	RestoreDone    RestoreState = "done"
	RestoreFailed  RestoreState = "failed" // the database has what it had before
)

// Restore describes the restore of a backup.
type Restore struct {
	ID    string       `json:"id"`
	State RestoreState `json:"state"`
	Time  time.Time    `json:"time" jsonschema:"When the backup came."`
	// Before is the path of the backup of what was there before.
	Before  string `json:"before" jsonschema:"The file on the server with the old content."`
	Problem string `json:"problem,omitempty" jsonschema:"Why it failed."`
}

// Database describes the database.
type Database struct {
	Restore *Restore `json:"restore,omitempty" jsonschema:"The last restore; missing: there was none."`
}

// Restorer restores backups.
type Restorer interface {
	// Restore checks a backup of size bytes whole, and restores it after its return, for which the server restarts.
	// If it returns an error, nothing has changed.
	Restore(ctx context.Context, content io.Reader, size int64) (Restore, error)
	LastRestore(ctx context.Context) (Database, error)
}

// Backup is a backup of the database on the server's disk.
type Backup struct {
	File  string    `json:"file" jsonschema:"The path on the server."`
	Bytes int64     `json:"bytes"`
	Time  time.Time `json:"time"`
}

// BackupList is the backups in the state folder, the newest first: those made here, and those made before a restore.
type BackupList struct {
	Backups []Backup `json:"backups"`
}

// Backups makes backups of the database.
type Backups interface {
	MakeBackup(ctx context.Context) (Backup, error)
	ListBackups(ctx context.Context) ([]Backup, error)
}

func (h *Hub) makeBackup(ctx context.Context, p auth.Principal, _ None) (Backup, error) {
	b, err := h.Backups.MakeBackup(ctx)
	if err == nil {
		h.Log.InfoContext(ctx, "a backup was made", "file", b.File, "by", p.ID)
	}
	return b, err
}

func (h *Hub) listBackups(ctx context.Context, _ auth.Principal, _ None) (BackupList, error) {
	list, err := h.Backups.ListBackups(ctx)
	return BackupList{list}, err
}

// RestoreDatabase replaces all that is stored by the content of a backup of size bytes. It returns when the backup is
// checked, and the server is about to restart.
func (h *Hub) RestoreDatabase(ctx context.Context, p auth.Principal, backup io.Reader, size int64) (Restore, error) {
	a, err := h.Begin(ctx, Request{Principal: p, Operation: policy.DatabaseRestore})
	if err != nil {
		return Restore{}, err
	}
	defer a.Close()
	body := &errorRecorder{Reader: &countingReader{backup, &a.received}}
	restore, err := h.Restorer.Restore(ctx, body, size)
	if body.err != nil {
		err = fault.Wrap(fault.InvalidParameters, body.err, "the transfer broke, and nothing was changed")
	}
	return restore, a.Fail(err)
}

func (h *Hub) readDatabase(ctx context.Context, _ auth.Principal, _ None) (Database, error) {
	return h.Restorer.LastRestore(ctx)
}
