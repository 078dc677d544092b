package tool

import "context"

// progressKey is the key of a function in a context.
type progressKey struct{}

// WithProgress returns a context with the function that tells a call's client how far something is on which the call
// waits; nil: the client wants no such texts.
func WithProgress(ctx context.Context, tell func(text string)) context.Context {
	if tell == nil {
		return ctx
	}
	return context.WithValue(ctx, progressKey{}, tell)
}

// ProgressOf returns that function, or nil.
func ProgressOf(ctx context.Context) func(text string) {
	tell, _ := ctx.Value(progressKey{}).(func(text string))
	return tell
}
