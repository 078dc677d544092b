package restore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/hub"
	"sandlot/internal/session"
	"sandlot/internal/session/record"
	"sandlot/internal/store"
	"sandlot/internal/store/storetest"
	"sandlot/internal/workspace"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// restoring is a state folder with a database, and a backup of another content.
type restoring struct {
	Restores
	t    *testing.T
	file []byte // the backup
}

// newRestoring makes a database that has the token "old", and a backup that has the token "new".
func newRestoring(t *testing.T, where string) *restoring {
	t.Helper()
	dir := t.TempDir()
	if !store.IsPostgres(where) {
		where = dir
	}
	r := &restoring{Restores{dir, where, slog.New(slog.DiscardHandler), func(context.Context, *store.DB) error {
		return nil
	}}, t, nil}
	r.use(func(ctx context.Context, db *store.DB) error { return addToken(ctx, db, "old") })
	r.file = backupWith(t, func(ctx context.Context, db *store.DB) error { return addToken(ctx, db, "new") })
	return r
}

func addToken(ctx context.Context, db *store.DB, name string) error {
	return db.AddToken(ctx, auth.Token{ID: name, Hash: name, Owner: "user:" + name, User: name, Created: time.Now()})
}

// backupWith returns a backup of what fill stores.
func backupWith(t *testing.T, fill func(context.Context, *store.DB) error) []byte {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), dir)
	if err == nil {
		err = errors.Join(fill(t.Context(), db), db.Backup(t.Context(), filepath.Join(dir, "backup"), false),
			db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "backup"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// use opens the database as a server does.
func (r *restoring) use(do func(context.Context, *store.DB) error) {
	r.t.Helper()
	db, err := store.OpenServer(r.t.Context(), r.Database, r.Log)
	if err == nil {
		err = errors.Join(do(r.t.Context(), db), db.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// has checks which token the database has, and how the last restore has ended.
func (r *restoring) has(token string, state hub.RestoreState) {
	r.t.Helper()
	r.use(func(ctx context.Context, db *store.DB) error {
		all, err := db.Tokens(ctx)
		if len(all) != 1 || all[0].ID != token {
			r.t.Errorf("it has %+v, want %s", all, token)
		}
		return err
	})
	last, err := r.Last()
	if err != nil || state == "" != (last == nil) || last != nil && last.State != state {
		r.t.Errorf("the last restore is %+v, %v, want %q", last, err, state)
	}
	left, _ := os.ReadDir(r.path())
	for _, e := range left {
		if e.Name() != lastFile && e.Name() != pendingName {
			r.t.Errorf("%s is left", e.Name())
		}
	}
}

func (r *restoring) prepared() {
	r.t.Helper()
	if _, err := r.Prepare(r.t.Context(), bytes.NewReader(r.file), int64(len(r.file))); err != nil {
		r.t.Fatal(err)
	}
}

// A server that ends at any step leaves the old or the new content, and the next one completes the restore.
func TestRestoreSteps(t *testing.T) {
	storetest.Each(t, func(t *testing.T, where string) {
		r := newRestoring(t, where)
		r.has("old", "")
		r.prepared()
		r.has("old", hub.RestorePending)
		if _, err := r.Prepare(t.Context(), bytes.NewReader(r.file), int64(len(r.file))); !errors.Is(err, ErrUnderWay) {
			t.Errorf("two at once: %v", err)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		r.use(func(_ context.Context, db *store.DB) error {
			if err := r.Apply(canceled, db); !errors.Is(err, context.Canceled) {
				t.Errorf("a server that ends at once: %v", err)
			}
			return nil
		})
		r.has("old", hub.RestorePending)
		for range 2 { // the second one finds that it is done
			if err := os.MkdirAll(r.path(incomingPrefix+"of a crash"), 0o700); err != nil {
				t.Fatal(err)
			}
			r.use(r.Apply)
			r.has("new", hub.RestorePending)
		}
		if err := r.Confirm(); err != nil {
			t.Fatal(err)
		}
		r.has("new", hub.RestoreDone)
		if undone, err := r.Undo(t.Context(), errors.New("another reason")); undone || err != nil {
			t.Errorf("what has ended is undone: %v", err)
		}
		last, err := readRestore(r.path(lastFile))
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(last.Before); err != nil || st.Mode() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
		r.use(func(ctx context.Context, db *store.DB) error {
			_, err := r.Now(ctx, db, last.Before)
			return err
		})
		r.has("old", hub.RestoreDone)
	})
}

// If the server cannot start with what is restored, it has what was there before, also after a crash in between.
func TestRestoreIsUndone(t *testing.T) {
	storetest.Each(t, func(t *testing.T, where string) {
		r := newRestoring(t, where)
		if undone, err := r.Undo(t.Context(), errors.New("no port")); undone || err != nil {
			t.Errorf("nothing is undone: %v", err)
		}
		r.prepared()
		if undone, err := r.Undo(t.Context(), errors.New("no port")); undone || err != nil {
			t.Errorf("what is not done is undone: %v", err)
		}
		r.use(r.Apply)
		pending := r.path(pendingName)
		copied := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(copied, os.DirFS(pending)); err != nil {
			t.Fatal(err)
		}
		if undone, err := r.Undo(t.Context(), errors.New("no port")); !undone || err != nil {
			t.Fatal(undone, err)
		}
		r.has("old", hub.RestoreFailed)
		if last, err := readRestore(r.path(lastFile)); err != nil || !strings.Contains(last.Problem, "no port") {
			t.Errorf("%+v, %v", last, err)
		}
		if err := os.CopyFS(pending, os.DirFS(copied)); err != nil { // it has crashed before it was over
			t.Fatal(err)
		}
		r.use(r.Apply)
		r.has("new", hub.RestorePending)
		if undone, err := r.Undo(t.Context(), errors.New("no port")); !undone || err != nil {
			t.Fatal(undone, err)
		}
		r.has("old", hub.RestoreFailed)
	})
}

// What cannot be restored when the server starts, such as a file that was damaged meanwhile, does not
// keep it from that.
func TestDamagedRestore(t *testing.T) {
	storetest.Each(t, func(t *testing.T, where string) {
		for what, damage := range map[string]func(r *restoring) error{
			"the file":   func(r *restoring) error { return os.Truncate(r.path(pendingName, preparedFile), 5000) },
			"no file":    func(r *restoring) error { return os.Remove(r.path(pendingName, preparedFile)) },
			"the record": func(r *restoring) error { return os.Truncate(r.path(pendingName, recordFile), 5) },
			"no place": func(r *restoring) error {
				return os.WriteFile(filepath.Join(r.StateDir, backupsFolder), nil, 0)
			},
		} {
			place := where
			if store.IsPostgres(where) {
				place = storetest.Database(t)
			}
			r := newRestoring(t, place)
			r.prepared()
			if err := damage(r); err != nil {
				t.Fatal(err)
			}
			r.use(r.Apply)
			t.Log(what)
			r.has("old", hub.RestoreFailed)
		}
	})
}

// The workspaces of sessions that the restored content does not have are marked before it is there.
func TestRestoreKeepsWorkspaces(t *testing.T) {
	r := newRestoring(t, "")
	all, err := workspace.Open(filepath.Join(r.StateDir, "workspaces"))
	if err != nil {
		t.Fatal(err)
	}
	id, err := all.New()
	if err != nil {
		t.Fatal(err)
	}
	r.use(func(ctx context.Context, db *store.DB) error {
		return db.PutSession(ctx, session.Record{ID: "s", Owner: "user:old", Template: "host", Flavor: "small",
			Workspace: id, State: record.Live})
	})
	r.prepared()
	r.use(r.Apply)
	if kept, err := all.Kept(); err != nil || !slices.Equal(kept, []string{id}) {
		t.Errorf("kept are %v, %v", kept, err)
	}
}
