package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/app"
	"sandlot/internal/audit"
	"sandlot/internal/cli/plain"
	"sandlot/internal/event"
	"sandlot/internal/plural"
)

// eventFlags are the flags of `sandlot events`.
type eventFlags struct {
	follow                    bool
	kinds                     []string
	session, principal, since string
	limit                     int
}

func (p *program) events() *cobra.Command {
	var f eventFlags
	names := make([]string, len(event.Kinds))
	for i, k := range event.Kinds {
		names[i] = string(k)
	}
	c := &cobra.Command{
		Use: "events", Short: "Show who did what on the server, and the result",
		Long: `Show who did what and when, and the result: calls, network connections, sessions,
third-party MCP servers, requests for consent, tokens, and the server's own start and end.

The server stores events (settings events.keep_max and events.keep_days). Without --since and
--limit, the newest ` + strconv.Itoa(defaultEvents) + ` are shown. Users see their own events. The operator sees the
events of all users: through the socket in the server's state folder, or with a token that has
the role operator. Events have no arguments and no output of calls.

The columns are time, principal, kind, operation, target, outcome, duration, session.`,
		Example: `  sandlot events
  sandlot events --follow
  sandlot events --since 24h --principal ann
  sandlot events --kind egress,session --session home
  sandlot events verify`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "continue with new events until Ctrl-C")
	c.Flags().StringSliceVar(&f.kinds, "kind", nil, "show only these kinds: "+strings.Join(names, ", "))
	c.Flags().StringVar(&f.session, "session", "", "show only the events of this session, by its id")
	c.Flags().StringVar(&f.principal, "principal", "", "show only the events of this user; for operators")
	c.Flags().StringVar(&f.since, "since", "", "show all events of this time, such as 90s, 30m, 12h or 7d")
	c.Flags().IntVar(&f.limit, "limit", 0, "show the newest events, up to this number")
	c.AddCommand(p.verifyEvents())
	return p.withJSON(c, func(cmd *cobra.Command, _ []string) error {
		client, err := p.client()
		if err != nil {
			return err
		}
		return p.showEvents(cmd.Context(), client, f.query(), f.follow)
	})
}

// defaultEvents is how many events the server sends when the query has no bound.
const defaultEvents = 1000

func (f *eventFlags) query() url.Values {
	q := url.Values{"follow": {strconv.FormatBool(f.follow)}}
	if f.limit != 0 {
		q.Set("limit", strconv.Itoa(f.limit))
	}
	for name, value := range map[string]string{"kind": strings.Join(f.kinds, ","), "session": f.session,
		"principal": f.principal, "since": f.since} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// lostEvents is the JSON that stands where events are missing.
type lostEvents struct {
	Lost json.RawMessage `json:"lost"`
}

func (p *program) showEvents(ctx context.Context, client *client.Client, q url.Values, follow bool) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	var err error
	if p.asJSON {
		err = client.EventLines(ctx, q, func(data []byte, lost bool) error {
			if lost {
				return p.line(lostEvents{data})
			}
			_, err := fmt.Fprintf(p.out, "%s\n", data) // unchanged, for `sandlot events verify`
			return err
		})
	} else {
		err = client.Events(ctx, q, func(e *event.Event, lost *protocol.Lost) error {
			if e == nil {
				_, err := fmt.Fprintf(p.err, "sandlot: %s\n", lostText(*lost))
				return err
			}
			writeEvent(table, e)
			if follow {
				return table.Flush()
			}
			return nil
		})
	}
	if ended := ctx.Err(); ended != nil { // the user ended the command
		return nil
	}
	if err == nil && follow {
		err = errors.New("the server ended the stream: it stops, or the token is no longer valid")
	}
	return errors.Join(err, table.Flush())
}

// writeEvent writes an event as a row of the table.
func writeEvent(table io.Writer, e *event.Event) {
	took := ""
	if e.Duration > 0 {
		took = e.Duration.Round(e.Duration / 100).String()
	}
	outcome := e.Outcome
	if e.Count > 0 {
		outcome = fmt.Sprintf("%s (%d)", outcome, e.Count)
	}
	if r := e.Refused; r != (event.Refused{}) {
		outcome = fmt.Sprintf("%s (%s)", outcome, strings.Join(slices.DeleteFunc([]string{r.Cause, r.Rule, r.Question,
			r.Program}, func(s string) bool { return s == "" }), ", "))
	}
	if o := e.Offers; o != (event.Offers{}) {
		outcome = fmt.Sprintf("%s (%s, %s, %s)", outcome, plural.Of(o.Tools, "tool", "tools"),
			plural.Of(o.Prompts, "prompt", "prompts"), plural.Of(o.Resources, "resource", "resources"))
	}
	fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Time.Local().Format(time.DateTime),
		plain.Cell(e.Principal), e.Kind, plain.Cell(e.Operation), plain.Cell(e.Name), plain.Cell(outcome), took,
		plain.Cell(e.Session))
}

func (p *program) verifyEvents() *cobra.Command {
	c := &cobra.Command{
		Use: "verify [FILE]", Short: "Check that no stored event was removed or changed",
		Long: `Check that no stored event was removed or changed, in the store of the state folder, or in a
FILE of lines: the one of the setting events.file, or the output of "sandlot events --json" of the
operator, without --follow and other filters than --since and --limit. FILE may be - for the input.

Each event has the hash over the previous one's hash and its own content. The command names the
first event at which that does not hold. It prints the hash of the newest event of each chain, the
head. Who can write to the store can make all hashes anew: keep the head somewhere else to notice.`,
		Example: `  sandlot events verify
  sandlot events verify events.jsonl`,
		Args: cobra.MaximumNArgs(1),
	}
	return p.withJSON(c, func(cmd *cobra.Command, args []string) error {
		report, err := p.verify(cmd.Context(), args)
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(report)
		}
		for _, c := range report.Chains {
			if c.Events == 0 {
				fmt.Fprintf(p.out, "%s: no events; head %s\n", c.Chain, c.Head)
			} else {
				pruned := ""
				if c.PrunedUntil > 0 {
					pruned = fmt.Sprintf(" (pruned until %d on %s)", c.PrunedUntil, c.PrunedAt.UTC().Format(time.DateTime))
				}
				fmt.Fprintf(p.out, "%s: %s whole, from %d%s to %d; head %s\n", c.Chain,
					plural.Of(c.Events, "event is", "events are"), c.First, pruned, c.Last, c.Head)
			}
			if c.Unrecorded > 0 {
				fmt.Fprintf(p.out, "%s: events are gone until %d, and no event records that the server has pruned them: "+
					"an older version of Sandlot did, or somebody has removed them\n", c.Chain, c.Unrecorded)
			}
		}
		return nil
	})
}

func (p *program) verify(ctx context.Context, args []string) (report audit.Report, err error) {
	if len(args) == 0 {
		err = p.tokens(ctx, func(db app.Database) error {
			report, err = db.VerifyEvents(ctx)
			return err
		})
		return report, err
	}
	in := p.in
	if args[0] != "-" {
		f, err := os.Open(args[0])
		if err != nil {
			return report, err
		}
		defer f.Close()
		in = f
	}
	return audit.VerifyLines(in)
}

// lostText returns how many events the reader does not see.
func lostText(l protocol.Lost) string {
	switch {
	case l.Count == 0:
		return "events are missing here"
	case l.Unknown:
		return plural.Of(l.Count, "event", "events") + " or more are missing here"
	}
	return plural.Of(l.Count, "event is", "events are") + " missing here"
}
