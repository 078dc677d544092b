package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/conn"
	"sandlot/internal/builtin"
	"sandlot/internal/config"
)

// portNumber reads a port from the command line.
func portNumber(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 65535 {
		return 0, usage{fmt.Errorf("PORT %q must be a number from 1 to 65535", text)}
	}
	return n, nil
}

func (p *program) forward() *cobra.Command {
	var listen string
	c := &cobra.Command{
		Use: "forward SESSION PORT", Short: "Forward a local port to a port of a session", Args: cobra.ExactArgs(2),
		Long: `Listen on this machine and forward each TCP connection to a port of a session, until Ctrl-C.
The command prints the address that it listens on. SESSION is an id or "home".`,
		Example: "  sandlot forward home 8080\n  sandlot forward SESSION_ID 5432 --listen 127.0.0.1:5432",
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on; port 0 selects a free port")
	c.RunE = func(c *cobra.Command, args []string) error {
		port, err := portNumber(args[1])
		if err != nil {
			return err
		}
		api, done, err := p.connect(c.Context())
		if err != nil {
			return err
		}
		if err := api.JSON(c.Context(), "GET", client.SessionPath(args[0]), nil, nil); err != nil {
			return errors.Join(err, done())
		}
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return errors.Join(usage{fmt.Errorf("--listen %q: %w", listen, err)}, done())
		}
		fmt.Fprintln(p.out, l.Addr())
		return errors.Join(p.forwardConns(c.Context(), l, api, args[0], port), done())
	}
	return c
}

// forwardConns accepts connections and forwards them until ctx ends. It closes them before it returns.
func (p *program) forwardConns(ctx context.Context, l net.Listener, client *client.Client, session string,
	port int) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		local, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintln(p.err, "sandlot:", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		all.Go(func() {
			defer local.Close()
			remote, err := client.Dial(ctx, session, port)
			if err != nil {
				if ctx.Err() == nil {
					fmt.Fprintln(p.err, "sandlot:", err)
				}
				return
			}
			end := context.AfterFunc(ctx, func() {
				local.Close()
				remote.Close()
			})
			defer end()
			conn.Splice(local, remote)
		})
	}
}

func (p *program) ports() *cobra.Command {
	var session string
	c := &cobra.Command{
		Use: "ports", Short: "List exposed ports; expose and close them", Args: cobra.NoArgs,
		Example: "  sandlot ports\n  sandlot ports expose home 8080\n  sandlot ports close home 8080",
	}
	c.Flags().StringVar(&session, "session", "", `show only the ports of this session: an id or "home"`)
	p.withJSON(c, func(c *cobra.Command, _ []string) error {
		path := "/v1/sessions"
		if session != "" {
			path = client.SessionPath(session)
		}
		var list builtin.SessionList
		if err := p.list(c.Context(), path, &list); err != nil {
			return err
		}
		type row struct {
			SessionID string `json:"session_id"`
			builtin.Port
		}
		rows := []row{}
		for _, s := range list.Sessions {
			for _, port := range s.Ports {
				rows = append(rows, row{s.ID, port})
			}
		}
		if p.asJSON {
			return p.json(rows)
		}
		p.sayIfNone(len(rows), "No port is exposed.")
		for _, row := range rows {
			access := "private"
			if row.Public {
				access = "public"
			}
			fmt.Fprintf(p.out, "%-27s %-6v %-8s until %s  %s\n", row.SessionID, row.Port.Port, access,
				row.Expires, row.URL)
		}
		return nil
	})
	c.AddCommand(p.exposePort(), p.closePort())
	alsoList(c)
	return c
}

// ask sends one request to the server that the flags name, and reads the answer into out.
func (p *program) ask(ctx context.Context, method, path string, in, out any) error {
	client, done, err := p.connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(client.JSON(ctx, method, path, in, out), done())
}

// list connects to the server and reads a list with all its pages.
func (p *program) list(ctx context.Context, path string, out any) error {
	client, done, err := p.connect(ctx)
	if err != nil {
		return err
	}
	return errors.Join(client.List(ctx, path, out), done())
}

func (p *program) exposePort() *cobra.Command {
	var public bool
	var expires string
	c := &cobra.Command{
		Use: "expose SESSION PORT", Short: "Expose a port and print its URL", Args: cobra.ExactArgs(2),
		Long: "Expose a port of a session, and print a URL with a token that opens it in a browser. The URL of an " +
			"earlier call for the same port becomes invalid.",
		Example: "  sandlot ports expose home 8080\n  sandlot ports expose home 8080 --public --expires 2h",
	}
	c.Flags().BoolVar(&public, "public", false, "the URL has no token: everybody who can reach the server can open it")
	c.Flags().StringVar(&expires, "expires", "", "how long the URL works, such as 2h or 7d (default 24h)")
	return p.withJSON(c, func(c *cobra.Command, args []string) error {
		port, err := portNumber(args[1])
		if err != nil {
			return err
		}
		in := builtin.ExposeInput{SessionInput: builtin.SessionInput{SessionID: args[0]}, Port: port, Public: public}
		if expires != "" {
			life, err := config.ParseDuration(expires)
			if err != nil || life < time.Second {
				return usage{fmt.Errorf("--expires %q must be a duration such as 2h or 7d", expires)}
			}
			in.ExpiresIn = int64(life / time.Second)
		}
		var made builtin.Exposed
		if err := p.ask(c.Context(), "POST", "/v1/tools/expose_port", in, &made); err != nil {
			return err
		}
		if p.asJSON {
			return p.json(made)
		}
		if !made.Listening {
			fmt.Fprintf(p.err, "Nothing listens on port %d yet.\n", port)
		}
		_, err = fmt.Fprintln(p.out, made.URL)
		return err
	})
}

func (p *program) closePort() *cobra.Command {
	return &cobra.Command{
		Use: "close SESSION PORT", Short: "Close an exposed port", Args: cobra.ExactArgs(2),
		Long:    "Close an exposed port: its URL becomes invalid, and connections through it end. The program runs on.",
		Example: "  sandlot ports close home 8080",
		RunE: func(c *cobra.Command, args []string) error {
			port, err := portNumber(args[1])
			if err != nil {
				return err
			}
			var closed builtin.Closed
			if err := p.ask(c.Context(), "POST", "/v1/tools/close_port",
				builtin.ClosePortInput{SessionInput: builtin.SessionInput{SessionID: args[0]},
					Port: port}, &closed); err != nil {
				return err
			}
			if !closed.Success {
				return fmt.Errorf("port %d of session %s is not exposed; see `sandlot ports`", port, args[0])
			}
			return nil
		},
	}
}
