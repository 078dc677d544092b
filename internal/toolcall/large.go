package toolcall

import (
	"context"
	"strconv"
	"sync"

	"sandlot/internal/fault"
)

// watchLost closes the connection when lost ends, until stop is called. It is that of a result of size bytes for whose
// memory others may wait, and ends when the program may take no longer to read it, and the progress before it; nil: the
// result is not one of those. The error says that lost has ended before.
func (c *conn) watchLost(size int, lost context.Context) (stop func() bool, err error) {
	switch {
	case lost == nil:
		return func() bool { return true }, nil
	case lost.Err() != nil:
		return func() bool { return true }, &answerError{Code: codeTooLarge, Message: "the result, " +
			strconv.Itoa(size) + " bytes, was given up: " + context.Cause(lost).Error()}
	}
	return context.AfterFunc(lost, func() { c.net.Close() }), nil
}

// progress sends the progress of one call.
type progress struct {
	texts   chan string
	sending sync.WaitGroup
	failed  bool
}

// sendProgress returns a progress that has to be ended. If the program does not read it, unread is called, and no more
// is sent.
func (c *conn) sendProgress(ctx context.Context, unread func()) *progress {
	p := &progress{texts: make(chan string, 16)}
	p.sending.Go(func() {
		for text := range p.texts {
			if !p.failed && !c.write(ctx, answer{Progress: text}) {
				p.failed = true
				unread()
			}
		}
	})
	return p
}

// add sends a text. What the program does not read as fast is dropped.
func (p *progress) add(text string) {
	if text = fault.Printable(text, 4096); text == "" {
		return
	}
	select {
	case p.texts <- text:
	default:
	}
}

// end waits until all was sent, and reports whether it was.
func (p *progress) end() bool {
	close(p.texts)
	p.sending.Wait()
	return !p.failed
}
