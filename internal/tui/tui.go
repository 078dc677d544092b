// Package tui is the terminal interface: what `sandlot ui` shows. It is a client of the HTTP API and its live channel, and
// owns what a key may do to a question: a key answers the question that was shown when it was pressed, and no other.
package tui

import (
	"context"
	"errors"
	"io"
	"os/exec"

	tea "charm.land/bubbletea/v2"

	"sandlot/internal/api/client"
)

// Options are what the interface needs.
type Options struct {
	Client *client.Client
	Server string // its URL; empty: the one of this machine's state folder
	// Shell returns the command that runs a shell in a session. The terminal is its own while it runs.
	Shell func(session string) *exec.Cmd
	// Scripts is the folder of the user's own commands. It need not exist.
	Scripts string
	In      io.Reader
	Out     io.Writer
}

// Run shows the interface until its user leaves.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m := newModel(ctx, o)
	p := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out))
	f := feed{client: o.Client, send: p.Send, again: m.again}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx)
	}()
	_, err := p.Run()
	stopped := ctx.Err() != nil
	cancel()
	<-ended
	if stopped || errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}
