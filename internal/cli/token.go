package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/app"
	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/hub"
	"sandlot/internal/policy"
	"sandlot/internal/secret"
)

func (p *program) token() *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "Create, list and revoke access tokens",
		Long: `Create, list and revoke access tokens: those in the database of the state folder, for which no server need
run. With --server (and a token in SANDLOT_TOKEN) they are that server's: your own, or, with the role operator,
everybody's. A token that you make there allows at most what yours allows.`,
	}
	c.AddCommand(p.tokenCreate(), p.tokenList(), p.tokenRevoke())
	return c
}

// tokens calls use with the database of the state folder. A server need not run.
func (p *program) tokens(ctx context.Context, use func(app.Database) error) error {
	cfg, err := p.load(nil)
	if err != nil {
		return err
	}
	return app.UseDatabase(ctx, cfg, use)
}

// issuedToken is the JSON of a new token.
type issuedToken struct {
	ID      string     `json:"id"`
	User    string     `json:"user"`
	Token   string     `json:"token"`
	Expires *time.Time `json:"expires"`
	Roles   auth.Roles `json:"roles,omitzero"`
	Scope   auth.Scope `json:"scope,omitempty"`
	ActsFor bool       `json:"acts_for,omitempty"`
}

// tokenFlags are the flags of `sandlot token create`.
type tokenFlags struct {
	user, expires             string
	service, actsFor, metrics bool
	roles, scope              []string
}

func (p *program) tokenCreate() *cobra.Command {
	var f tokenFlags
	c := &cobra.Command{
		Use: "create --user NAME", Short: "Create a token and print it, once", Args: cobra.NoArgs,
		Long: "Create a token and print it, once. With --server, --user can be left out: it is yours then.",
		Example: "  sandlot token create --user alice\n  sandlot token create --user ci --service --expires 90d " +
			"--json\n  sandlot token create --user bot --scope code.execute --scope 'file.*'\n  sandlot token create " +
			"--user gitu --service --acts-for\n  sandlot token create --user prometheus --role metrics\n  sandlot " +
			"token create --user admin --role operator",
	}
	flags := c.Flags()
	flags.StringVar(&f.user, "user", "", "name of the user whose token it is")
	flags.BoolVar(&f.service, "service", false,
		"token of a service that many people use: a call without session_id gets a new session, not a home")
	flags.BoolVar(&f.actsFor, "acts-for", false,
		"with --service: each request may name the user it is for, by the header "+auth.UserHeader)
	flags.StringSliceVar(&f.scope, "scope", nil,
		"the only operations it is for, such as code.execute or 'file.*'; repeatable (default: all)")
	flags.StringSliceVar(&f.roles, "role", nil, "additional rights: operator, metrics or logs; repeatable")
	flags.BoolVar(&f.metrics, "metrics", false, "the same as --role metrics")
	flags.StringVar(&f.expires, "expires", "", "how long it is valid, such as 90d (default: without end)")
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		n, err := f.newToken(c.Flags().Changed("scope"))
		if err != nil {
			return usage{err}
		}
		if p.server != "" {
			return p.createTokenThere(c.Context(), f)
		}
		if f.user == "" {
			return usage{errors.New("--user is needed: the name of the user whose token it is")}
		}
		return p.tokens(c.Context(), func(db app.Database) error {
			t, value, err := auth.IssueToken(c.Context(), db, n)
			if err != nil {
				return err
			}
			return p.showNewToken(t, value)
		})
	})
}

// showNewToken prints a new token with its value.
func (p *program) showNewToken(t auth.Token, value secret.Value) error {
	if p.asJSON {
		return p.json(issuedToken{t.ID, t.User, value.Reveal(), t.Expires, t.Roles, t.Scope, t.ActsFor})
	}
	_, err := fmt.Fprintln(p.out, value.Reveal())
	return err
}

// createTokenThere lets the server that --server names make a token.
func (p *program) createTokenThere(ctx context.Context, f tokenFlags) error {
	server, err := p.client()
	if err != nil {
		return err
	}
	n := hub.NewToken{User: f.user, Service: f.service, ActsFor: f.actsFor, Scope: f.scope, Expires: f.expires}
	for _, name := range f.roles {
		n.Roles = append(n.Roles, auth.Role(name))
	}
	made, err := server.NewToken(ctx, n)
	if err != nil {
		return err
	}
	return p.showNewToken(made.Token, secret.Value(made.Value))
}

// newToken returns the token that the flags describe. With scoped, the flag --scope is there.
func (f *tokenFlags) newToken(scoped bool) (n auth.NewToken, err error) {
	n = auth.NewToken{User: f.user, Service: f.service, ActsFor: f.actsFor}
	if f.expires != "" {
		if n.Expires, err = config.ParseDuration(f.expires); err != nil || n.Expires <= 0 {
			return n, fmt.Errorf("--expires %q must be a duration such as 90d or 12h", f.expires)
		}
	}
	if f.metrics {
		f.roles = append(f.roles, string(auth.Metrics))
	}
	for _, name := range f.roles {
		r, err := auth.ParseRole(name)
		if err != nil {
			return n, err
		}
		n.Roles = append(n.Roles, r)
	}
	if scoped {
		n.Scope, err = policy.ParseScope(f.scope)
	}
	return n, err
}

func (p *program) tokenList() *cobra.Command {
	var user string
	var everyone bool
	c := &cobra.Command{Use: "list", Short: "List the tokens", Args: cobra.NoArgs}
	c.Flags().StringVar(&user, "user", "", "list the tokens of this user; with --server for operators")
	c.Flags().BoolVar(&everyone, "all", false, "with --server: list the tokens of all users, and not only yours; for operators")
	c.MarkFlagsMutuallyExclusive("user", "all")
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		if p.server != "" {
			return p.listTokensThere(c.Context(), user, everyone)
		}
		return p.tokens(c.Context(), func(db app.Database) error {
			all, err := db.Tokens(c.Context())
			if err != nil {
				return err
			}
			if user != "" {
				all = slices.DeleteFunc(all, func(t auth.Token) bool { return t.User != user })
			}
			return p.showTokens(all)
		})
	})
}

// listTokensThere lists the tokens of the server that --server names: of a user, else of all, else of the one who asks.
func (p *program) listTokensThere(ctx context.Context, user string, everyone bool) error {
	server, err := p.client()
	if err != nil {
		return err
	}
	var rows []hub.TokenRow
	if everyone {
		users, err := server.Users(ctx)
		if err != nil {
			return err
		}
		for _, u := range users.Users {
			rows = append(rows, u.Tokens...)
		}
	} else {
		list, err := server.Tokens(ctx, user)
		if err != nil {
			return err
		}
		rows = list.Tokens
	}
	all := make([]auth.Token, len(rows))
	for i, r := range rows {
		all[i] = r.Token
	}
	return p.showTokens(all)
}

// showTokens prints tokens, without their values.
func (p *program) showTokens(all []auth.Token) error {
	if p.asJSON {
		return p.json(append([]auth.Token{}, all...))
	}
	p.sayIfNone(len(all), "There are no tokens.")
	for _, t := range all {
		expires, kind := "never", "user"
		if t.Expires != nil {
			expires = t.Expires.Format(time.RFC3339)
		}
		if t.Service {
			kind = "service"
		}
		if _, err := fmt.Fprintf(p.out, "%s  %-8s %-20s created %s  expires %s%s\n", t.ID, kind, printable(t.User),
			t.Created.Format(time.RFC3339), expires, tokenDetails(t)); err != nil {
			return err
		}
	}
	return nil
}

// tokenDetails returns the last columns of the list: when the token was last used, and its rights.
func tokenDetails(t auth.Token) string {
	text := "  last used never"
	if t.Used != nil {
		text = "  last used " + t.Used.Format(time.RFC3339)
	}
	if t.Roles != 0 {
		text += "  roles " + t.Roles.String()
	}
	if t.Scope != "" {
		text += "  scope " + string(t.Scope)
	}
	if t.ActsFor {
		text += "  acts for its users"
	}
	if t.MadeBy != "" {
		text += "  made by " + t.MadeBy
	}
	return text
}

func (p *program) tokenRevoke() *cobra.Command {
	return &cobra.Command{Use: "revoke ID", Short: "Revoke a token by its id (see list)", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if p.server != "" {
				server, err := p.client()
				if err != nil {
					return err
				}
				return server.RevokeToken(c.Context(), args[0])
			}
			return p.tokens(c.Context(), func(db app.Database) error {
				if err := auth.Revoke(c.Context(), db, args[0]); err != nil {
					return fmt.Errorf("%w: %s; see `sandlot token list`", err, args[0])
				}
				return nil
			})
		}}
}
