package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/event"
)

func (p *program) events() *cobra.Command {
	var follow bool
	var kinds []string
	var session string
	names := make([]string, len(event.Kinds))
	for i, k := range event.Kinds {
		names[i] = string(k)
	}
	c := &cobra.Command{
		Use: "events", Short: "Show who did what on the server, and with which result",
		Long: `Show who did what, when, and with which result: calls, network connections, sessions,
third-party MCP servers, requests for consent, and tokens.

The server keeps the latest events of each user in memory, at most 256. Users see their
own events. The operator sees the events of all users: through the socket in the server's
state folder, or with a token that has the role operator. Events have no arguments and no
output of calls.

The columns are time, principal, kind, operation, target, outcome, duration, session.`,
		Example: `  sandlot events
  sandlot events --follow
  sandlot events --kind egress,session --session home`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new events until Ctrl-C")
	c.Flags().StringSliceVar(&kinds, "kind", nil, "show only these kinds: "+strings.Join(names, ", "))
	c.Flags().StringVar(&session, "session", "", "show only the events of this session, by its id")
	return p.withJSON(c, func(cmd *cobra.Command, _ []string) error {
		client, err := p.client()
		if err != nil {
			return err
		}
		q := url.Values{"follow": {strconv.FormatBool(follow)}}
		if len(kinds) > 0 {
			q.Set("kind", strings.Join(kinds, ","))
		}
		if session != "" {
			q.Set("session", session)
		}
		return p.showEvents(cmd.Context(), client, q, follow)
	})
}

// lostEvents is the JSON that stands where events are missing.
type lostEvents struct {
	Lost *protocol.Lost `json:"lost"`
}

func (p *program) showEvents(ctx context.Context, client *client.Client, q url.Values, follow bool) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	err := client.Events(ctx, q, func(e *event.Event, lost *protocol.Lost) error {
		if p.asJSON {
			if e == nil {
				return p.line(lostEvents{lost})
			}
			return p.line(e)
		}
		if e == nil {
			_, err := fmt.Fprintf(p.err, "sandlot: %s\n", lostText(*lost))
			return err
		}
		took := ""
		if e.Duration > 0 {
			took = e.Duration.Round(e.Duration / 100).String()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Local().Format(time.DateTime),
			tableCell(e.Principal),
			e.Kind,
			tableCell(e.Operation), tableCell(e.Name), tableCell(e.Outcome), took, tableCell(e.Session))
		if follow {
			return table.Flush()
		}
		return nil
	})
	if ended := ctx.Err(); ended != nil { // the user ended the command
		return nil
	}
	if err == nil && follow {
		err = errors.New("the server ended the stream: it stops, or the token is no longer good")
	}
	return errors.Join(table.Flush(), err)
}

// tableCell returns a text of the server that fits a cell of the table: on one line, printable.
func tableCell(s string) string { return strings.Join(strings.Fields(stripControl(s)), " ") }

// lostText returns how many events the reader does not see.
func lostText(l protocol.Lost) string {
	switch {
	case l.Count == 0:
		return "events are missing here"
	case l.Unknown:
		return fmt.Sprintf("%d events or more are missing here", l.Count)
	}
	return fmt.Sprintf("%d events are missing here", l.Count)
}
