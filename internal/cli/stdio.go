package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/app"
	"sandlot/internal/toolview"
)

func (p *program) stdio() *cobra.Command {
	view, results := "", ""
	c := &cobra.Command{
		Use: "stdio", Short: "Speak MCP on standard input and output", Args: cobra.NoArgs,
		Long: `Speak MCP on standard input and output, for clients that start their servers.
This uses the running server of the state folder. When none runs, it starts a server that
runs as long as this command; other commands use that server too. If it cannot start, the
answer to each call says why.

When the server ends, running calls fail with an error that says so. The command then
connects to the next server, or starts one when the client needs it, and the client goes on.`,
		Example: "  sandlot stdio\n  sandlot stdio --tools search",
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			if _, err := toolview.Parse(view); err != nil {
				return usage{fmt.Errorf("--tools %w", err)}
			}
			if _, err := toolview.ParseResults(results); err != nil {
				return usage{fmt.Errorf("--results %w", err)}
			}
			found := &successor{program: p}
			mcp := &client.Stdio{In: p.in, Out: p.out, View: view, Results: results, Connect: found.connect,
				Note: func(text string) { fmt.Fprintln(p.err, "sandlot:", text) }}
			err := mcp.Open(ctx)
			if err == nil {
				return errors.Join(mcp.Run(ctx), found.close())
			}
			err = errors.Join(err, found.close())
			if ctx.Err() == nil { // the client's user sees no log, and what happened is this user's own matter
				app.Explain(ctx, err, p.in, p.out)
			}
			return err
		},
	}
	c.Flags().StringVar(&view, "tools", "", "third-party tools that the client is shown: all, search, code or auto "+
		"(default: the setting tools)")
	c.Flags().StringVar(&results, "results", "", "form of results: text, data or both (default: what fits the client)")
	return c
}

// successor finds the server for `sandlot stdio`, and the next one when that has ended.
type successor struct {
	*program
	began  bool
	done   func() error // ends the server of this process; nil: it has none
	served bool         // the last server was that of `sandlot serve`, and not of a command
}

const (
	// servedPause is how long the server of `sandlot serve` may be away before this command starts one in its place:
	// else the service that restarts would find its state folder in use.
	servedPause = 10 * time.Second
	// nextTimeout is how long a call waits for the next server.
	nextTimeout = 2 * time.Minute
	// nextPoll is how often the next server is looked for, and slowPoll how often when it has not come for long.
	nextPoll, slowPoll = 100 * time.Millisecond, time.Second
	longAway           = 30 * time.Second
)

// connect implements client.Stdio's Connect.
func (s *successor) connect(ctx context.Context, wanted <-chan struct{}) (c *client.Client, err error) {
	if !s.began {
		if c, s.done, err = s.program.connect(ctx); err == nil {
			s.began, s.served = true, c.Address(ctx) != ""
		}
		return c, err
	}
	if err := s.close(); err != nil {
		return nil, err
	}
	if c, err = s.client(); err != nil {
		return nil, err
	}
	var waits time.Time // since when a call waits
	began := time.Now()
	for away := began; ; {
		if c.Alive(ctx) {
			s.served = c.Address(ctx) != ""
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(map[bool]time.Duration{false: nextPoll, true: slowPoll}[time.Since(began) > longAway]):
		}
		select {
		case <-wanted:
		default:
			continue
		}
		if waits.IsZero() {
			waits = time.Now()
		}
		err = errors.New("it does not accept connections; start it again")
		if s.server == "" && (!s.served || time.Since(away) > servedPause) {
			if s.done, err = s.runServer(ctx, "", s.errorLog()); err == nil {
				s.served = false
				return c, nil
			}
			if !errors.Is(err, app.ErrRunning) {
				return nil, err
			}
			away = time.Now() // the server has not ended yet, or the next one starts
		}
		if time.Since(waits) > nextTimeout {
			return nil, err
		}
	}
}

// close ends the server of this process, if it has one.
func (s *successor) close() error {
	if s.done == nil {
		return nil
	}
	done := s.done
	s.done = nil
	return done()
}
