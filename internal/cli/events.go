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
		Use: "events", Short: "Show what happens in the server",
		Long: `Show who did what, when, and how it ended: calls, connections to the network,
sessions, third-party MCP servers, and what users were asked.

The server keeps the latest events of each user in memory, at most 256. A user sees
their own. The operator sees those of all users: through the socket in the server's
state folder, or by a token with the role operator. There is nothing of what a call
was given or what it printed.`,
		Example: `  sandlot events
  sandlot events --follow
  sandlot events --kind egress,session --session home`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on, and show what happens from now on too")
	c.Flags().StringSliceVar(&kinds, "kind", nil, "these kinds alone: "+strings.Join(names, ", "))
	c.Flags().StringVar(&session, "session", "", "those of this session alone, by its id")
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

// lostEvents stands, as JSON, where events are missing.
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
			_, err := fmt.Fprintf(p.err, "sandlot: %s\n", missed(*lost))
			return err
		}
		took := ""
		if e.Duration > 0 {
			took = e.Duration.Round(e.Duration / 100).String()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Local().Format(time.DateTime), word(e.Principal),
			e.Kind,
			word(e.Operation), word(e.Name), word(e.Outcome), took, word(e.Session))
		if follow {
			return table.Flush()
		}
		return nil
	})
	if ended := ctx.Err(); ended != nil { // by the user
		return nil
	}
	if err == nil && follow {
		err = errors.New("the server ended the stream: it stops, or the token is no longer good")
	}
	return errors.Join(table.Flush(), err)
}

// word is a text in one cell of one line.
func word(s string) string { return strings.Join(strings.Fields(harmless(s)), " ") }

// missed says what a reader does not see.
func missed(l protocol.Lost) string {
	switch {
	case l.Count == 0:
		return "events are missing here"
	case l.Unknown:
		return fmt.Sprintf("%d events or more are missing here", l.Count)
	}
	return fmt.Sprintf("%d events are missing here", l.Count)
}
