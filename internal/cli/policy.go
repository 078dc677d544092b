package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sandlot/internal/app"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
)

func (p *program) policy() *cobra.Command {
	c := &cobra.Command{
		Use: "policy", Short: "Check what the rules allow principals to do",
		Long: `Check what the rules allow principals to do. The rules are in sandlot.yaml, under policy:. A change
of that file applies within two seconds, to running sessions too.`,
	}
	c.AddCommand(p.checkPolicy())
	return c
}

func (p *program) checkPolicy() *cobra.Command {
	var service bool
	var roles []string
	c := &cobra.Command{
		Use: "check PRINCIPAL OPERATION [DETAIL]", Short: "Say what the rules decide, and by which rule",
		Long: `Say what the rules of the settings decide about an operation, and by which rule. The exit code is 0
for allow, 3 for ask and 4 for deny.

PRINCIPAL is local, or the name of a user. With --service it has a service token, and with --role
a token with that role. DETAIL is what rules compare with their patterns: the command of
shell.execute, the path of file.read, the host and port of network.reach. The command reads the
settings, and needs no server. Stored answers (sandlot questions) are not considered.

With --server (and a token in SANDLOT_TOKEN) that server decides, with its rules in effect, stored answers and, for
network.reach, the settings of its network. PRINCIPAL is you, or, for operators, another user; without --service and
--role, the user's own tokens count.`,
		Example: `  sandlot policy check ann shell.execute "git push origin main"
  sandlot policy check ci --service mcp.install "github npm:@modelcontextprotocol/server-github"
  sandlot policy check ann network.reach api.github.com:443`,
		Args: cobra.RangeArgs(2, 3),
	}
	c.Flags().BoolVar(&service, "service", false, "the principal has a service token")
	c.Flags().StringSliceVar(&roles, "role", nil, "a role of the principal's token")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		q, err := policyQuestion(args, service, roles)
		if err != nil {
			return usage{err}
		}
		v, err := p.verdict(c.Context(), q, args[0], roles)
		if err != nil {
			return err
		}
		if p.asJSON && p.server == "" {
			err = p.json(v.Verdict)
		} else if p.asJSON {
			err = p.json(v)
		} else {
			err = p.printVerdict(v)
		}
		switch {
		case err != nil:
			return err
		case v.Effect == "ask":
			return exit(3)
		case v.Effect == "deny":
			return exit(4)
		}
		return nil
	})
}

// verdict returns what the settings say to a question about a principal of that name, or what the server that --server
// names says.
func (p *program) verdict(ctx context.Context, q policy.Question, name string, roles []string) (hub.PolicyVerdict, error) {
	if p.server == "" {
		settings, err := p.load(nil)
		if err != nil {
			return hub.PolicyVerdict{}, err
		}
		v, err := app.CheckPolicy(settings, q)
		return hub.PolicyVerdict{Verdict: v}, err
	}
	server, err := p.client()
	if err != nil {
		return hub.PolicyVerdict{}, err
	}
	ask := hub.PolicyCheck{Principal: name, Service: q.Principal.Service, Operation: q.Operation, Detail: q.Detail}
	for _, r := range roles {
		ask.Roles = append(ask.Roles, auth.Role(r))
	}
	return server.CheckPolicy(ctx, ask)
}

func (p *program) printVerdict(v hub.PolicyVerdict) error {
	by := cmp.Or(v.Place, "the server's rules")
	if v.Rule != "" {
		by += ": " + v.Rule
	}
	_, err := fmt.Fprintf(p.out, "%s  (%s)\n", v.Effect, by)
	if err == nil && v.Reason != "" && v.Rule == "" {
		_, err = fmt.Fprintln(p.out, v.Reason)
	}
	if err == nil && v.Answer != "" {
		_, err = fmt.Fprintf(p.out, "The stored answer is %s.\n", v.Answer)
	}
	if err == nil && v.Opens != "" {
		_, err = fmt.Fprintf(p.out, "This rule allows it: %s\n", v.Opens)
	}
	return err
}

// policyQuestion returns the question that the arguments of the command describe.
func policyQuestion(args []string, service bool, roles []string) (policy.Question, error) {
	id, err := auth.ParseID(args[0])
	if err != nil {
		return policy.Question{}, err
	}
	who, _ := auth.FromID(id)
	who.Service = service
	for _, name := range roles {
		role, err := auth.ParseRole(name)
		if err != nil {
			return policy.Question{}, err
		}
		who.Roles |= auth.NewRoles(role)
	}
	q := policy.Question{Principal: who, Operation: policy.Operation(args[1])}
	if !q.Operation.Known() {
		return q, fault.New(fault.InvalidParameters, "there is no operation %q%s", args[1],
			fault.DidYouMean(args[1], policy.Operations()))
	}
	if len(args) > 2 {
		q.Detail = args[2]
	}
	return q, nil
}
