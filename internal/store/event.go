package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"sandlot/internal/audit"
)

// OpenEvents implements audit.Store.
func (s *DB) OpenEvents(ctx context.Context) (p audit.Previous, err error) {
	var head uint64
	err = s.db.QueryRowContext(ctx, `SELECT epoch, last_id, (SELECT max(head_id) FROM event_chains), open
		FROM event_stream`).Scan(&p.Epoch, &p.LastID, &head, &p.Crashed)
	p.LastID = max(p.LastID, head)
	if err == nil {
		_, err = s.db.ExecContext(ctx, `UPDATE event_stream SET open = 1`)
	}
	return p, err
}

// CloseEvents implements audit.Store.
func (s *DB) CloseEvents(ctx context.Context, lastID uint64) error {
	_, err := s.db.ExecContext(ctx, `UPDATE event_stream SET open = 0, last_id = ?`, int64(lastID))
	return err
}

// eventColumns are the columns of one row.
const eventColumns = `id, chain, time, kind, principal, session, content, prev, hash`

// maxInsert is how many rows one statement inserts.
const maxInsert = 64

// AppendEvents implements audit.Store.
func (s *DB) AppendEvents(ctx context.Context, rows []audit.Row) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	chains, err := eventChains(ctx, tx)
	if err != nil {
		return err
	}
	added := map[audit.Chain]int{}
	var fresh []*audit.Row
	for i := range rows {
		r := &rows[i]
		ends := chains[r.Chain]
		if r.ID <= ends.Head.ID { // it was stored, but the answer was lost
			continue
		}
		fresh = append(fresh, r)
		r.Link(ends.Head.Hash)
		ends.Head = audit.Link{ID: r.ID, Hash: r.Hash}
		chains[r.Chain] = ends
		added[r.Chain]++
	}
	for part := range slices.Chunk(fresh, maxInsert) {
		args := make([]any, 0, 9*len(part))
		for _, r := range part {
			args = append(args, int64(r.ID), int(r.Chain), r.Time.UnixNano(), string(r.Kind), r.Principal, r.Session,
				r.Content, r.Prev[:], r.Hash[:])
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO events (`+eventColumns+`) VALUES (?,?,?,?,?,?,?,?,?)`+
			strings.Repeat(`,(?,?,?,?,?,?,?,?,?)`, len(part)-1), args...); err != nil {
			return refusedRow(err)
		}
	}
	for chain, n := range added {
		head := chains[chain].Head
		if _, err := tx.ExecContext(ctx, `UPDATE event_chains SET count = count + ?, head_id = ?, head_hash = ?
			WHERE chain = ?`, n, int64(head.ID), head.Hash[:], int(chain)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// refusedRow makes an error an audit.ErrRefused if the database works, but does not store such a row.
func refusedRow(err error) error {
	refused := false
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := e.Code[:min(len(e.Code), 2)]
		refused = class == "22" || class == "23" || class == "54" // data; constraints; limits
	}
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		refused = slices.Contains([]int{sqliteTooBig, sqliteConstraint, sqliteMismatch}, e.Code()&0xff)
	}
	if refused {
		return fmt.Errorf("%w: %w", audit.ErrRefused, err)
	}
	return err
}

// eventChains returns the ends of the chains.
func eventChains(ctx context.Context, tx *sql.Tx) (map[audit.Chain]audit.Ends, error) {
	rows, err := tx.QueryContext(ctx, `SELECT chain, anchor_id, anchor_hash, head_id, head_hash FROM event_chains`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[audit.Chain]audit.Ends{}
	for rows.Next() {
		var c audit.Chain
		var e audit.Ends
		var anchor, head []byte
		if err := rows.Scan(&c, &e.Anchor.ID, &anchor, &e.Head.ID, &head); err != nil {
			return nil, err
		}
		if len(anchor) != len(e.Anchor.Hash) || len(head) != len(e.Head.Hash) {
			return nil, fmt.Errorf("the ends of the chain %d of events are not hashes", c)
		}
		e.Anchor.Hash, e.Head.Hash = audit.Hash(anchor), audit.Hash(head)
		all[c] = e
	}
	return all, rows.Err()
}

// maxPruned is how many rows of a chain one transaction removes, so that others need not wait for long.
const maxPruned = 500

// Old events are removed when some have gathered: each removal is an event, too. There may be a hundredth more than what
// is kept, and one event, and they may be an hour older.
const (
	keptParts = 100
	keptOlder = time.Hour
)

// OldEvents implements audit.Store.
func (s *DB) OldEvents(ctx context.Context, before time.Time, keep int) ([]audit.Pruning, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	chains, err := eventChains(ctx, tx)
	if err != nil {
		return nil, err
	}
	var all []audit.Pruning
	for _, c := range []audit.Chain{audit.Main, audit.Noisy} {
		p := audit.Pruning{Chain: c, From: chains[c].Anchor}
		if p.To, err = lastOld(ctx, tx, c, before, keep); err != nil {
			return nil, err
		}
		if p.To.ID == 0 {
			continue
		}
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM events WHERE chain = ? AND id <= ?`, c,
			int64(p.To.ID)).Scan(&p.Count); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// lastOld returns the last event of a chain that is to be removed; the zero value: there is none. Only the beginning of
// a chain is removed: an old event behind a newer one stays until that one goes.
func lastOld(ctx context.Context, tx *sql.Tx, c audit.Chain, before time.Time, keep int) (last audit.Link, err error) {
	row := func(to any, query string, args ...any) {
		if err == nil {
			err = tx.QueryRowContext(ctx, query, args...).Scan(to)
		}
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
	}
	var count, oldest, number, aged int64
	row(&count, `SELECT count FROM event_chains WHERE chain = ?`, c)
	if excess := count - int64(keep); keep > 0 && excess > 1+int64(keep/keptParts) {
		row(&number, `SELECT id FROM events WHERE chain = ? ORDER BY id LIMIT 1 OFFSET ?`, c, excess-1)
	}
	row(&oldest, `SELECT time FROM events WHERE chain = ? ORDER BY id LIMIT 1`, c)
	if !before.IsZero() && oldest > 0 && oldest < before.Add(-keptOlder).UnixNano() {
		fresh := int64(math.MaxInt64)
		row(&fresh, `SELECT id FROM events WHERE chain = ? AND time >= ? ORDER BY id LIMIT 1`, c, before.UnixNano())
		row(&aged, `SELECT id FROM events WHERE chain = ? AND id < ? ORDER BY id DESC LIMIT 1`, c, fresh)
	}
	if last.ID = uint64(max(number, aged)); last.ID == 0 || err != nil {
		return audit.Link{}, err
	}
	var hash []byte
	row(&hash, `SELECT hash FROM events WHERE chain = ? AND id = ?`, c, int64(last.ID))
	if err == nil && len(hash) != len(last.Hash) {
		return audit.Link{}, &audit.Break{Chain: c, ID: last.ID, Why: "its hashes are none"}
	}
	if err == nil {
		last.Hash = audit.Hash(hash)
	}
	return last, err
}

// PruneEvents implements audit.Store. It makes the last event that it removes the chain's anchor.
func (s *DB) PruneEvents(ctx context.Context, p audit.Pruning) (more bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	rows, err := tx.QueryContext(ctx, `SELECT id, hash FROM events WHERE chain = ? AND id <= ? ORDER BY id LIMIT ?`,
		p.Chain, int64(p.To.ID), maxPruned)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	n, last, hash := 0, int64(0), []byte{}
	for rows.Next() {
		if err := rows.Scan(&last, &hash); err != nil {
			return false, err
		}
		n++
	}
	rows.Close()
	if err := rows.Err(); err != nil || n == 0 {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM events WHERE chain = ? AND id <= ?`, p.Chain, last); err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE event_chains SET count = count - ?, anchor_id = ?, anchor_hash = ?
		WHERE chain = ?`, n, last, hash, p.Chain); err != nil {
		return false, err
	}
	return n == maxPruned, tx.Commit()
}

func scanEvent(row scanner) (audit.Row, error) {
	var r audit.Row
	var at int64
	var prev, hash []byte
	err := row.Scan(&r.ID, &r.Chain, &at, &r.Kind, &r.Principal, &r.Session, &r.Content, &prev, &hash)
	if err == nil && (len(prev) != len(r.Prev) || len(hash) != len(r.Hash)) {
		return r, &audit.Break{Chain: r.Chain, ID: r.ID, Why: "its hashes are none"}
	}
	if err == nil {
		r.Time, r.Prev, r.Hash = time.Unix(0, at), audit.Hash(prev), audit.Hash(hash)
	}
	return r, err
}

// selection returns the condition for the rows that a query selects, and its arguments.
func selection(q audit.Query) (string, []any) {
	where, args := "id > ?", []any{int64(q.After)}
	add := func(condition string, arg any) { where, args = where+" AND "+condition, append(args, arg) }
	if q.Filter.Principal != "" {
		add("principal = ?", q.Filter.Principal)
	}
	if q.Filter.Session != "" {
		add("session = ?", q.Filter.Session)
	}
	if !q.Since.IsZero() {
		add("time >= ?", q.Since.UnixNano())
	}
	if n := len(q.Filter.Kinds); n > 0 {
		where += " AND kind IN (?" + strings.Repeat(",?", n-1) + ")"
		for _, k := range q.Filter.Kinds {
			args = append(args, string(k))
		}
	}
	return where, args
}

// Events implements audit.Store.
func (s *DB) Events(ctx context.Context, q audit.Query) ([]audit.Row, error) {
	where, args := selection(q)
	return queryAll(ctx, s.db, scanEvent, `SELECT `+eventColumns+` FROM events WHERE `+where+` ORDER BY id LIMIT ?`,
		append(args, q.Limit)...)
}

// BeforeNewest implements audit.Store.
func (s *DB) BeforeNewest(ctx context.Context, q audit.Query) (uint64, error) {
	where, args := selection(q)
	var first uint64
	err := s.db.QueryRowContext(ctx, `SELECT id FROM events WHERE `+where+` ORDER BY id DESC LIMIT 1 OFFSET ?`,
		append(args, q.Limit-1)...).Scan(&first)
	if errors.Is(err, sql.ErrNoRows) { // there are fewer
		return q.After, nil
	}
	return first - 1, err
}

// EventRange implements audit.Store.
func (s *DB) EventRange(ctx context.Context) (pruned, newest uint64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT max(anchor_id), max(head_id) FROM event_chains`).Scan(&pruned, &newest)
	return pruned, newest, err
}

// VerifyEvents verifies the chains of all stored events. A server may add events meanwhile.
func (s *DB) VerifyEvents(ctx context.Context) (audit.Report, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return audit.Report{}, err
	}
	defer tx.Rollback()
	chains, err := eventChains(ctx, tx)
	if err != nil {
		return audit.Report{}, err
	}
	return audit.Verify(chains, func(add func(*audit.Row) error) error {
		rows, err := tx.QueryContext(ctx, `SELECT `+eventColumns+` FROM events ORDER BY id`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r, err := scanEvent(rows)
			if err != nil {
				return err
			}
			if err := add(&r); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}
