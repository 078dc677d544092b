package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/hub"
)

// snapshotCommands are the commands of `sandlot snapshot`.
type snapshotCommands struct {
	connect func() (*client.Client, error)
	out     io.Writer
	asJSON  bool
}

// snapshotCommand returns the command `sandlot snapshot`, which prints to out.
func snapshotCommand(connect func() (*client.Client, error), out io.Writer) *cobra.Command {
	p := &snapshotCommands{connect: connect, out: out}
	c := &cobra.Command{
		Use: "snapshot", Short: "Keep the state of a session, and go back to it",
		Long: `A snapshot has the variables, the processes and the files of a session at one moment. It stays until you
remove it, also after its session has ended, and can be restored as often as you like. The server has to run.`,
		Example: "  sandlot snapshot create home good\n  sandlot snapshot restore good",
	}
	c.AddCommand(p.create(), p.list(), p.restore(), p.remove())
	return c
}

// ask sends a request, and prints the answer: as JSON if the user wants that.
func (p *snapshotCommands) ask(ctx context.Context, method, path string, in, answer any, text func() string) error {
	api, err := p.connect()
	if err != nil {
		return err
	}
	if err := api.JSON(ctx, method, path, in, answer); err != nil {
		return err
	}
	if p.asJSON && answer != nil {
		enc := json.NewEncoder(p.out)
		enc.SetIndent("", "  ")
		return enc.Encode(answer)
	}
	_, err = fmt.Fprintln(p.out, text())
	return err
}

func (p *snapshotCommands) withJSON(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&p.asJSON, "json", false, "print JSON")
	return c
}

func (p *snapshotCommands) create() *cobra.Command {
	return p.withJSON(&cobra.Command{
		Use: "create SESSION [NAME]", Short: "Make a snapshot of a session", Args: cobra.RangeArgs(1, 2),
		Long:    "Make a snapshot of a session, an id or home, in which nothing runs meanwhile. It prints the name.",
		Example: "  sandlot snapshot create home\n  sandlot snapshot create home good",
		RunE: func(c *cobra.Command, args []string) error {
			in := map[string]string{}
			if len(args) > 1 {
				in["name"] = args[1]
			}
			var made hub.SnapshotRow
			return p.ask(c.Context(), "POST", client.SessionPath(args[0])+"/snapshots", in, &made,
				func() string { return made.Name })
		}})
}

func (p *snapshotCommands) list() *cobra.Command {
	return p.withJSON(&cobra.Command{
		Use: "list", Short: "List your snapshots", Args: cobra.NoArgs, Example: "  sandlot snapshot list",
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := p.connect()
			if err != nil {
				return err
			}
			var list hub.SnapshotList
			if err := api.JSON(c.Context(), "GET", "/v1/snapshots", nil, &list); err != nil {
				return err
			}
			if p.asJSON {
				enc := json.NewEncoder(p.out)
				enc.SetIndent("", "  ")
				return enc.Encode(list.Snapshots)
			}
			t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NAME\tSESSION\tTEMPLATE\tMB\tMADE")
			for _, s := range list.Snapshots {
				fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%s\n", s.Name, s.SessionID, s.Template, s.SizeMB, s.Created)
			}
			return t.Flush()
		}})
}

func (p *snapshotCommands) restore() *cobra.Command {
	var session string
	c := p.withJSON(&cobra.Command{
		Use: "restore NAME", Short: "Restore a snapshot into a session", Args: cobra.ExactArgs(1),
		Long: "Give a session the variables, processes and files of a snapshot in place of its own. It is the " +
			"snapshot's own session, or the one of --session, or a new one. The command prints the session's id.",
		Example: "  sandlot snapshot restore good\n  sandlot snapshot restore good --session new"})
	c.Flags().StringVar(&session, "session", "", "session that gets it: an id, home, or new")
	c.RunE = func(c *cobra.Command, args []string) error {
		var made hub.SnapshotRestored
		return p.ask(c.Context(), "POST", "/v1/snapshots/"+url.PathEscape(args[0])+"/restore",
			map[string]string{"session_id": session}, &made, func() string { return made.SessionID })
	}
	return c
}

func (p *snapshotCommands) remove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a snapshot", Args: cobra.ExactArgs(1),
		Example: "  sandlot snapshot remove good",
		RunE: func(c *cobra.Command, args []string) error {
			return p.ask(c.Context(), "DELETE", "/v1/snapshots/"+url.PathEscape(args[0]), nil, nil,
				func() string { return args[0] + " is removed" })
		}}
}

// forkCommand returns the command `sandlot sessions fork`, which prints to out.
func forkCommand(connect func() (*client.Client, error), out io.Writer) *cobra.Command {
	p := &snapshotCommands{connect: connect, out: out}
	var count int
	c := p.withJSON(&cobra.Command{
		Use: "fork ID", Short: "Make live copies of a session, and print their ids", Args: cobra.ExactArgs(1),
		Long: "Make live copies of a session, with its variables, processes and files, and print their ids. Each " +
			"is a session of its own, and counts as one.",
		Example: "  sandlot sessions fork home --count 3"})
	c.Flags().IntVar(&count, "count", 1, "number of copies, at most 8")
	c.RunE = func(c *cobra.Command, args []string) error {
		var made hub.Forked
		return p.ask(c.Context(), "POST", client.SessionPath(args[0])+"/fork", map[string]int{"count": count}, &made,
			func() (text string) {
				for i, id := range made.Copies {
					if i > 0 {
						text += "\n"
					}
					text += id
				}
				return text
			})
	}
	return c
}
