package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/session"
	"sandlot/internal/session/record"
)

// A restore has two steps. Prepare checks a backup whole, and makes a file of it that no hostile hand has written.
// Restore then replaces the content of a database by that file's, in one transaction.

// Prepare checks a backup, and writes its content to the new file prepared, whose tables belong to this version. It
// opens and changes the file backup, which nobody else uses. check gets the content before Prepare accepts it.
func Prepare(ctx context.Context, backup, prepared string, check func(*DB) error) (err error) {
	ctx = withoutTimeout(ctx)
	if err := checkSize(backup); err != nil {
		return refuseBackup(err)
	}
	from := &DB{db: sqlitePool(backup)}
	defer func() { err = errors.Join(err, from.db.Close()) }()
	if err := from.checkBackup(ctx, prepared); err != nil {
		return refuseBackup(err)
	}
	if err := from.copyTo(ctx, prepared); err != nil {
		return refuseBackup(err)
	}
	to := &DB{db: sqlitePool(prepared)}
	err = to.prepare(ctx)
	if err == nil {
		err = to.checkContent(ctx)
	}
	if err == nil {
		err = check(to)
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return refuseBackup(err)
	}
	return finishBackup(ctx, prepared)
}

// checkSize checks that an SQLite file has all its pages, as its header says: SQLite itself reads a part of the last
// one as if zeros followed.
func checkSize(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	var header [100]byte
	if _, err := f.ReadAt(header[:], 0); err != nil || !bytes.HasPrefix(header[:], []byte("SQLite format 3\x00")) {
		return nil // SQLite says what it is
	}
	page := int64(binary.BigEndian.Uint16(header[16:]))
	if page == 1 {
		page = 1 << 16
	}
	if want := page * int64(binary.BigEndian.Uint32(header[28:])); st.Size() != want {
		return fmt.Errorf("it is damaged: it has %d bytes, and not %d", st.Size(), want)
	}
	return nil
}

func refuseBackup(err error) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Kind == fault.ResourceLimit { // the disk is full
		return f
	}
	return fault.Wrap(fault.InvalidParameters, err, "the backup cannot be restored: %v; nothing was changed", err)
}

// checkBackup checks a backup, and brings it up to date. It makes a database in freshFile, to compare with.
func (s *DB) checkBackup(ctx context.Context, freshFile string) error {
	var id, others int
	if err := s.db.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&id); err != nil {
		return fmt.Errorf("it is damaged, or no SQLite file: %w", err)
	}
	if id != backupID {
		return errors.New("it is not a backup that sandlot backup has written")
	}
	var text string
	if err := s.db.QueryRowContext(ctx, `PRAGMA integrity_check`).Scan(&text); err != nil || text != "ok" {
		return errors.Join(fmt.Errorf("it is damaged: %s", text), err)
	}
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')`).
		Scan(&others); err != nil || others > 0 {
		return errors.Join(errors.New("it has triggers or views, which a backup never has"), err)
	}
	if err := s.migrate(ctx); err != nil {
		return err
	}
	if err := s.checkTables(ctx, freshFile); err != nil {
		return err
	}
	var violations int
	err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM pragma_foreign_key_check`).Scan(&violations)
	if err == nil && violations > 0 {
		err = errors.New("it is damaged: rows refer to rows that do not exist")
	}
	return err
}

// checkTables checks that the database has the tables of the migrations, and no others. It makes a database in
// freshFile.
func (s *DB) checkTables(ctx context.Context, freshFile string) error {
	fresh := &DB{db: sqlitePool(freshFile)}
	defer fresh.Close()
	if err := fresh.migrate(ctx); err != nil {
		return err
	}
	want, err := tablesOf(ctx, fresh.db)
	if err != nil {
		return err
	}
	got, err := tablesOf(ctx, s.db)
	if err == nil && !reflect.DeepEqual(got, want) {
		err = errors.New("its tables do not belong to its version")
	}
	return err
}

// validID matches the ids of workspaces, which are names of folders.
var validID = regexp.MustCompile(`^[a-z2-7]{26}$`)

// checkContent reads what servers read, so that none fails later because of a value that no Sandlot has stored.
func (s *DB) checkContent(ctx context.Context) error {
	sessions, err := s.Sessions(ctx)
	if err != nil {
		return fmt.Errorf("its sessions: %w", err)
	}
	workspaces := map[string]bool{}
	for _, r := range sessions {
		if _, taken := workspaces[r.Workspace]; taken || !validID.MatchString(r.Workspace) || r.ID == "" {
			return fmt.Errorf("no session has such a workspace, or it is another one's: %.200q, of the session %.200q",
				r.Workspace, r.ID)
		}
		workspaces[r.Workspace] = true
	}
	connections, err := s.Connected(ctx)
	for _, c := range connections {
		_, readErr := s.Connections(ctx, c[0])
		err = errors.Join(err, readErr)
	}
	for _, read := range []func() error{
		func() error { _, err := s.Tokens(ctx); return err },
		func() error { _, err := s.Days(ctx, 0); return err },
		func() error { _, err := s.Ports(ctx); return err },
		func() error { _, err := s.Snapshots(ctx); return err },
		func() error { _, err := s.SealedRows(ctx); return err },
		func() error { _, err := s.KeyFingerprint(ctx); return err },
		func() error { _, err := s.Answers(ctx); return err },
		func() error { _, _, err := s.EventRange(ctx); return err },
		func() error { _, err := s.Epoch(ctx); return err },
	} {
		err = errors.Join(err, read())
	}
	return err
}

// Epoch returns what distinguishes the ids of stored events from other databases'. After Restore it is the id
// of the restore.
func (s *DB) Epoch(ctx context.Context) (epoch string, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT epoch FROM event_stream`).Scan(&epoch)
	return epoch, err
}

// Workspaces are the folders that sessions have on the machine of the server.
type Workspaces interface {
	// Has reports whether a workspace is there.
	Has(id string) bool
	// Keep makes workspaces stay that belong to no session.
	Keep(ids []string) error
}

// Restore replaces all that the database has by the content of a file that Prepare has written, in one transaction,
// which has the id given. No server may use the database: for SQLite the caller has locked the state folder. Before
// the transaction ends, the workspaces that are there and that no session has any more are kept.
func (s *DB) Restore(ctx context.Context, prepared, id string, there Workspaces) (err error) {
	ctx = withoutTimeout(ctx)
	if _, err := os.Stat(prepared); err != nil {
		return err
	}
	from := &DB{db: sqlitePool(prepared)}
	defer func() { err = errors.Join(err, from.db.Close()) }()
	if err := from.migrate(ctx); err != nil { // an earlier program may have written it
		return err
	}
	before, err := s.Sessions(ctx)
	if err != nil {
		return err
	}
	after, err := from.Sessions(ctx)
	if err != nil {
		return err
	}
	snapshots, err := s.Snapshots(ctx)
	if err != nil {
		return err
	}
	same, gone := match(before, after, there.Has)
	return s.withDurability(ctx, func(c *sql.Conn) error {
		return s.replace(ctx, from, c, func(tx *sql.Tx) error {
			if err := errors.Join(goOn(ctx, tx, same), keepSnapshots(ctx, tx, snapshots)); err != nil {
				return err
			}
			// The ids of events begin again at an earlier one, which clients must not take for those that they have
			// seen.
			if _, err := tx.ExecContext(ctx, `UPDATE event_stream SET epoch = ?, open = 0`, id); err != nil {
				return err
			}
			if s.postgres {
				if err := setIdentities(ctx, tx); err != nil {
					return err
				}
			}
			return there.Keep(gone)
		})
	})
}

// match returns the sessions of before that go on as they are, since they are in after too, and the workspaces that no
// session will have. A session gets another workspace when it goes back to a snapshot: the later one has its files,
// unless somebody has put back the folders of the backup's time.
func match(before, after []session.Record, has func(workspace string) bool) (same []session.Record, gone []string) {
	index, owners := map[[2]string]int{}, map[string]string{} // by id and owner; sessions, by their workspaces
	for i, o := range after {
		index[[2]string{o.ID, o.Owner}], owners[o.Workspace] = i, o.ID
	}
	var earlier []string
	for _, r := range before {
		i, found := index[[2]string{r.ID, r.Owner}]
		if !found || r.State == record.Removed {
			continue
		}
		o := after[i]
		if o.Workspace != r.Workspace {
			if _, taken := owners[r.Workspace]; taken || !has(r.Workspace) {
				continue
			}
			delete(owners, o.Workspace)
			owners[r.Workspace] = r.ID
			if has(o.Workspace) {
				earlier = append(earlier, o.Workspace)
			}
		}
		same = append(same, r)
	}
	for _, r := range before {
		if _, owned := owners[r.Workspace]; !owned && r.State != record.Removed {
			gone = append(gone, r.Workspace)
		}
	}
	return same, append(gone, earlier...)
}

// goOn makes sessions that were there before the restore keep their files and their sandboxes, and sleep on. A restore
// is a use of all sessions: the times of the backup may be so long ago that their files would be removed, and ends of
// life that were reached since then count no more. The images of the others are of the backup's time, and gone.
func goOn(ctx context.Context, tx *sql.Tx, same []session.Record) error {
	now := time.Now().UnixMilli()
	if _, err := tx.ExecContext(ctx, `UPDATE sessions SET used = ?, slept = 0, image = '',
		ends_at = CASE WHEN ends_at < ? THEN 0 ELSE ends_at END, on_end = CASE WHEN ends_at < ? THEN '' ELSE on_end END,
		lost = CASE WHEN image <> '' AND lost = '' THEN 'a backup was restored' ELSE lost END,
		state = CASE WHEN state = ? THEN ? ELSE state END`, now, now, now, record.Asleep, record.Stopped); err != nil {
		return err
	}
	for _, r := range same {
		if _, err := tx.ExecContext(ctx, `UPDATE sessions SET sandbox = ?, runtime = ?, template = ?, flavor = ?,
			state = ?, lost = ?, image = ?, slept = ?, workspace = ?, secrets = ?,
			scope = ?, paused_by = ?, paused_at = ?, ends_at = ?, on_end = ? WHERE id = ? AND owner = ?`, r.Sandbox, r.Runtime,
			r.Template, r.Flavor, r.State, r.Lost, r.Image, milli(r.Slept), r.Workspace,
			strings.Join(r.Secrets, " "), r.Scope, r.PausedBy, milli(r.PausedAt), milli(r.EndsAt), r.OnEnd,
			r.ID, r.Owner); err != nil {
			return err
		}
	}
	return nil
}

// replace replaces the content of the database by that of another one of the same version, and calls finish, in one
// transaction.
func (s *DB) replace(ctx context.Context, from *DB, c *sql.Conn, finish func(*sql.Tx) error) error {
	tables, err := tablesOf(ctx, from.db)
	if err != nil {
		return err
	}
	reading, err := from.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer reading.Rollback()
	writing, err := c.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer writing.Rollback()
	if err := replaceAll(ctx, reading, writing, tables); err != nil {
		return err
	}
	if err := finish(writing); err != nil {
		return err
	}
	return writing.Commit()
}

// setIdentities makes the next ids of rows follow those that are there.
func setIdentities(ctx context.Context, tx *sql.Tx) error {
	type column struct{ table, name string }
	rows, err := tx.QueryContext(ctx, `SELECT table_name, column_name FROM information_schema.columns
		WHERE is_identity = 'YES' AND table_schema = current_schema()`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var all []column
	for rows.Next() {
		var c column
		if err := rows.Scan(&c.table, &c.name); err != nil {
			return err
		}
		all = append(all, c)
	}
	if err := errors.Join(rows.Close(), rows.Err()); err != nil {
		return err
	}
	for _, c := range all {
		if _, err := tx.ExecContext(ctx, fmt.Sprintf(`SELECT setval(pg_get_serial_sequence('%q', '%s'),
			coalesce(max(%q), 0) + 1, false) FROM %q`, c.table, c.name, c.name, c.table)); err != nil {
			return err
		}
	}
	return nil
}
