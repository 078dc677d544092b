package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandlot/internal/api/protocol"
	"sandlot/internal/app"
	"sandlot/internal/hub"
	"sandlot/internal/secret"
	"sandlot/internal/servers/spec"
	"sandlot/internal/vault"
)

func (p *program) secret() *cobra.Command {
	c := &cobra.Command{
		Use: "secret", Short: "Store API keys and other values for third-party MCP servers",
		Long: `Values for your third-party MCP servers, such as API keys, stored encrypted on the server.
${secret:NAME} refers to a value, in --env and --header of "sandlot mcp add" and "sandlot mcp restart".
A stored value is given to your MCP servers, and is never shown again.`,
		Example: `  sandlot secret set GITHUB_TOKEN
  sandlot mcp add github --npm some-github-server --env 'GITHUB_TOKEN=${secret:GITHUB_TOKEN}'
  sandlot secret list`,
	}
	c.AddCommand(p.secretSet(), p.secretList(), p.secretRemove(), p.secretRekey())
	return c
}

func (p *program) secretSet() *cobra.Command {
	var file, header string
	var hosts []string
	var basic bool
	c := &cobra.Command{
		Use: "set NAME", Short: "Store a value, read from the terminal, standard input or a file",
		Long: `Store a value under a name, or replace the value of that name. On a terminal the command asks for the
value without showing it. Otherwise it reads standard input, or the file of --file. One newline at the
end is removed. The value is never an argument, since other users of the machine see arguments and shells
store them. A running MCP server gets a new value at its next start.

With --host the secret is bound: no sandbox ever has its value. Programs in your sandboxes have a placeholder in
the variable NAME, in upper case, and send that. Sandlot replaces it with the value in headers of HTTPS requests to
these hosts, and nowhere else. This opens no network: the network's rules say which hosts sandboxes reach. A
new value of a bound secret holds at once, and the hosts stay if none is given.`,
		Example: "  sandlot secret set GITHUB_TOKEN\n  pass show github | sandlot secret set GITHUB_TOKEN\n  sandlot " +
			"secret set DEPLOY_KEY --file key.pem\n  sandlot secret set OPENAI_API_KEY --host api.openai.com\n" +
			"  sandlot secret set GIT_LOGIN --host github.com --basic",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage{errors.New("give only a name: the value is read from the terminal, standard input " +
					"or --file")}
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "file", "", "file with the value")
	c.Flags().StringArrayVar(&hosts, "host", nil, "bind it to HTTPS requests to this HOST[:PORT]; may be repeated")
	c.Flags().StringVar(&header, "header", "", "replace its placeholder only in this header")
	c.Flags().BoolVar(&basic, "basic", false, "the value is user:password, as Git sends them")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		query, err := boundQuery(hosts, header, basic)
		if err != nil {
			return err
		}
		value, err := p.secretValue(c.Context(), args[0], file)
		if err != nil {
			return err
		}
		client, done, err := p.connect(c.Context())
		if err != nil {
			return err
		}
		s, err := client.SetSecret(c.Context(), args[0], query, value)
		if err := errors.Join(err, done()); err != nil {
			return err
		}
		if p.asJSON {
			return p.json(s)
		}
		p.printStored(s)
		return nil
	})
}

// boundQuery returns the query that binds a secret; it is empty for one that is not to be bound.
func boundQuery(hosts []string, header string, basic bool) (url.Values, error) {
	query := url.Values{}
	if len(hosts) > 0 {
		query["host"] = hosts
	}
	if header != "" {
		query.Set("header", header)
	}
	if basic {
		query.Set("basic", "true")
	}
	if len(query) > 0 && len(hosts) == 0 {
		return nil, usage{errors.New("--header and --basic are for bound secrets: give --host, too")}
	}
	return query, nil
}

// printStored says how a secret that was stored is used.
func (p *program) printStored(s hub.Secret) {
	if s.Binding != nil {
		fmt.Fprintf(p.out,
			"%s is stored, for requests to %s alone. Programs have its placeholder in the variable %s\n",
			s.Name, strings.Join(s.Binding.Hosts, ", "), vault.Variable(s.Name))
		return
	}
	fmt.Fprintf(p.out, "%s is stored. Its reference, in a value of a variable or header: ${secret:%s}\n", s.Name,
		s.Name)
	for _, name := range s.UsedBy {
		fmt.Fprintf(p.out, "%s takes it up at its next start: %s\n", name,
			spec.CommandLine([]string{"sandlot", "mcp", "restart", name}))
	}
}

// secretValue reads the value of a secret.
func (p *program) secretValue(ctx context.Context, name, file string) (secret.Value, error) {
	if file == "" && p.isInteractive() {
		return p.readHidden(ctx, "Value of "+name+" (it is not shown): ")
	}
	from := p.in
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, vault.MaxValueBytes+3)) // with a line end, and too much
	value, ended := strings.CutSuffix(string(text), "\n")
	if ended {
		value = strings.TrimSuffix(value, "\r")
	}
	return secret.Value(value), err
}

// maxTerminalLine is how many bytes of a line a terminal of Linux passes on; it drops the rest.
const maxTerminalLine = 4095

// readHidden reads a line from the terminal without echoing it.
func (p *program) readHidden(ctx context.Context, question string) (secret.Value, error) {
	fd := int(p.in.(*os.File).Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	fmt.Fprint(p.err, question)
	defer fmt.Fprintln(p.err)
	type answer struct {
		line []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // ends with the program, since a read of a terminal cannot be interrupted
		line, err := term.ReadPassword(fd)
		if err == nil && len(line) >= maxTerminalLine {
			err = fmt.Errorf("a terminal takes lines of at most %d bytes: give the value by --file or standard input",
				maxTerminalLine-1)
		}
		answers <- answer{line, err}
	}()
	select {
	case a := <-answers:
		return secret.Value(a.line), a.err
	case <-ctx.Done():
		return "", errors.Join(errors.New("nothing was stored"), term.Restore(fd, before))
	}
}

func (p *program) secretList() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List your secrets and the servers that use them, without values",
		Args: cobra.NoArgs}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		var list protocol.SecretList
		if err := p.list(c.Context(), "/v1/secrets", &list); err != nil {
			return err
		}
		if p.asJSON {
			return p.json(list.Secrets)
		}
		p.sayIfNone(len(list.Secrets), "There are no secrets.")
		for _, s := range list.Secrets {
			used := "used by nothing"
			if len(s.UsedBy) > 0 {
				used = "used by " + strings.Join(s.UsedBy, ", ")
			}
			fmt.Fprintf(p.out, "%-24s created %s  changed %s  %s\n", s.Name, s.Created.Format(time.RFC3339),
				s.Changed.Format(time.RFC3339), used)
			if b := s.Binding; b != nil {
				fmt.Fprintf(p.out, "  bound to %s%s, as the variable %s\n", strings.Join(b.Hosts, ", "), boundIn(*b),
					vault.Variable(s.Name))
			}
			if !s.Readable {
				fmt.Fprintf(p.out, "  it can no longer be read (its key is gone, or the stored data was changed): "+
					"store it again with `sandlot secret set %s`\n", s.Name)
			}
		}
		return nil
	})
}

// boundIn says in which header a bound secret goes, after its hosts.
func boundIn(b vault.Binding) string {
	switch {
	case b.Basic:
		return " as user and password"
	case b.Header != "":
		return " in the header " + b.Header
	}
	return ""
}

// rekeyed is the JSON of rekey: how many entries the new key encrypts, and how many were removed.
type rekeyed struct {
	Sealed  int `json:"sealed"`
	Removed int `json:"removed"`
}

func (p *program) secretRekey() *cobra.Command {
	var drop bool
	c := &cobra.Command{Use: "rekey",
		Short: "Change the encryption key of secrets and log-ins, while no server runs", Args: cobra.NoArgs,
		Long: `Make a new key, and encrypt the secrets and log-ins of all users with it, for instance because others may
know the old key. The file of the key, or the key in the keyring, is replaced. Where the key is in the settings
(SANDLOT_SECRETS_KEY), the new one is in SANDLOT_SECRETS_NEW_KEY. The server of the state folder must not run. After a crash
the old key and its entries are there, or the new ones. A backup that has the old key and the database can
still be decrypted.`,
		Example: "  sandlot secret rekey"}
	c.Flags().BoolVar(&drop, "drop", false,
		"remove the entries that the old key cannot decrypt, and log-ins whose server address is not known")
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		cfg, err := p.load(nil)
		if err != nil {
			return err
		}
		if p.server != "" {
			return usage{errors.New("the key is changed on the server's own machine, without --server")}
		}
		sealed, dropped, err := app.Rekey(c.Context(), cfg, p.errorLog(), drop)
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(rekeyed{sealed, dropped})
		}
		fmt.Fprintf(p.out, "There is a new key. Secrets, log-ins and sleeping sessions stored with it: %d; removed: %d.\n", sealed,
			dropped)
		if cfg.Server.SecretsKeyring != "" {
			fmt.Fprintf(p.out, "The key is in the keyring (service sandlot, username %s).\n", cfg.Server.SecretsKeyring)
		}
		if cfg.Server.SecretsKey != "" {
			fmt.Fprintln(p.out, "Start the server with it: set secrets.key (SANDLOT_SECRETS_KEY) to the new key.")
		}
		return nil
	})
}

func (p *program) secretRemove() *cobra.Command {
	c := &cobra.Command{Use: "remove NAME", Short: "Remove a secret, and list the servers that still refer to it",
		Args: cobra.ExactArgs(1)}
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		var gone protocol.SecretRemoved
		if err := p.ask(c.Context(), "DELETE", "/v1/secrets/"+url.PathEscape(args[0]), nil, &gone); err != nil {
			return err
		}
		if p.asJSON {
			return p.json(gone)
		}
		fmt.Fprintf(p.out, "%s is removed\n", gone.Name)
		for _, name := range gone.UsedBy {
			fmt.Fprintf(p.out, "%s refers to it: it runs on if it runs, and does not start again\n", name)
		}
		return nil
	})
}
