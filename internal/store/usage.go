package store

import (
	"context"
	"database/sql"
	"maps"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/session/usage"
)

var _ usage.HistoryStore = (*DB)(nil)

// AddUsage implements usage.HistoryStore.
func (s *DB) AddUsage(ctx context.Context, used map[usage.Key]usage.Used, seen map[string]time.Duration) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	own, err := s.ownUnits(ctx, tx)
	if err != nil {
		return err
	}
	if own != nil {
		used = maps.Clone(used)
		maps.DeleteFunc(used, func(k usage.Key, _ usage.Used) bool { return !own[auth.UnitOf(k.Owner)] })
	}
	placed, err := placedUsage(ctx, tx, used)
	if err != nil {
		return err
	}
	for k, u := range placed {
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

// ownUnits returns the units for which this server acts; nil: it acts for all. What an operator asks of this server alone
// counts for a principal of another server: it must not keep the rest from being stored.
func (s *DB) ownUnits(ctx context.Context, tx *sql.Tx) (map[string]bool, error) {
	if !s.member {
		return nil, nil
	}
	list, err := queryAll(ctx, tx, func(row scanner) (unit string, err error) { return unit, row.Scan(&unit) },
		`SELECT principal FROM sandlot_owners WHERE number = CAST(current_setting('sandlot.replica') AS bigint)`)
	own := map[string]bool{}
	for _, unit := range list {
		own[unit] = true
	}
	return own, err
}

// placedUsage returns what was used by the keys of rows, which are bounded for each day.
func placedUsage(ctx context.Context, tx *sql.Tx, used map[usage.Key]usage.Used) (map[usage.Key]usage.Used, error) {
	placed, days := map[usage.Key]usage.Used{}, map[int64]*usage.Keys{}
	for k, u := range used {
		keys := days[k.Day]
		if keys == nil {
			keys = &usage.Keys{}
			days[k.Day] = keys
			if _, err := queryAll(ctx, tx, func(row scanner) (none struct{}, err error) {
				k := usage.Key{Day: k.Day}
				if err = row.Scan(&k.Owner, &k.Session); err == nil {
					keys.Add(k)
				}
				return none, err
			}, `SELECT owner, session FROM usage_days WHERE day = ?`, k.Day); err != nil {
				return nil, err
			}
		}
		k = keys.Place(k)
		placed[k] = placed[k].Plus(u)
	}
	return placed, nil
}

// addUsage adds to one row.
func addUsage(ctx context.Context, tx *sql.Tx, k usage.Key, u usage.Used) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO usage_days (day, owner, session, cpu_ms, memory, disk, sent, received, calls)
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
	all := map[usage.Key]usage.Used{}
	_, err := queryAll(ctx, s.db, func(row scanner) (none struct{}, err error) {
		var r usageRow
		var cpu int64
		err = row.Scan(&r.Day, &r.Owner, &r.Session, &cpu, &r.Memory, &r.Disk, &r.Sent, &r.Received, &r.Calls)
		r.CPU = time.Duration(cpu) * time.Millisecond
		switch {
		case err != nil:
		case owner == "":
			usage.SumOfAll(all, r.Key, r.Used)
		default:
			all[r.Key] = r.Used
		}
		return none, err
	}, query, args...)
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
