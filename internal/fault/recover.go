package fault

import (
	"context"
	"log/slog"
	"runtime/debug"
)

// Recover turns a panic into a fault in *err, and logs it. It must be deferred directly. It is
// needed in goroutines without another recover, where a panic would end the whole server.
func Recover(ctx context.Context, log *slog.Logger, what string, err *error) {
	r := recover()
	if r == nil {
		return
	}
	log.ErrorContext(ctx, "panic", "in", what, "panic", r, "stack", string(debug.Stack()))
	*err = New(Internal, "something went wrong inside Sandlot")
}
