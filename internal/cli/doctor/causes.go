package doctor

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
)

// causes is the log of a temporary server. It keeps why a request has failed: the server's answer does not say it,
// but refers to its log, and to this command.
type causes struct {
	slog.Handler
	last *atomic.Pointer[string]
}

func newCauses(next slog.Handler) causes { return causes{next, new(atomic.Pointer[string])} }

// Enabled implements slog.Handler.
func (c causes) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || c.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (c causes) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "cause" { // as package api names it
			text := oneLine(a.Value.String())
			c.last.Store(&text)
		}
		return true
	})
	if !c.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (c causes) WithAttrs(all []slog.Attr) slog.Handler {
	return causes{c.Handler.WithAttrs(all), c.last}
}

// WithGroup implements slog.Handler.
func (c causes) WithGroup(name string) slog.Handler { return causes{c.Handler.WithGroup(name), c.last} }

// of returns the cause of the error of a request, as far as the log has one.
func (c causes) of(err error) error {
	if cause := c.last.Swap(nil); err != nil && cause != nil {
		return errors.New(*cause)
	}
	return err
}
