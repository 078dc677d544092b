package store

import (
	"context"
	"database/sql"
	"time"

	"sandlot/internal/session/usage"
)

var _ usage.HistoryStore = (*DB)(nil)

// maxUsageSessions is how many sessions of a principal have rows of their own on one day.
const maxUsageSessions = 200

// AddUsage implements usage.HistoryStore.
func (s *DB) AddUsage(ctx context.Context, used map[usage.Key]usage.Used, seen map[string]time.Duration) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for k, u := range used {
		if err := addUsage(ctx, tx, k, u); err != nil {
			return err
		}
	}
	for id, cpu := range seen {
		if _, err := tx.ExecContext(ctx, `UPDATE sessions SET cpu_seen = ? WHERE id = ?`, cpu.Milliseconds(),
			id); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// addUsage adds to one row. The sessions of a principal and a day beyond maxUsageSessions have one row together.
func addUsage(ctx context.Context, tx *sql.Tx, k usage.Key, u usage.Used) error {
	var has bool
	err := tx.QueryRowContext(ctx, `SELECT COUNT(*) > 0 FROM usage_days WHERE day = ? AND owner = ? AND session = ?`,
		k.Day, k.Owner, k.Session).Scan(&has)
	if err != nil {
		return err
	}
	if !has {
		var rows int
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM usage_days WHERE day = ? AND owner = ?`, k.Day,
			k.Owner).Scan(&rows); err != nil {
			return err
		}
		if rows >= maxUsageSessions {
			k.Session = ""
		}
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO usage_days (day, owner, session, cpu_ms, memory, disk, sent, received, calls)
		VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (day, owner, session) DO UPDATE SET
		cpu_ms = usage_days.cpu_ms + excluded.cpu_ms, sent = usage_days.sent + excluded.sent,
		memory = CASE WHEN excluded.memory > usage_days.memory THEN excluded.memory ELSE usage_days.memory END,
		disk = CASE WHEN excluded.disk > usage_days.disk THEN excluded.disk ELSE usage_days.disk END,
		received = usage_days.received + excluded.received, calls = usage_days.calls + excluded.calls`,
		k.Day, k.Owner, k.Session, u.CPU.Milliseconds(), u.Memory, u.Disk, u.Sent, u.Received, u.Calls)
	return err
}

// usageRow is one row of usage.
type usageRow struct {
	usage.Key
	usage.Used
}

// Usage implements usage.HistoryStore.
func (s *DB) Usage(ctx context.Context, owner string, since int64) (map[usage.Key]usage.Used, error) {
	query, args := `SELECT day, owner, session, cpu_ms, memory, disk, sent, received, calls FROM usage_days
		WHERE owner = ? AND day >= ?`, []any{owner, since}
	if owner == "" {
		query, args = `SELECT day, owner, '', SUM(cpu_ms), MAX(memory), MAX(disk), SUM(sent), SUM(received), SUM(calls)
			FROM usage_days WHERE day >= ? GROUP BY day, owner`, []any{since}
	}
	rows, err := queryAll(ctx, s.db, func(row scanner) (r usageRow, err error) {
		var cpu int64
		err = row.Scan(&r.Day, &r.Owner, &r.Session, &cpu, &r.Memory, &r.Disk, &r.Sent, &r.Received, &r.Calls)
		r.CPU = time.Duration(cpu) * time.Millisecond
		return r, err
	}, query, args...)
	all := map[usage.Key]usage.Used{}
	for _, r := range rows {
		all[r.Key] = r.Used
	}
	return all, err
}

// RemoveUsage implements usage.HistoryStore.
func (s *DB) RemoveUsage(ctx context.Context, before int64) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM usage_days WHERE day < ?`, before)
	return err
}

// CountedCPU implements usage.HistoryStore.
func (s *DB) CountedCPU(ctx context.Context) (map[string]time.Duration, error) {
	type row struct {
		id  string
		cpu int64
	}
	list, err := queryAll(ctx, s.db, func(r scanner) (x row, err error) { return x, r.Scan(&x.id, &x.cpu) },
		`SELECT id, cpu_seen FROM sessions WHERE cpu_seen > 0`)
	all := map[string]time.Duration{}
	for _, x := range list {
		all[x.id] = time.Duration(x.cpu) * time.Millisecond
	}
	return all, err
}
