// Package connection has the commands of third-party MCP servers.
package connection

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/builtin"
	"sandlot/internal/cli/plain"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/plural"
	"sandlot/internal/secret"
)

// Program is the program whose commands they are.
type Program struct {
	In       io.Reader
	Out, Err io.Writer
	// Connect returns a client. Done ends what Connect has started.
	Connect func(context.Context) (c *client.Client, done func() error, err error)
	// IsInteractive reports whether In is a terminal, on which the user can answer.
	IsInteractive func() bool
	// Confirm asks the user, and returns an error unless the answer is yes.
	Confirm func(ctx context.Context, question string) error
	// Hidden asks on the terminal for a value, which is not shown.
	Hidden func(ctx context.Context, question string) (secret.Value, error)
	// Ask asks on the terminal for a line.
	Ask func(ctx context.Context, question string) (string, error)
	// Usage marks an error of how the program was called.
	Usage func(error) error
	// Failed ends the program with the exit code 1 and no message.
	Failed error
}

// commands are the commands of `sandlot mcp`.
type commands struct {
	Program
	asJSON bool
}

// Command returns the command `sandlot mcp`.
func Command(program Program) *cobra.Command {
	p := &commands{Program: program}
	c := &cobra.Command{
		Use: "mcp", Short: "Add, list, call and remove third-party MCP servers",
		Long: `Third-party MCP servers, whose tools your agents see beside Sandlot's own. Your servers run in your
home session, or are remote and reached over HTTP. The operator's settings can add more. NAME is the name
of a server or the id of its connection, which "sandlot mcp list" shows.`,
		Example: "  sandlot mcp add time --pip mcp-server-time\n  sandlot mcp list\n  sandlot mcp call time " +
			"get_current_time timezone=UTC",
	}
	c.AddCommand(p.search(), p.list(), p.add(), p.remove(), p.restart(), p.logs(), p.inspect(), p.approveCommand(),
		p.call(), p.prompts(), p.prompt(), p.read())
	return c
}

// connectionRow is a server in the result of the tool list_external_mcp.
type connectionRow struct{ builtin.ServerRow }

// exposedName returns the exposed name of a tool, which may be given by its exposed or its own
// name; empty: the server has no such tool. A tool that is held back counts: the call's
// error then says why it cannot be called.
func (r connectionRow) exposedName(tool string) string {
	for _, t := range r.Tools {
		if t.Remote == tool || t.Name == tool {
			return t.Name
		}
	}
	for _, t := range r.HeldTools {
		if t.Remote == tool || t.Name == tool {
			return t.Name
		}
	}
	return ""
}

// path returns the path of the server in the HTTP API.
func (r connectionRow) path() string { return "/v1/connections/" + url.PathEscape(r.ID) }

func (r connectionRow) commandText() string {
	switch {
	case r.Configured:
		return "(by the operator's settings)"
	case r.URL != "":
		return r.URL
	}
	return strings.Join(append([]string{r.Command}, r.Args...), " ")
}

func (p *commands) list() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the MCP servers and their states", Args: cobra.NoArgs}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		list, err := with(c.Context(), p, func(server *client.Client) (hub.ServerList, error) {
			return server.Servers(c.Context())
		})
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(list.Servers)
		}
		if len(list.Servers) == 0 {
			fmt.Fprintln(p.Err, "There are no MCP servers: `sandlot mcp add` adds one.")
		}
		for _, one := range list.Servers {
			r := connectionRow{one}
			fmt.Fprintf(p.Out, "%-8s %-20s %-14s %9s  %s\n", r.ID, r.Name, r.State,
				plural.Of(r.ToolCount, "tool", "tools"), fault.Printable(r.commandText(), 200))
			if r.LastError != "" {
				fmt.Fprintf(p.Out, "         %s\n", fault.Printable(r.LastError, 500))
			}
			for _, h := range r.HeldTools {
				fmt.Fprintf(p.Out, "         held back: %s, as %s\n", fault.Printable(h.Remote, 100), h.Reason)
			}
		}
		return nil
	})
}

// Pairs reads NAME=VALUE of a flag that may be repeated. NAME alone takes the value from the environment, so that it
// stays out of the shell's history.
func Pairs(flag string, given []string) (map[string]string, error) {
	m := map[string]string{}
	for _, g := range given {
		k, v, ok := strings.Cut(g, "=")
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return nil, fmt.Errorf("--%s %s: write NAME=VALUE, or set the variable %s and name it alone", flag, k,
					k)
			}
		}
		m[k] = v
	}
	return m, nil
}

func (p *commands) parsePairs(flag string, given []string) (map[string]string, error) {
	m, err := Pairs(flag, given)
	if err != nil {
		return nil, p.Usage(err)
	}
	return m, nil
}

func (p *commands) add() *cobra.Command {
	var npm, pip, git, address, cwd, workdir, digest string
	var from fromRegistry
	var sse, yes bool
	var env, headers []string
	c := &cobra.Command{
		Use:   "add NAME [flags] [-- COMMAND ARG...]",
		Short: "Add an MCP server: install it if necessary, and start it", Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 && from.entry == "" {
				return p.Usage(errors.New("give the server a name; only with --registry it has one"))
			}
			return nil
		},
		Long: `Add an MCP server under a name that you choose. A server of the same name is replaced. With --npm, --pip
or --git it is installed in your home session first; COMMAND can then be omitted when the package has one
program. Values of --env and --header are never stored: after a restart of Sandlot give them again with
"sandlot mcp restart". To store a value, use "sandlot secret set NAME" and write ${secret:NAME} in its place
(in single quotes, for the shell). Where the setting mcp_consent is ask, the command shows what it will
install and run, and asks you.`,
		Example: `  sandlot mcp add memory --npm @modelcontextprotocol/server-memory
  sandlot mcp add files --npm @modelcontextprotocol/server-filesystem -- mcp-server-filesystem /workspace
  sandlot mcp add mine --git https://example.com/server.git#main
  sandlot mcp add search --env API_KEY -- node /workspace/search.js
  sandlot mcp add --registry io.github.someone/weather@1.2.0
  sandlot mcp add docs --url https://example.com/mcp --header 'Authorization=Bearer ${secret:DOCS}'`,
	}
	f := c.Flags()
	f.StringVar(&npm, "npm", "", "npm package to install")
	f.StringVar(&pip, "pip", "", "Python package to install")
	f.StringVar(&git, "git", "", "repository to install: https://…, with an optional #branch, #tag or #commit")
	f.StringVar(&digest, "sha256", "", "SHA-256 that the package's file must have, of --npm or --pip")
	from.flags(c)
	f.StringVar(&address, "url", "", "address of a remote server")
	f.BoolVar(&sse, "sse", false, "the remote server uses the older transport HTTP+SSE")
	f.StringVar(&cwd, "cwd", "", "directory to start in (default /workspace)")
	f.StringVar(&workdir, "workdir", "", "folder below /workspace to install into")
	f.StringArrayVar(&env, "env", nil, "variable: NAME=VALUE, or NAME for the value that it has here")
	f.StringArrayVar(&headers, "header", nil, "header of a remote server: NAME=VALUE")
	f.BoolVar(&yes, "yes", false, "consent without a question")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		if from.entry != "" {
			if npm+pip+git+address+cwd+workdir+digest != "" || sse || len(env)+len(headers) > 0 || len(args) > 1 {
				return p.Usage(errors.New("with --registry, the entry says what is installed and which values there are: give " +
					"those with --value"))
			}
			return p.addFromRegistry(c, from, args, yes)
		}
		vars, err := p.parsePairs("env", env)
		headerValues, herr := p.parsePairs("header", headers)
		if err := errors.Join(err, herr); err != nil {
			return err
		}
		ask := builtin.InstallInput{Name: args[0], Env: vars, Workdir: workdir}
		start := args[1:]
		for kind, spec := range map[string]string{"npm": npm, "pip": pip, "git": git} {
			if spec == "" {
				continue
			}
			if ask.Install.Type != "" || address != "" {
				return p.Usage(errors.New("give one of --npm, --pip, --git and --url"))
			}
			ask.Install = builtin.InstallSource{Type: kind, Spec: spec, SHA256: digest}
		}
		if ask.Install.Type == "" {
			to := builtin.ConnectInput{Name: args[0], Env: vars, URL: address, Cwd: cwd, Headers: headerValues}
			if to.Transport = "http"; sse {
				to.Transport = "sse"
			}
			return p.addByAddress(c, to, start, yes)
		}
		if len(start) > 0 {
			ask.Start = builtin.InstallCommand{Command: start[0], Args: start[1:]}
		}
		return p.callWithConsent(c, "auto_install_and_connect_mcp", ask, yes)
	})
}

// addByAddress adds a remote server, or one that the command start runs.
func (p *commands) addByAddress(c *cobra.Command, ask builtin.ConnectInput, start []string, yes bool) error {
	switch {
	case ask.URL != "" && len(start) == 0:
		ask.Cwd = ""
	case ask.URL == "" && len(start) > 0:
		ask.Command, ask.Args, ask.Transport, ask.Headers = start[0], start[1:], "", nil
	default:
		return p.Usage(errors.New("say what to add: --npm, --pip, --git or --url, or a command after --"))
	}
	return p.callWithConsent(c, "connect_external_mcp", ask, yes)
}

// result calls a tool and prints the text of the result, or with --json all of it.
func (p *commands) result(c *cobra.Command, name string, ask any) error {
	var res json.RawMessage
	if err := p.ask(c.Context(), "POST", "/v1/tools/"+url.PathEscape(name), ask, &res); err != nil {
		return err
	}
	return p.printResult(res)
}

func (p *commands) printResult(res json.RawMessage) error {
	if p.asJSON {
		if err := p.json(res); err != nil {
			return err
		}
	}
	return p.showResult(res, p.asJSON)
}

// showResult prints the text of a result; its error is exit code 1 when the result is an error.
func (p *commands) showResult(raw json.RawMessage, quiet bool) error {
	var r struct {
		Content []struct {
			Type, Text, MIMEType, URI, Data string
			Resource                        struct{ URI, Text string }
		} `json:"content"`
		IsError bool `json:"isError"`
		Meta    struct {
			Fault json.RawMessage `json:"sandlot/error"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	out := p.Out
	if r.IsError && len(r.Meta.Fault) > 0 { // a fault of Sandlot's, and not what the tool says
		out, quiet = p.Err, false
	}
	for _, b := range r.Content {
		if quiet {
			break
		}
		switch b.Type {
		case "text":
			fmt.Fprintln(out, plain.Text(b.Text))
		case "resource":
			fmt.Fprintln(out, plain.Text(b.Resource.URI+"\n"+b.Resource.Text))
		case "resource_link":
			fmt.Fprintln(out, plain.Cell(b.URI))
		default:
			fmt.Fprintf(out, "[%s, %s, %d bytes; --json prints it]\n", b.Type, fault.Printable(b.MIMEType, 100),
				base64.StdEncoding.DecodedLen(len(b.Data)))
		}
	}
	if r.IsError {
		return p.Failed
	}
	return nil
}

func (p *commands) remove() *cobra.Command {
	var keep bool
	c := &cobra.Command{Use: "remove NAME", Short: "Stop and remove an MCP server; its files in /workspace stay",
		Args: cobra.ExactArgs(1)}
	c.Flags().BoolVar(&keep, "keep", false, "keep it in the list, for \"sandlot mcp restart\"")
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		return p.result(c, "disconnect_external_mcp",
			builtin.DisconnectInput{ServerInput: builtin.ServerInput{ConnectionID: r.ID}, Delete: !keep})
	})
}

// onServer makes a command call run with the MCP server that its first argument names and
// the other arguments, and gives it the flag --json.
func (p *commands) onServer(c *cobra.Command,
	run func(c *cobra.Command, r connectionRow, args []string) error) *cobra.Command {
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		r, err := p.connection(c, args[0])
		if err != nil {
			return err
		}
		return run(c, r, args[1:])
	})
}

// connection returns the server with that name or connection id.
func (p *commands) connection(c *cobra.Command, what string) (connectionRow, error) {
	list, err := with(c.Context(), p, func(server *client.Client) (hub.ServerList, error) {
		return server.Servers(c.Context())
	})
	if err != nil {
		return connectionRow{}, err
	}
	var names []string
	for _, r := range list.Servers {
		if r.ID == what || r.Name == what {
			return connectionRow{r}, nil
		}
		names = append(names, r.Name)
	}
	hint := cmp.Or(fault.DidYouMean(what, names), "; `sandlot mcp list` shows yours")
	return connectionRow{}, fmt.Errorf("there is no connection %q%s", what, hint)
}

func (p *commands) restart() *cobra.Command {
	var env, headers []string
	var sure bool
	c := &cobra.Command{Use: "restart NAME", Short: "Restart an MCP server, with new values of variables and headers",
		Args: cobra.ExactArgs(1)}
	c.Flags().StringArrayVar(&env, "env", nil, "variable: NAME=VALUE, or NAME for the value that it has here")
	c.Flags().StringArrayVar(&headers, "header", nil, "header of a remote server: NAME=VALUE")
	c.Flags().BoolVar(&sure, "yes", false, "consent without a question")
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		vars, err := p.parsePairs("env", env)
		heads, herr := p.parsePairs("header", headers)
		if err := errors.Join(err, herr); err != nil {
			return err
		}
		ask := builtin.RestartInput{ServerInput: builtin.ServerInput{ConnectionID: r.ID}, Env: vars, Headers: heads}
		return p.callWithConsent(c, "restart_external_mcp", ask, sure)
	})
}

func (p *commands) logs() *cobra.Command {
	var lines int
	var follow bool
	c := &cobra.Command{Use: "logs NAME", Short: "Print the end of an MCP server's log",
		Args:    cobra.ExactArgs(1),
		Example: "  sandlot mcp logs time\n  sandlot mcp logs time --follow"}
	c.Flags().IntVar(&lines, "lines", 100, "number of lines")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print what Sandlot keeps of the log, and then each line as it comes")
	c.MarkFlagsMutuallyExclusive("lines", "follow")
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		if follow && p.asJSON {
			return p.Usage(errors.New("give one of --follow and --json"))
		}
		if follow {
			return p.followLog(c.Context(), r)
		}
		return p.result(c, "external_mcp_logs", struct {
			ID    string `json:"connectionId"`
			Lines int    `json:"lines"` // 0, too, is for the server to refuse
		}{r.ID, lines})
	})
}

// followLog prints the log of a server as it grows, until ctx ends or the server is removed.
func (p *commands) followLog(ctx context.Context, r connectionRow) error {
	client, done, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	err = client.FollowLog(ctx, r.ID, func(text string, lost int64) error {
		switch {
		case lost < 0:
			fmt.Fprintln(p.Err, "[the log begins anew]")
		case lost > 0:
			fmt.Fprintf(p.Err, "[%s missing here]\n", plural.Of(int(lost), "byte is", "bytes are"))
		}
		if text == "" {
			return nil
		}
		_, err := fmt.Fprintln(p.Out, plain.Text(strings.TrimSuffix(text, "\n")))
		return err
	})
	if ctx.Err() != nil { // Ctrl-C is how it ends
		err = nil
	}
	return errors.Join(err, done())
}

func (p *commands) call() *cobra.Command {
	c := &cobra.Command{
		Use: "call NAME TOOL [JSON | KEY=VALUE...]", Short: "Call a tool of an MCP server", Args: cobra.MinimumNArgs(2),
		Long: `Call a tool, by the server's own name of the tool or by the exposed name. The arguments are one JSON object
("-" reads it from standard input), or KEY=VALUE pairs. A VALUE has the type that the tool takes: n=5 is a number
where it takes one, and a text where it takes a text. An object is JSON, and KEY=VALUE again adds to a list. KEY:=JSON
gives any value.`,
		Example: "  sandlot mcp call time get_current_time timezone=Europe/Berlin\n  sandlot mcp call memory " +
			"create_entities '{\"entities\": []}'",
	}
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		t := r.exposedName(args[0])
		if t == "" {
			return r.noTool(args[0])
		}
		ask, err := p.arguments(args[1:], func() (schema, error) {
			var all hub.Server
			err := p.ask(c.Context(), "GET", r.path(), nil, &all)
			return schemaOf(all, t), err
		})
		if err != nil {
			return err
		}
		return p.result(c, t, ask)
	})
}

// noTool returns the error for a tool that the server does not have, with the server's state
// when it is not connected.
func (r connectionRow) noTool(tool string) error {
	state := ""
	if r.State != "connected" && r.State != "idle" {
		state = ", which is " + r.State
		if r.LastError != "" {
			state += " (" + fault.Printable(r.LastError, 500) + ")"
		}
		state += ","
	}
	return fmt.Errorf("%s%s has no tool %q; `sandlot mcp inspect %s` shows what it has", r.Name, state, tool, r.Name)
}

// arguments reads the arguments of a tool from the command line. input returns the tool's schema, for KEY=VALUE.
func (p *commands) arguments(words []string, input func() (schema, error)) (map[string]any, error) {
	ask := map[string]any{}
	if len(words) == 1 && (words[0] == "-" || strings.HasPrefix(strings.TrimSpace(words[0]), "{")) {
		text := []byte(words[0])
		if words[0] == "-" {
			var err error
			if text, err = io.ReadAll(p.In); err != nil {
				return nil, err
			}
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(text, &whole); err != nil {
			return nil, p.Usage(fmt.Errorf("the arguments are not a JSON object: %w", err))
		}
		for k, v := range whole {
			ask[k] = v
		}
		return ask, nil
	}
	for _, w := range words {
		if !strings.Contains(w, "=") {
			return nil, p.Usage(fmt.Errorf("argument %q: write KEY=VALUE, or all of them as one JSON object", w))
		}
	}
	if len(words) == 0 {
		return ask, nil
	}
	s, err := input()
	if err != nil {
		return nil, err
	}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		if err := s.set(ask, k, v); err != nil {
			return nil, p.Usage(err)
		}
	}
	return ask, nil
}

// ask sends a request to the server, and reads its answer into out.
func (p *commands) ask(ctx context.Context, method, path string, in, out any) error {
	client, done, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(client.JSON(ctx, method, path, in, out), done())
}

// with calls do with a client of the server.
func with[T any](ctx context.Context, p *commands, do func(*client.Client) (T, error)) (answer T, err error) {
	server, done, err := p.Connect(ctx)
	if err != nil {
		return answer, err
	}
	answer, err = do(server)
	return answer, errors.Join(err, done())
}

// listAll reads a list of the server with all its pages.
func (p *commands) listAll(ctx context.Context, path string, out any) error {
	client, done, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(client.List(ctx, path, out), done())
}

func (p *commands) json(v any) error {
	enc := json.NewEncoder(p.Out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// withJSON gives a command the flag --json and the function to run, which must respect p.asJSON.
func (p *commands) withJSON(c *cobra.Command, run func(*cobra.Command, []string) error) *cobra.Command {
	c.RunE = run
	c.Flags().BoolVar(&p.asJSON, "json", false, "print JSON")
	return c
}
