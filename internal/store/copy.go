package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// table is a table of the migrations.
type table struct {
	name     string
	columns  []string // quoted
	booleans []bool   // which columns are
	parents  []string // tables that its rows refer to
}

// tablesOf returns the tables of an SQLite database, each after those that its rows refer to.
func tablesOf(ctx context.Context, db *sql.DB) ([]table, error) {
	names, err := queryAll(ctx, db, func(row scanner) (name string, err error) { return name, row.Scan(&name) },
		`SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY name`)
	if err != nil {
		return nil, err
	}
	var all []table
	for _, name := range names {
		t := table{name: name}
		if _, err := queryAll(ctx, db, func(row scanner) (none struct{}, err error) {
			var column, kind string
			err = row.Scan(&column, &kind)
			t.columns = append(t.columns, fmt.Sprintf("%q", column))
			t.booleans = append(t.booleans, strings.EqualFold(kind, "BOOLEAN"))
			return none, err
		}, `SELECT name, type FROM pragma_table_info(?) ORDER BY cid`, name); err != nil {
			return nil, err
		}
		if t.parents, err = queryAll(ctx, db, func(row scanner) (p string, err error) { return p, row.Scan(&p) },
			`SELECT "table" FROM pragma_foreign_key_list(?)`, name); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return parentsFirst(all)
}

func parentsFirst(all []table) ([]table, error) {
	var sorted []table
	for len(all) > 0 {
		i := slices.IndexFunc(all, func(t table) bool {
			return !slices.ContainsFunc(all, func(o table) bool {
				return o.name != t.name && slices.Contains(t.parents, o.name)
			})
		})
		if i < 0 {
			return nil, errors.New("tables refer to each other in a circle")
		}
		sorted, all = append(sorted, all[i]), slices.Delete(all, i, i+1)
	}
	return sorted, nil
}

// copiedAtOnce is how many rows one statement inserts.
const copiedAtOnce = 64

// replaceAll replaces the rows of tables by another database's.
func replaceAll(ctx context.Context, from, to *sql.Tx, tables []table) error {
	for _, t := range slices.Backward(tables) {
		if _, err := to.ExecContext(ctx, fmt.Sprintf(`DELETE FROM %q`, t.name)); err != nil {
			return err
		}
	}
	for _, t := range tables {
		if err := t.copyRows(ctx, from, to); err != nil {
			return fmt.Errorf("table %s: %w", t.name, err)
		}
	}
	return nil
}

func (t *table) copyRows(ctx context.Context, from, to *sql.Tx) error {
	columns := strings.Join(t.columns, ", ")
	rows, err := from.QueryContext(ctx, fmt.Sprintf(`SELECT %s FROM %q`, columns, t.name))
	if err != nil {
		return err
	}
	defer rows.Close()
	one := "(?" + strings.Repeat(",?", len(t.columns)-1) + ")"
	var values []any
	flush := func() error {
		n := len(values) / len(t.columns)
		if n == 0 {
			return nil
		}
		_, err := to.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %q (%s) VALUES %s%s`, t.name, columns, one,
			strings.Repeat(","+one, n-1)), values...)
		values = values[:0]
		return err
	}
	for rows.Next() {
		row, err := t.scan(rows)
		if err != nil {
			return err
		}
		if values = append(values, row...); len(values) == copiedAtOnce*len(t.columns) {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return errors.Join(rows.Err(), flush())
}

// scan returns the values of a row. SQLite has no type of its own for booleans.
func (t *table) scan(rows *sql.Rows) ([]any, error) {
	values, targets := make([]any, len(t.columns)), make([]any, len(t.columns))
	for i := range values {
		targets[i] = &values[i]
	}
	err := rows.Scan(targets...)
	for i, v := range values {
		if n, ok := v.(int64); ok && t.booleans[i] {
			values[i] = n != 0
		}
	}
	return values, err
}
