package finder

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	_ "modernc.org/sqlite" // registers the driver
)

// table has the words of entries in a table of FTS5, in memory. It follows the entries: only those that have changed
// are read again. The zero value has none.
type table struct {
	db      *sql.DB // nil: there is no table
	entries []entry // that it has the words of
	rows    []int64 // their rows
	next    int64   // the next row
	removed int     // how many rows were removed of which FTS5 may still keep something
}

// schema makes the table. It keeps no texts, only where their words occur: entries have them.
const schema = `CREATE VIRTUAL TABLE words USING fts5(name, title, server, arguments, description, content='',
	tokenize="porter unicode61 remove_diacritics 2")`

// The statements that change the table. FTS5 removes a row if it is told the texts that the row was made of.
const (
	insertRow = `INSERT INTO words (rowid, name, title, server, arguments, description) VALUES (?, ?, ?, ?, ?, ?)`
	removeRow = `INSERT INTO words (words, rowid, name, title, server, arguments, description)
		VALUES ('delete', ?, ?, ?, ?, ?, ?)`
	optimize = `INSERT INTO words (words) VALUES ('optimize')`
)

// ranking weighs the columns: a word in a name says more than one in a description.
const ranking = `bm25(words, 10.0, 6.0, 4.0, 2.0, 1.0)`

// matchTimeout is how long a search may take. A search does not end with its client: the database would end with it.
const matchTimeout = 10 * time.Second

// match returns the numbers of the entries that match a query in the words of FTS5, the best first.
func (t *table) match(query string, entries []entry) (all []int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), matchTimeout)
	defer cancel()
	defer func() {
		if err != nil {
			t.close() // the next search makes it again
		}
	}()
	if err := t.follow(ctx, entries); err != nil {
		return nil, fmt.Errorf("making the index of tools: %w", err)
	}
	numbers := make(map[int64]int, len(t.rows))
	for n, row := range t.rows {
		numbers[row] = n
	}
	rows, err := t.db.QueryContext(ctx, `SELECT rowid, `+ranking+` AS points FROM words WHERE words MATCH ?
		ORDER BY points LIMIT 10000`, query)
	if err != nil {
		return nil, fmt.Errorf("searching the index of tools: %w", err)
	}
	defer rows.Close()
	points := map[int]float64{} // the least are the best
	for rows.Next() {
		var row int64
		var p float64
		if err := rows.Scan(&row, &p); err != nil {
			return nil, err
		}
		if n, ok := numbers[row]; ok {
			points[n] = p
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Or(cmp.Compare(points[a], points[b]), a-b) })
	return all, rows.Err()
}

// follow makes the words belong to these entries.
func (t *table) follow(ctx context.Context, entries []entry) error {
	rows, gone := t.compare(entries)
	if len(gone) > len(t.entries)-len(gone) { // to make it again is less work
		t.close()
		rows, gone = t.compare(entries)
	}
	if t.db == nil {
		if err := t.open(ctx); err != nil {
			return err
		}
	}
	if err := t.change(ctx, entries, rows, gone); err != nil {
		return err
	}
	t.entries, t.rows, t.removed = entries, rows, t.removed+len(gone)
	if t.removed <= len(entries) {
		return nil
	}
	t.removed = 0
	_, err := t.db.ExecContext(ctx, optimize)
	return err
}

// compare returns the rows of entries, 0 for those that have none yet, and the numbers of the entries of the table that
// are no longer there.
func (t *table) compare(entries []entry) (rows []int64, gone []int) {
	type key struct {
		kind            kind
		server, exposed string
	}
	before, kept := make(map[key]int, len(t.entries)), make([]bool, len(t.entries))
	for n, e := range t.entries {
		before[key{e.kind, e.server, e.exposed}] = n
	}
	rows = make([]int64, len(entries))
	for i, e := range entries {
		n, ok := before[key{e.kind, e.server, e.exposed}]
		if ok && !kept[n] && t.entries[n].equal(e) {
			rows[i], kept[n] = t.rows[n], true
		}
	}
	for n := range t.entries {
		if !kept[n] {
			gone = append(gone, n)
		}
	}
	return rows, gone
}

// change removes the rows of the entries that are gone, and gives rows to the entries that have none.
func (t *table) change(ctx context.Context, entries []entry, rows []int64, gone []int) error {
	if len(gone) == 0 && !slices.Contains(rows, 0) {
		return nil
	}
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	remove, err := tx.PrepareContext(ctx, removeRow)
	if err != nil {
		return err
	}
	for _, n := range gone {
		if err := t.entries[n].words().write(remove, t.rows[n]); err != nil {
			return err
		}
	}
	insert, err := tx.PrepareContext(ctx, insertRow)
	if err != nil {
		return err
	}
	for n, e := range entries {
		if rows[n] != 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		t.next++
		rows[n] = t.next
		if err := e.words().write(insert, rows[n]); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// write runs a statement that changes a row. The driver would begin a goroutine to watch a context that can end.
func (w wordsOf) write(s *sql.Stmt, row int64) error {
	_, err := s.ExecContext(context.Background(), row, w.name, w.title, w.server, w.arguments, w.description)
	return err
}

// open makes the table, without rows.
func (t *table) open(ctx context.Context) error {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1) // each connection has a database of its own
	if _, err := db.ExecContext(ctx, schema); err != nil {
		db.Close()
		return err
	}
	t.db = db
	return nil
}

// close frees the table. It can be used again.
func (t *table) close() {
	if t.db != nil {
		t.db.Close()
	}
	*t = table{}
}
