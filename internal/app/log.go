package app

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"sandlot/internal/api"
)

// Logger returns the server's logger. It writes lines of key=value, or JSON, and adds the request's id to
// each line.
func Logger(w io.Writer, level string, json bool) *slog.Logger {
	levels := map[string]slog.Level{"DEBUG": slog.LevelDebug, "INFO": slog.LevelInfo, "WARNING": slog.LevelWarn,
		"ERROR": slog.LevelError}
	options := &slog.HandlerOptions{Level: levels[strings.ToUpper(level)]}
	var h slog.Handler = slog.NewTextHandler(w, options)
	if json {
		h = slog.NewJSONHandler(w, options)
	}
	return slog.New(requestHandler{h})
}

type requestHandler struct{ slog.Handler }

func (h requestHandler) Handle(ctx context.Context, r slog.Record) error {
	if id := api.RequestID(ctx); id != "" {
		r.AddAttrs(slog.String("request", id))
	}
	return h.Handler.Handle(ctx, r)
}

func (h requestHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return requestHandler{h.Handler.WithAttrs(a)}
}

func (h requestHandler) WithGroup(name string) slog.Handler {
	return requestHandler{h.Handler.WithGroup(name)}
}
