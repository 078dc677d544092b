package connection

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandlot/internal/api/client"
	"sandlot/internal/cli/plain"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

func (p *commands) prompt() *cobra.Command {
	c := &cobra.Command{
		Use: "prompt NAME PROMPT [KEY=VALUE...]", Short: "Print a prompt of an MCP server", Args: cobra.MinimumNArgs(2),
		Long: `Print a prompt of an MCP server, by the server's own name of the prompt or by the exposed name. The values
of its arguments are strings. Each message follows its role. --json prints the whole answer.`,
		Example: "  sandlot mcp prompt notes summarize topic=garden",
	}
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		given := map[string]string{}
		for _, w := range args[1:] {
			k, v, ok := strings.Cut(w, "=")
			if !ok {
				return p.Usage(fmt.Errorf("argument %q: write KEY=VALUE", w))
			}
			given[k] = v
		}
		return p.post(c, r, "prompt", hub.PromptRequest{Name: args[0], Arguments: given}, p.showPrompt)
	})
}

func (p *commands) prompts() *cobra.Command {
	c := &cobra.Command{Use: "prompts", Short: "List the prompts of all MCP servers", Args: cobra.NoArgs}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		prompts, err := with(c.Context(), p, func(server *client.Client) ([]hub.ServerPromptRow, error) {
			return server.Prompts(c.Context())
		})
		if err != nil {
			return err
		}
		if p.asJSON {
			return p.json(prompts)
		}
		for _, one := range prompts {
			fmt.Fprintf(p.Out, "%-20s %s", one.Server, fault.Printable(one.Remote, 200))
			for _, a := range one.Arguments {
				if given := fault.Printable(a.Name, 100) + "="; a.Required {
					fmt.Fprint(p.Out, " "+given)
				} else {
					fmt.Fprint(p.Out, " ["+given+"]")
				}
			}
			fmt.Fprintln(p.Out)
			if one.Description != "" {
				fmt.Fprintf(p.Out, "    %s\n", plain.Cell(one.Description))
			}
		}
		return nil
	})
}

// post sends a request about a server, and prints the answer: with --json as it is, else by
// show.
func (p *commands) post(c *cobra.Command, r connectionRow, verb string, ask any,
	show func(json.RawMessage) error) error {
	var raw json.RawMessage
	if err := p.ask(c.Context(), "POST", r.path()+"/"+verb, ask, &raw); err != nil {
		return err
	}
	if p.asJSON {
		return p.json(raw)
	}
	return show(raw)
}

func (p *commands) showPrompt(raw json.RawMessage) error {
	var r struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	for i, m := range r.Messages {
		if i > 0 {
			fmt.Fprintln(p.Out)
		}
		fmt.Fprintf(p.Out, "%s:\n", fault.Printable(m.Role, 20))
		blocks, err := json.Marshal(map[string]any{"content": []json.RawMessage{m.Content}})
		if err != nil {
			return err
		}
		if err := p.showResult(blocks, false); err != nil {
			return err
		}
	}
	return nil
}

func (p *commands) read() *cobra.Command {
	c := &cobra.Command{
		Use: "read NAME URI", Short: "Print a resource of an MCP server", Args: cobra.ExactArgs(2),
		Long: `Print a resource of an MCP server, of at most 8 MiB, unchanged, so that it can be written to a file. On a
terminal, control characters are left out and binary data is not printed. --json prints the whole answer,
with media types, and binary data in base64.`,
		Example: "  sandlot mcp read notes notes://garden\n  sandlot mcp read notes notes://map.png > map.png",
	}
	return p.onServer(c, func(c *cobra.Command, r connectionRow, args []string) error {
		return p.post(c, r, "read", hub.ResourceRequest{URI: args[0]}, p.showResource)
	})
}

// showResource prints the contents of a resource: the unchanged bytes, or on a terminal the
// text without control characters.
func (p *commands) showResource(raw json.RawMessage) error {
	var r struct {
		Contents []struct {
			Text *string `json:"text"`
			Blob string  `json:"blob"`
		} `json:"contents"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	out, file := p.Out.(*os.File)
	screen := file && term.IsTerminal(int(out.Fd()))
	for _, c := range r.Contents {
		switch {
		case c.Text != nil && screen:
			fmt.Fprintln(p.Out, plain.Text(*c.Text))
		case c.Text != nil:
			if _, err := io.WriteString(p.Out, *c.Text); err != nil {
				return err
			}
		case screen:
			return errors.New("the resource is binary data: write it to a file with > FILE, " +
				"or print it with --json")
		default:
			data, err := base64.StdEncoding.DecodeString(c.Blob)
			if err != nil {
				return fmt.Errorf("the resource's data is not base64: %w", err)
			}
			if _, err := p.Out.Write(data); err != nil {
				return err
			}
		}
	}
	return nil
}
