package cli

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandlot/internal/fault"
)

func (p *program) mcpPrompt() *cobra.Command {
	c := &cobra.Command{
		Use: "prompt NAME PROMPT [KEY=VALUE...]", Short: "Print a prompt of an MCP server", Args: cobra.MinimumNArgs(2),
		Long: `Print a prompt of an MCP server, by the server's own name for it or by the exposed one, with these
arguments, which are texts. Each message begins with whose it is; --json prints all of it.`,
		Example: "  sandlot mcp prompt notes summarize topic=garden",
	}
	p.jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		given := map[string]string{}
		for _, w := range args[2:] {
			k, v, ok := strings.Cut(w, "=")
			if !ok {
				return usage{fmt.Errorf("argument %q: write KEY=VALUE", w)}
			}
			given[k] = v
		}
		raw, err := p.mcpAsk(c, args[0], "prompt", map[string]any{"name": args[1], "arguments": given})
		if err != nil || p.asJSON {
			return err
		}
		return p.showPrompt(raw)
	}
	return c
}

// mcpAsk posts something about a connection, and prints the whole answer where
// that is wanted.
func (p *program) mcpAsk(c *cobra.Command, what, verb string, ask map[string]any) (raw json.RawMessage, err error) {
	r, err := p.connection(c, what)
	if err != nil {
		return nil, err
	}
	if err := p.ask(c.Context(), "POST", "/v1/connections/"+url.PathEscape(r.ID)+"/"+verb, ask, &raw); err != nil {
		return nil, err
	}
	if p.asJSON {
		return raw, p.json(raw)
	}
	return raw, nil
}

func (p *program) showPrompt(raw json.RawMessage) error {
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
			fmt.Fprintln(p.out)
		}
		fmt.Fprintf(p.out, "%s:\n", fault.Printable(m.Role, 20))
		blocks, err := json.Marshal(map[string]any{"content": []json.RawMessage{m.Content}})
		if err != nil {
			return err
		}
		if err := p.show(blocks, false); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) mcpRead() *cobra.Command {
	c := &cobra.Command{
		Use: "read NAME URI", Short: "Print a resource of an MCP server", Args: cobra.ExactArgs(2),
		Long: `Print what a resource of an MCP server holds, of at most 8 MiB: text and data as they are, so that they
can go into a file. On a terminal control characters are left out, and data is not printed. --json
prints all of it, with types, and data in base64.`,
		Example: "  sandlot mcp read notes notes://garden\n  sandlot mcp read notes notes://map.png > map.png",
	}
	p.jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		raw, err := p.mcpAsk(c, args[0], "read", map[string]any{"uri": args[1]})
		if err != nil || p.asJSON {
			return err
		}
		return p.showResource(raw)
	}
	return c
}

// showResource prints the contents of a resource, as bytes unless somebody reads
// them on a terminal.
func (p *program) showResource(raw json.RawMessage) error {
	var r struct {
		Contents []struct {
			Text *string `json:"text"`
			Blob string  `json:"blob"`
		} `json:"contents"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	out, file := p.out.(*os.File)
	screen := file && term.IsTerminal(int(out.Fd()))
	for _, c := range r.Contents {
		switch {
		case c.Text != nil && screen:
			fmt.Fprintln(p.out, harmless(*c.Text))
		case c.Text != nil:
			if _, err := io.WriteString(p.out, *c.Text); err != nil {
				return err
			}
		case screen:
			return errors.New("the resource is data, which is not for a terminal: send it into a file with > FILE, " +
				"or print it with --json")
		default:
			data, err := base64.StdEncoding.DecodeString(c.Blob)
			if err != nil {
				return fmt.Errorf("the resource's data is not base64: %w", err)
			}
			if _, err := p.out.Write(data); err != nil {
				return err
			}
		}
	}
	return nil
}
