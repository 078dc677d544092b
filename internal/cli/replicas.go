package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sandlot/internal/app"
	"sandlot/internal/fault"
)

// replicas returns the command `sandlot replicas`.
func (p *program) replicas() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "replicas", Short: "List the servers that share the PostgreSQL database",
		Long: `List the servers with replicas.address that share the PostgreSQL database of the setting store, read from it.
A server that is away is listed as long as it has principals whose files only it has.`,
		Args: cobra.NoArgs,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := p.load(nil)
		if err != nil {
			return err
		}
		all, err := app.Replicas(c.Context(), cfg)
		if err != nil {
			return err
		}
		if asJSON {
			return p.json(append([]app.Replica{}, all...))
		}
		t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "ADDRESS\tSTATE\tPRINCIPALS\tVERSION\tSTARTED")
		for _, r := range all {
			state := "away"
			if r.Alive {
				state = "alive"
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", r.Address, state, r.Principals, r.Version,
				r.Started.UTC().Format("2006-01-02 15:04:05Z"))
		}
		return t.Flush()
	}
	c.AddCommand(p.removeReplica())
	return c
}

// removeReplica returns the command `sandlot replicas remove`.
func (p *program) removeReplica() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "remove ADDRESS", Short: "Give up the sessions and snapshots of a server that is gone for good",
		Long: `Remove a server that does not run from those that share the PostgreSQL database, with all sessions and snapshots
of its principals: their files are on its machine alone. Other servers act for these principals then. When the server comes
back, it removes the files. The address "unknown" stands for sessions and snapshots that belong to no server.`,
		Args: cobra.ExactArgs(1),
	}
	c.Flags().BoolVar(&yes, "yes", false, "give them up; else the command says what there is")
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := p.load(nil)
		if err != nil {
			return err
		}
		r, err := app.RemoveReplica(c.Context(), cfg, args[0], !yes)
		if err != nil {
			return err
		}
		if !yes {
			return fault.New(fault.InvalidParameters, "this gives up %d sessions and %d snapshots, whose files are on the "+
				"machine of that server; nothing was changed", r.Sessions, r.Snapshots).
				Advise("Start that server instead, if its machine still exists", "Else say --yes")
		}
		fmt.Fprintf(p.out, "removed, with %d sessions and %d snapshots\n", r.Sessions, r.Snapshots)
		return nil
	}
	return c
}
