// Package restore restores backups of the database: it checks one whole, makes it what the next start has, and knows
// after a crash how far that was.
package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/secret"
	"sandlot/internal/store"
	"sandlot/internal/workspace"
)

// A restore is prepared in the folder restore/pending of the state folder, which gets that name when everything in it
// is checked and on the disk. The next start replaces the content of the database, in one transaction, which also
// stores the id of the restore. So after a crash a start knows whether that was done. The folder is removed when the
// server listens. If it cannot, what was there before is restored: see Undo.

const (
	restoreFolder  = "restore"
	pendingName    = "pending"
	incomingPrefix = "incoming-"
	preparedFile   = "database"
	recordFile     = "restore.json"
	lastFile       = "last.json"
	backupsFolder  = "backups"
)

// BackupsFolder returns the folder of a state folder in which backups are.
func BackupsFolder(stateDir string) string { return filepath.Join(stateDir, backupsFolder) }

// maxBackupBytes is how large a backup may be that comes over the HTTP API.
const maxBackupBytes = 64 << 30

// Restores are the restores of one state folder.
type Restores struct {
	StateDir string
	Database string // an argument of store.Open
	Log      *slog.Logger
	// Check returns an error if a server would not start with the content of a database.
	Check func(ctx context.Context, db *store.DB) error
}

func (r Restores) path(names ...string) string {
	return filepath.Join(append([]string{r.StateDir, restoreFolder}, names...)...)
}

// Prepare checks a backup of size bytes whole, and makes the next start restore it.
func (r Restores) Prepare(ctx context.Context, content io.Reader, size int64) (_ hub.Restore, err error) {
	defer func() { err = explainFull(err) }()
	if size > maxBackupBytes {
		return hub.Restore{}, fault.New(fault.InvalidParameters, "a backup has at most %d bytes",
			int64(maxBackupBytes))
	}
	if err := os.MkdirAll(r.path(), 0o700); err != nil {
		return hub.Restore{}, err
	}
	incoming, err := os.MkdirTemp(r.path(), incomingPrefix)
	if err != nil {
		return hub.Restore{}, err
	}
	defer os.RemoveAll(incoming)
	upload := filepath.Join(incoming, "upload")
	if err := receive(upload, content, size); err != nil {
		return hub.Restore{}, err
	}
	if err := store.Prepare(ctx, upload, filepath.Join(incoming, preparedFile), func(db *store.DB) error {
		return r.Check(ctx, db)
	}); err != nil {
		return hub.Restore{}, err
	}
	now := time.Now().UTC()
	record := hub.Restore{ID: secret.ID()[:8], State: hub.RestorePending, Time: now}
	record.Before = filepath.Join(r.StateDir, backupsFolder,
		"before-restore-"+now.Format("20060102T150405Z")+"-"+record.ID+".db")
	text, err := json.Marshal(record)
	if err == nil {
		err = errors.Join(os.RemoveAll(upload), os.RemoveAll(upload+"-wal"), os.RemoveAll(upload+"-shm"))
	}
	if err == nil {
		err = atomicfile.WriteThrough(filepath.Join(incoming, recordFile), text)
	}
	if err != nil {
		return hub.Restore{}, err
	}
	if err := os.Rename(incoming, r.path(pendingName)); err != nil {
		if _, pendingErr := os.Stat(r.path(pendingName)); pendingErr == nil {
			return hub.Restore{}, ErrUnderWay
		}
		return hub.Restore{}, err
	}
	return record, atomicfile.Sync(r.path())
}

// ErrUnderWay is the fault of a restore while another one has not ended.
var ErrUnderWay = fault.New(fault.InvalidParameters, "another restore is under way; nothing was changed").
	Advise("Wait until it has ended: GET /v1/database shows it", "Then restore again")

// receive writes content to a new file.
func receive(path string, content io.Reader, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(content, size))
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err = errors.Join(err, f.Close()); err != nil && !atomicfile.IsDiskFull(err) {
		return fault.Wrap(fault.InvalidParameters, err, "the backup did not come whole: %v; nothing was changed", err)
	}
	return err
}

// explainFull returns the fault for an error that says that the disk has no room for a restore; others stay as they are.
func explainFull(err error) error {
	var f *fault.Error
	if !atomicfile.IsDiskFull(err) || errors.As(err, &f) && f.Kind == fault.ResourceLimit {
		return err
	}
	return fault.Wrap(fault.ResourceLimit, err, "the disk of the state folder is full; nothing was changed").
		Advise("Ask the operator to free space on the disk of the state folder", "Then restore again")
}

// Pending returns the restore that the next start completes; nil: there is none.
func (r Restores) Pending() (*hub.Restore, error) {
	return readRestore(r.path(pendingName, recordFile))
}

// Last returns the restore that is pending, or else the last one; nil: there was none.
func (r Restores) Last() (*hub.Restore, error) {
	if record, err := r.Pending(); record != nil || err != nil {
		return record, err
	}
	return readRestore(r.path(lastFile))
}

func readRestore(path string) (*hub.Restore, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	record := new(hub.Restore)
	if err == nil {
		err = json.Unmarshal(text, record)
	}
	return record, err
}

// Apply completes a restore that is pending: it stores the database's content in a file of its own, and replaces it.
// When that fails, the content is as it was. It returns an error only if that is not known.
func (r Restores) Apply(ctx context.Context, db *store.DB) error {
	r.removeIncomplete()
	record, err := r.Pending()
	if record == nil && err == nil {
		return nil
	}
	if err != nil {
		return r.end(hub.Restore{Time: time.Now().UTC()}, fmt.Errorf("reading %s: %w", r.path(pendingName), err))
	}
	done, err := r.isDone(ctx, db, record)
	if done || err != nil {
		return err
	}
	r.Log.Info("restoring a backup", "id", record.ID, "before", record.Before)
	restoreErr := r.replace(ctx, db, record)
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), restoreErr)
	}
	if done, err = r.isDone(ctx, db, record); err != nil || done {
		return err // after a lost connection the transaction may have been committed
	}
	return r.end(*record, restoreErr)
}

// isDone reports whether the database has the content of the restore.
func (r Restores) isDone(ctx context.Context, db *store.DB, record *hub.Restore) (bool, error) {
	epoch, err := db.Epoch(ctx)
	return err == nil && epoch == record.ID, err
}

func (r Restores) replace(ctx context.Context, db *store.DB, record *hub.Restore) error {
	dir := filepath.Dir(record.Before)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := errors.Join(db.Backup(ctx, record.Before, true), atomicfile.Sync(filepath.Dir(dir))); err != nil {
		return fmt.Errorf("storing what was there before: %w", err)
	}
	there, err := r.workspaces()
	if err != nil {
		return err
	}
	return db.Restore(ctx, r.path(pendingName, preparedFile), record.ID, there)
}

// folders are the workspaces in the state folder.
type folders struct {
	*workspace.Store
	Restores
}

// workspaces opens the workspaces.
func (r Restores) workspaces() (folders, error) {
	all, err := workspace.Open(filepath.Join(r.StateDir, "workspaces"))
	return folders{all, r}, err
}

// Keep implements store.Workspaces.
func (f folders) Keep(ids []string) (err error) {
	if len(ids) == 0 {
		return nil
	}
	for _, id := range ids {
		err = errors.Join(err, f.Store.Keep(id))
	}
	f.Log.Warn("the restored content does not know these sessions' workspaces; their files are kept", "folder",
		f.StateDir, "workspaces", ids)
	return err
}

// end stores how a restore has ended, and that it is not pending any more.
func (r Restores) end(record hub.Restore, cause error) error {
	if record.State = hub.RestoreDone; cause != nil {
		record.State, record.Problem = hub.RestoreFailed, cause.Error()
		r.Log.Error("the backup was not restored; the database is unchanged", "error", cause)
	} else {
		r.Log.Info("the backup is restored", "id", record.ID, "before", record.Before)
	}
	// It is not needed any more, and a full disk has room then. Without it, a crash leaves a restore that has failed, or
	// one that is done.
	removeErr := os.Remove(r.path(pendingName, preparedFile))
	text, err := json.Marshal(record)
	if err == nil {
		err = atomicfile.WriteThrough(r.path(lastFile), text)
	}
	if err != nil && cause != nil && atomicfile.IsDiskFull(err) { // the server starts with what it has had
		r.Log.Error("could not store that the restore has failed", "error", errors.Join(err, removeErr))
		err = nil
	}
	if err == nil { // at once: what is left of a folder would be another restore
		err = os.Rename(r.path(pendingName), r.path(incomingPrefix+record.ID+"-ended"))
	}
	if err == nil {
		err = atomicfile.Sync(r.path())
	}
	r.removeIncomplete()
	return err
}

// removeIncomplete removes what a crash has left. No restore is prepared meanwhile.
func (r Restores) removeIncomplete() {
	left, _ := filepath.Glob(r.path(incomingPrefix + "*"))
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			r.Log.Warn("could not remove what a restore has left", "error", err)
		}
	}
}

// Confirm ends a restore after which the server has started.
func (r Restores) Confirm() error {
	record, err := r.Pending()
	if record == nil || err != nil {
		return err
	}
	return r.end(*record, nil)
}

// Undo restores what was there before a restore after which the server could not start because of cause.
// It reports whether it has done that. The caller has locked the state folder, and has not opened the database.
func (r Restores) Undo(ctx context.Context, cause error) (undone bool, err error) {
	record, err := r.Pending()
	if record == nil || err != nil || ctx.Err() != nil {
		return false, err
	}
	db, err := store.OpenServer(ctx, r.Database, r.Log)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if done, err := r.isDone(ctx, db, record); !done || err != nil {
		return false, err
	}
	there, err := r.workspaces()
	if err == nil {
		err = db.Restore(ctx, record.Before, secret.ID()[:8], there)
	}
	if err != nil {
		return false, fmt.Errorf("restoring what was there before, in %s: %w", record.Before, err)
	}
	return true, r.end(*record, fmt.Errorf("the server did not start with it: %w", cause))
}

// Now restores a backup while no server runs, and returns the file that has what was there before. The caller has
// locked the state folder.
func (r Restores) Now(ctx context.Context, db *store.DB, file string) (before string, err error) {
	if err := r.Apply(ctx, db); err != nil { // one that a crash has interrupted
		return "", err
	}
	if err := r.Confirm(); err != nil {
		return "", err
	}
	record, err := r.prepareFile(ctx, file)
	if err != nil {
		return "", err
	}
	if err := r.replace(ctx, db, &record); err != nil {
		return "", errors.Join(err, r.end(record, err))
	}
	return record.Before, r.end(record, nil)
}

// prepareFile is Prepare for a file.
func (r Restores) prepareFile(ctx context.Context, file string) (hub.Restore, error) {
	f, err := os.Open(file)
	if err != nil {
		return hub.Restore{}, fault.Wrap(fault.InvalidParameters, err, "the backup cannot be read: %v", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fault.New(fault.InvalidParameters, "the backup %s is not a file", file)
	}
	if err != nil {
		return hub.Restore{}, err
	}
	return r.Prepare(ctx, f, st.Size())
}
