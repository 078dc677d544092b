package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/egress"
	"sandlot/internal/hub"
	"sandlot/internal/session"
)

func (p *program) network() *cobra.Command {
	c := &cobra.Command{
		Use: "network", Short: "Show and change which hosts sandboxes may reach",
		Long: `Show and change which hosts sandboxes may reach.

The rules for all sandboxes are in sandlot.yaml, under network:. A change of that file
applies within a second, to running sandboxes too. Without --session this command shows
those rules. With --session it shows the rules of one session, and the subcommands change
them. Only the operator may do this: through the socket in the server's state folder, or,
with --server, with a token that has the role operator.`,
		Example: `  sandlot network
  sandlot network --session home
  sandlot network allow api.example.com:443 --session home
  sandlot network mode none --session home
  sandlot network reset --session home
  sandlot network recount --session home`,
		Args: cobra.NoArgs,
	}
	var id string
	c.PersistentFlags().StringVar(&id, "session", "", `session: an id, or "home" for your home session`)
	p.withJSON(c, func(cmd *cobra.Command, _ []string) error {
		if id == "" {
			return p.showNetwork(cmd.Context())
		}
		return p.sessionNetwork(cmd.Context(), "GET", id, nil)
	})
	change := func(use, short string, args cobra.PositionalArgs, make func([]string) (hub.NetworkChange, error)) {
		sub := &cobra.Command{Use: use, Short: short, Args: args}
		c.AddCommand(p.withJSON(sub, func(cmd *cobra.Command, args []string) error {
			if id == "" {
				return usage{errors.New("--session is needed; the settings of all sessions are under network: in " +
					"sandlot.yaml")}
			}
			change, err := make(args)
			if err != nil {
				return usage{err}
			}
			return p.sessionNetwork(cmd.Context(), "PATCH", id, change)
		}))
	}
	change("allow HOST[:PORT]...", "Allow hosts for a session, beside the settings' hosts", cobra.MinimumNArgs(1),
		func(args []string) (hub.NetworkChange, error) {
			r, err := parseRules(args)
			return hub.NetworkChange{Allow: r}, err
		})
	change("deny HOST[:PORT]...", "Remove hosts that allow added to a session", cobra.MinimumNArgs(1),
		func(args []string) (hub.NetworkChange, error) {
			r, err := parseRules(args)
			return hub.NetworkChange{Deny: r}, err
		})
	change("mode MODE", "Set the network mode of a session: none, allowlist or public", cobra.ExactArgs(1),
		func(args []string) (hub.NetworkChange, error) {
			m, err := egress.ParseMode(args[0])
			return hub.NetworkChange{Mode: &m}, err
		})
	change("reset", "Remove all changes of a session: the settings apply again", cobra.NoArgs,
		func([]string) (hub.NetworkChange, error) {
			return hub.NetworkChange{Reset: true}, nil
		})
	change("recount", "Reset the count of bytes of a session, which network.max_mb limits", cobra.NoArgs,
		func([]string) (hub.NetworkChange, error) {
			return hub.NetworkChange{ResetUsage: true}, nil
		})
	alsoList(c)
	return c
}

func parseRules(args []string) (list []egress.Rule, err error) {
	for _, a := range args {
		r, err := egress.ParseRule(a)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// askAsOperator sends a request as the operator and reads the answer into out.
func (p *program) askAsOperator(ctx context.Context, method, path string, in, out any) error {
	c, err := p.operator()
	if err != nil {
		return err
	}
	return c.JSON(ctx, method, path, in, out)
}

func (p *program) showNetwork(ctx context.Context) error {
	var n hub.NetworkState
	if err := p.askAsOperator(ctx, "GET", "/v1/network", nil, &n); err != nil {
		return err
	}
	if p.asJSON {
		return p.json(n)
	}
	showPolicy(p.out, &n.Policy)
	for name, t := range n.Templates {
		if t.Mode != "" || len(t.Allow) > 0 {
			fmt.Fprintf(p.out, "template %s: %s %s\n", name, t.Mode, joinRules(t.Allow))
		}
	}
	if n.File != "" {
		fmt.Fprintln(p.out, "settings   ", n.File)
	}
	showUsage(p.out, n.Usage)
	return nil
}

func (p *program) sessionNetwork(ctx context.Context, method, id string, body any) error {
	var n session.Network
	if err := p.askAsOperator(ctx, method, client.SessionPath(id)+"/network", body, &n); err != nil {
		return err
	}
	if p.asJSON {
		return p.json(n)
	}
	fmt.Fprintln(p.out, "session    ", n.Session)
	showPolicy(p.out, n.Policy)
	if !n.Change.Empty() {
		fmt.Fprintf(p.out, "its own     %s %s\n", n.Change.Mode, joinRules(n.Change.Allow))
	}
	if n.Usage != nil {
		showUsage(p.out, *n.Usage)
	}
	if n.MaxBytes > 0 {
		fmt.Fprintf(p.out, "limit       %d of %d bytes used\n", n.Traffic.Up+n.Traffic.Down, n.MaxBytes)
	}
	return nil
}

func joinRules(rules []egress.Rule) string {
	var all []string
	for _, r := range rules {
		all = append(all, r.String())
	}
	return strings.Join(all, " ")
}

func showPolicy(w io.Writer, p *egress.Policy) {
	if p == nil {
		fmt.Fprintln(w, "mode        none")
		return
	}
	fmt.Fprintln(w, "mode       ", p.Mode)
	if len(p.Allow) > 0 {
		fmt.Fprintln(w, "allowed    ", joinRules(p.Allow))
	}
	if len(p.Registries) > 0 {
		fmt.Fprintln(w, "registries ", joinRules(p.Registries))
	}
	for _, e := range p.Private {
		fmt.Fprintln(w, "private    ", e.Host, "in", e.Net)
	}
}

func showUsage(w io.Writer, u egress.Usage) {
	fmt.Fprintf(w, "connections %d open, %d made, %d refused, %d unanswered, %d over a limit\n", u.Open, u.Connected,
		u.Refused, u.Unreachable, u.Busy)
	fmt.Fprintf(w, "bytes       %d sent, %d received\n", u.Up, u.Down)
}
