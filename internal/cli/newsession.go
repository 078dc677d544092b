package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/cli/connection"
)

// newSessionCommand returns the command `sandlot sessions new`, which prints to out. usage marks an error of how the program was
// called.
func newSessionCommand(connect func() (*client.Client, error), usage func(error) error, out io.Writer) *cobra.Command {
	var wanted protocol.SessionRequest
	var env, labels []string
	var asJSON bool
	c := &cobra.Command{
		Use: "new", Short: "Create a session and print its id", Args: cobra.NoArgs,
		Long: "Create a session and print its id. All programs and all code in it have the variables of --env, " +
			"in which ${secret:NAME} stands for a stored secret. The server has to run.",
		Example: "  sandlot sessions new\n  sandlot sessions new --env 'KEY=${secret:KEY}' --flavor medium\n  sandlot " +
			"sessions new --name build --label team=web --ends-in 2h",
	}
	c.Flags().StringVar(&wanted.Template, "template", "", "template of the session")
	c.Flags().StringVar(&wanted.Flavor, "flavor", "", "how large it is: a flavor")
	c.Flags().StringArrayVar(&env, "env", nil, "variable: NAME=VALUE, or NAME for the value that it has here")
	c.Flags().StringVar(&wanted.Name, "name", "", "a name that stands for its id")
	c.Flags().StringArrayVar(&labels, "label", nil, "label: KEY=VALUE")
	addEnd(c, &wanted.EndsAt, &wanted.EndsIn, &wanted.OnEnd)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if wanted.Env, err = connection.Pairs("env", env); err != nil {
			return usage(err)
		}
		if wanted.Labels, err = newLabels(labels); err != nil {
			return usage(err)
		}
		api, err := connect()
		if err != nil {
			return err
		}
		id, err := api.NewSession(c.Context(), wanted)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(out).Encode(map[string]string{"session_id": id})
		}
		_, err = fmt.Fprintln(out, id)
		return err
	}
	return c
}
