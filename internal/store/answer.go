package store

import (
	"context"
	"slices"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/question"
)

// PutAnswer implements question.Store. It replaces the answer about the same subject in one transaction.
func (s *DB) PutAnswer(ctx context.Context, a question.Answer) error {
	allowed := 0
	if a.Allowed {
		allowed = 1
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	_, err = tx.ExecContext(ctx, `DELETE FROM answers WHERE principal = ? AND operation = ? AND detail = ? AND shown = ?`,
		a.Principal, string(a.Operation), a.Detail, a.Shown)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO answers (id, principal, operation, detail, shown, allowed, given_by, given)
		VALUES (?,?,?,?,?,?,?,?)`, a.ID, a.Principal, string(a.Operation), a.Detail, a.Shown, allowed, a.By,
		a.Given.UnixMilli())
	if err != nil {
		return err
	}
	return tx.Commit()
}

// Answers implements question.Store.
func (s *DB) Answers(ctx context.Context) ([]question.Answer, error) {
	return queryAll(ctx, s.db, func(row scanner) (a question.Answer, err error) {
		var allowed int
		var given int64
		err = row.Scan(&a.ID, &a.Principal, &a.Operation, &a.Detail, &a.Shown, &allowed, &a.By, &given)
		a.Allowed, a.Given = allowed == 1, time.UnixMilli(given).UTC()
		return a, err
	}, `SELECT id, principal, operation, detail, shown, allowed, given_by, given FROM answers WHERE `+
		s.own("principal")+` ORDER BY given, id`)
}

// AnswersOf returns the answers of a unit's principals (auth.UnitOf), for which this server acts from now on.
func (s *DB) AnswersOf(ctx context.Context, unit string) ([]question.Answer, error) {
	all, err := s.Answers(ctx)
	return slices.DeleteFunc(all, func(a question.Answer) bool { return auth.UnitOf(a.Principal) != unit }), err
}

// RemoveAnswer implements question.Store.
func (s *DB) RemoveAnswer(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM answers WHERE id = ?`, id)
	return err
}
