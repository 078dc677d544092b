package cli

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sandlot/internal/app"
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
	return c
}
