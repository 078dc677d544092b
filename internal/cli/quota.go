package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// quotaCommand returns the command `sandlot quota`, which prints to out.
func quotaCommand(connect connectOperator, out io.Writer) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "quota", Short: "Show your quotas, and how much of them you use",
		Long: `Show the quotas of the settings, and how much of each you use.
An operator (without SANDLOT_TOKEN, on the server's machine) may name another user with --user.`,
		Example: `  sandlot quota
  sandlot quota --user ann`,
		Args: cobra.NoArgs,
	}
	user := c.Flags().String("user", "", "show the quotas of this user; for operators")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		server, done, err := connect(c.Context())
		if err != nil {
			return err
		}
		q, err := server.Quotas(c.Context(), *user)
		if err := errors.Join(err, done()); err != nil {
			return err
		}
		if asJSON {
			enc := json.NewEncoder(out)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(q)
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "QUOTA\tUSED\tLIMIT")
		for _, u := range q.Quotas {
			used, limit := "-", "-"
			if u.Used != nil {
				used = strconv.FormatFloat(*u.Used, 'f', -1, 64)
			}
			if u.Limit > 0 {
				limit = strconv.FormatFloat(u.Limit, 'f', -1, 64)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\n", u.Name, used, limit)
		}
		return t.Flush()
	}
	return c
}
