package cli

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sandlot/internal/builtin"
	"sandlot/internal/fault"
)

func (p *program) mcp() *cobra.Command {
	c := &cobra.Command{
		Use: "mcp", Short: "Third-party MCP servers in your home session, and remote ones",
		Long: `Third-party MCP servers, whose tools your agents see beside Sandlot's own: yours, which run in
your home session or are connected to over HTTP, and those of the operator's settings.`,
		Example: "  sandlot mcp add time --pip mcp-server-time\n  sandlot mcp list\n  sandlot mcp call time " +
			"get_current_time timezone=UTC",
	}
	c.AddCommand(p.mcpList(), p.mcpAdd(), p.mcpRemove(), p.mcpRestart(), p.mcpLogs(), p.mcpInspect(), p.mcpApprove(),
		p.mcpCall(), p.mcpPrompt(), p.mcpRead())
	return c
}

// connectionRow is a server as list_external_mcp gives it.
type connectionRow struct{ builtin.ServerRow }

// exposed is the exposed name of a tool under either of its names: one that is
// held back too, of which the server says why it cannot be called. Empty: it has
// none of that name.
func (r connectionRow) exposed(tool string) string {
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

// path is the server's path in the API.
func (r connectionRow) path() string { return "/v1/connections/" + url.PathEscape(r.ID) }

func (r connectionRow) runs() string {
	switch {
	case r.Configured:
		return "(by the operator's settings)"
	case r.URL != "":
		return r.URL
	}
	return strings.Join(append([]string{r.Command}, r.Args...), " ")
}

func (p *program) mcpList() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the MCP servers and how they are", Args: cobra.NoArgs}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		var list builtin.ServerList
		if err := p.ask(c.Context(), "GET", "/v1/connections", nil, &list); err != nil {
			return err
		}
		if p.asJSON {
			return p.json(list.Servers)
		}
		for _, one := range list.Servers {
			r := connectionRow{one}
			fmt.Fprintf(p.out, "%-8s %-20s %-14s %3d tools  %s\n", r.ID, r.Name, r.State, r.ToolCount,
				fault.Printable(r.runs(), 200))
			if r.LastError != "" {
				fmt.Fprintf(p.out, "         %s\n", fault.Printable(r.LastError, 500))
			}
			for _, h := range r.HeldTools {
				fmt.Fprintf(p.out, "         held back: %s, as %s\n", fault.Printable(h.Remote, 100), h.Reason)
			}
		}
		return nil
	})
}

// pairs reads NAME=VALUE; NAME alone takes the value of the environment, so that
// it is in no history of commands.
func pairs(flag string, given []string) (map[string]string, error) {
	m := map[string]string{}
	for _, g := range given {
		k, v, ok := strings.Cut(g, "=")
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return nil, usage{fmt.Errorf("--%s %s: write NAME=VALUE, or set the variable %s and name it alone",
					flag, k, k)}
			}
		}
		m[k] = v
	}
	return m, nil
}

func (p *program) mcpAdd() *cobra.Command {
	var npm, pip, git, address, cwd, workdir string
	var sse, sure bool
	var env, headers []string
	c := &cobra.Command{
		Use:   "add NAME [flags] [-- COMMAND ARG...]",
		Short: "Add an MCP server, install it where that is asked for, and start it", Args: cobra.MinimumNArgs(1),
		Long: `Add an MCP server under a name of yours. What runs is shown. A used name replaces that server.
With --npm, --pip or --git it is installed in your home session first; COMMAND may then be left out
when the package has one program. Values of --env and --header are never stored: after a restart of
the server give them again with "sandlot mcp restart". What "sandlot secret set NAME" has stored lasts:
${secret:NAME} stands for it in a value (in single quotes, for the shell). Where the server wants its
user's consent (mcp_consent: ask), what will be installed and run is shown first, and you are asked.`,
		Example: `  sandlot mcp add memory --npm @modelcontextprotocol/server-memory
  sandlot mcp add files --npm @modelcontextprotocol/server-filesystem -- mcp-server-filesystem /workspace
  sandlot mcp add mine --git https://example.com/server.git#main
  sandlot mcp add search --env API_KEY -- node /workspace/search.js
  sandlot mcp add docs --url https://example.com/mcp --header 'Authorization=Bearer ${secret:DOCS}'`,
	}
	f := c.Flags()
	f.StringVar(&npm, "npm", "", "npm package to install")
	f.StringVar(&pip, "pip", "", "Python package to install")
	f.StringVar(&git, "git", "", "repository to install: https://…, with an optional #branch, #tag or #commit")
	f.StringVar(&address, "url", "", "address of a remote server")
	f.BoolVar(&sse, "sse", false, "the remote server speaks the older HTTP+SSE")
	f.StringVar(&cwd, "cwd", "", "directory to start in (default /workspace)")
	f.StringVar(&workdir, "workdir", "", "folder beneath /workspace to install into")
	f.StringArrayVar(&env, "env", nil, "variable: NAME=VALUE, or NAME for the value that it has here")
	f.StringArrayVar(&headers, "header", nil, "header of a remote server: NAME=VALUE")
	f.BoolVar(&sure, "yes", false, "consent without being asked")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		vars, err := pairs("env", env)
		heads, herr := pairs("header", headers)
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
				return usage{errors.New("give one of --npm, --pip, --git and --url")}
			}
			ask.Install = builtin.InstallSource{Type: kind, Spec: spec}
		}
		if ask.Install.Type == "" {
			to := builtin.ConnectInput{Name: args[0], Env: vars, URL: address, Cwd: cwd, Headers: heads}
			if to.Transport = "http"; sse {
				to.Transport = "sse"
			}
			return p.mcpConnect(c, to, start, sure)
		}
		if len(start) > 0 {
			ask.Start = builtin.InstallCommand{Command: start[0], Args: start[1:]}
		}
		return p.callWithConsent(c, "auto_install_and_connect_mcp", ask, sure)
	})
}

// mcpConnect connects a remote server, or one that is started so.
func (p *program) mcpConnect(c *cobra.Command, ask builtin.ConnectInput, start []string, sure bool) error {
	switch {
	case ask.URL != "" && len(start) == 0:
		ask.Cwd = ""
	case ask.URL == "" && len(start) > 0:
		ask.Command, ask.Args, ask.Transport, ask.Headers = start[0], start[1:], "", nil
	default:
		return usage{errors.New("say what to add: --npm, --pip, --git or --url, or a command after --")}
	}
	return p.callWithConsent(c, "connect_external_mcp", ask, sure)
}

// mcpResult calls a tool and prints its words, or all of it.
func (p *program) mcpResult(c *cobra.Command, name string, ask any) error {
	var res json.RawMessage
	if err := p.ask(c.Context(), "POST", "/v1/tools/"+url.PathEscape(name), ask, &res); err != nil {
		return err
	}
	return p.printed(res)
}

func (p *program) printed(res json.RawMessage) error {
	if p.asJSON {
		if err := p.json(res); err != nil {
			return err
		}
	}
	return p.show(res, p.asJSON)
}

// show prints the text of a result; one that is an error ends with code 1.
func (p *program) show(raw json.RawMessage, quiet bool) error {
	var r struct {
		Content []struct {
			Type, Text, MIMEType, URI, Data string
			Resource                        struct{ URI, Text string }
		} `json:"content"`
		IsError bool `json:"isError"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	for _, b := range r.Content {
		if quiet {
			break
		}
		switch b.Type {
		case "text":
			fmt.Fprintln(p.out, harmless(b.Text))
		case "resource":
			fmt.Fprintln(p.out, harmless(b.Resource.URI+"\n"+b.Resource.Text))
		case "resource_link":
			fmt.Fprintln(p.out, harmless(b.URI))
		default:
			fmt.Fprintf(p.out, "[%s, %s, %d bytes; --json prints it]\n", b.Type, fault.Printable(b.MIMEType, 100),
				base64.StdEncoding.DecodedLen(len(b.Data)))
		}
	}
	if r.IsError {
		return exit(1)
	}
	return nil
}

// harmless is a stranger's text without what a terminal would obey.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, s)
}

func (p *program) mcpRemove() *cobra.Command {
	var keep bool
	c := &cobra.Command{Use: "remove NAME", Short: "Stop an MCP server and forget it; its files in /workspace stay",
		Args: cobra.ExactArgs(1)}
	c.Flags().BoolVar(&keep, "keep", false, "keep it in the list, for `sandlot mcp restart`")
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		return p.mcpResult(c, "disconnect_external_mcp",
			builtin.DisconnectInput{ServerInput: builtin.ServerInput{ConnectionID: r.ID}, Delete: !keep})
	})
}

// onServer makes run what a command does with the MCP server that its first argument
// names; it gets the others. It prints JSON where that is wanted.
func (p *program) onServer(c *cobra.Command,
	run func(c *cobra.Command, r connectionRow, args []string) error) *cobra.Command {
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		r, err := p.connection(c, args[0])
		if err != nil {
			return err
		}
		return run(c, r, args[1:])
	})
}

// connection finds one by its id or name.
func (p *program) connection(c *cobra.Command, what string) (connectionRow, error) {
	var list builtin.ServerList
	if err := p.ask(c.Context(), "GET", "/v1/connections", nil, &list); err != nil {
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

func (p *program) mcpRestart() *cobra.Command {
	var env, headers []string
	var sure bool
	c := &cobra.Command{Use: "restart NAME", Short: "Start an MCP server again, with values that were not stored",
		Args: cobra.ExactArgs(1)}
	c.Flags().StringArrayVar(&env, "env", nil, "variable: NAME=VALUE, or NAME for the value that it has here")
	c.Flags().StringArrayVar(&headers, "header", nil, "header of a remote server: NAME=VALUE")
	c.Flags().BoolVar(&sure, "yes", false, "consent to variables that it did not have without being asked")
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		vars, err := pairs("env", env)
		heads, herr := pairs("header", headers)
		if err := errors.Join(err, herr); err != nil {
			return err
		}
		ask := builtin.RestartInput{ServerInput: builtin.ServerInput{ConnectionID: r.ID}, Env: vars, Headers: heads}
		return p.callWithConsent(c, "restart_external_mcp", ask, sure)
	})
}

func (p *program) mcpLogs() *cobra.Command {
	var lines int
	c := &cobra.Command{Use: "logs NAME", Short: "Print the last lines that an MCP server wrote",
		Args: cobra.ExactArgs(1)}
	c.Flags().IntVar(&lines, "lines", 100, "how many")
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		return p.mcpResult(c, "external_mcp_logs", struct {
			ID    string `json:"connectionId"`
			Lines int    `json:"lines"` // 0, too, is for the server to refuse
		}{r.ID, lines})
	})
}

func (p *program) mcpCall() *cobra.Command {
	c := &cobra.Command{
		Use: "call NAME TOOL [JSON | KEY=VALUE...]", Short: "Call a tool of an MCP server", Args: cobra.MinimumNArgs(2),
		Long: `Call a tool by the server's own name for it, or by the exposed one. Arguments are one JSON object
("-" reads it from the input), or KEY=VALUE, where VALUE is JSON if it can be read as such, and else a text.`,
		Example: "  sandlot mcp call time get_current_time timezone=Europe/Berlin\n  sandlot mcp call memory " +
			"create_entities '{\"entities\": []}'",
	}
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		ask, err := p.arguments(args[1:])
		if err != nil {
			return err
		}
		if t := r.exposed(args[0]); t != "" {
			return p.mcpResult(c, t, ask)
		}
		return r.lacks(args[0])
	})
}

// lacks says that a server has no tool of that name, and its state when that may be why.
func (r connectionRow) lacks(tool string) error {
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

// arguments reads a tool's arguments from the command line.
func (p *program) arguments(words []string) (map[string]any, error) {
	ask := map[string]any{}
	if len(words) == 1 && (words[0] == "-" || strings.HasPrefix(strings.TrimSpace(words[0]), "{")) {
		text := []byte(words[0])
		if words[0] == "-" {
			var err error
			if text, err = io.ReadAll(p.in); err != nil {
				return nil, err
			}
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(text, &whole); err != nil {
			return nil, usage{fmt.Errorf("the arguments are no JSON object: %w", err)}
		}
		for k, v := range whole {
			ask[k] = v
		}
		return ask, nil
	}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			return nil, usage{fmt.Errorf("argument %q: write KEY=VALUE, or all of them as one JSON object", w)}
		}
		if ask[k] = any(v); json.Valid([]byte(v)) {
			ask[k] = json.RawMessage(v)
		}
	}
	return ask, nil
}
