package connection

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sandlot/internal/api/protocol"
	"sandlot/internal/cli/plain"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/plural"
)

func (p *commands) inspect() *cobra.Command {
	c := &cobra.Command{Use: "inspect NAME",
		Short: "Show the tools, prompts and resources of an MCP server, and what is approved",
		Args:  cobra.ExactArgs(1)}
	return p.onServer(c, func(c *cobra.Command, r connectionRow, _ []string) error {
		var all hub.Server
		err := p.ask(c.Context(), "GET", r.path(), nil, &all)
		switch {
		case err != nil:
			return err
		case p.asJSON:
			return p.json(all)
		}
		p.showServer(all)
		return nil
	})
}

func (p *commands) showServer(all hub.Server) {
	fmt.Fprintf(p.Out, "%s (%s): %s\n", all.Name, all.ID, all.State)
	for _, t := range all.Tools {
		p.showTool(t)
	}
	for _, d := range all.Prompts {
		fmt.Fprintf(p.Out, "\nprompt %s\n", d.Exposed)
	}
	for _, d := range all.Resources {
		fmt.Fprintf(p.Out, "\nresource %s\n", plain.Cell(d.Exposed))
	}
	for _, d := range all.Templates {
		fmt.Fprintf(p.Out, "\nresource template %s\n", plain.Cell(d.Exposed))
	}
	for _, o := range all.LeftOut {
		fmt.Fprintf(p.Out, "\nleft out: %s\n", plain.Cell(o))
	}
}

// showTool prints everything that a model reads of a tool, so that the user sees what
// they approve. Of a tool that has changed, it prints the difference from what was approved.
func (p *commands) showTool(t hub.ServerTool) {
	fmt.Fprintf(p.Out, "\ntool %s\n  its own name: %s\n  definition:   %s", t.Exposed, fault.Printable(t.Remote, 200),
		t.Hash)
	if t.HeldBecause != "" {
		fmt.Fprintf(p.Out, ", HELD BACK: %s", t.HeldBecause)
		if t.Approved != "" {
			fmt.Fprintf(p.Out, " (approved: %s)", t.Approved)
		}
	}
	fmt.Fprintln(p.Out)
	lines := readable(t.Raw)
	if len(t.Before) > 0 {
		lines = difference(readable(t.Before), lines)
	}
	for _, l := range lines {
		fmt.Fprintf(p.Out, "  %s\n", l)
	}
}

func (p *commands) approveCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{Use: "approve NAME", Short: "Approve the new and changed tools of an MCP server",
		Args: cobra.ExactArgs(1),
		Long: `A tool that is new, or whose definition has changed, since its server was connected is held back until you
approve it: agents cannot call it. The command shows the definitions, or how they have changed, and asks on a
terminal. A tool that
changes after it was shown stays held back.`}
	c.Flags().BoolVar(&yes, "yes", false, "approve without asking")
	return p.onServer(c, func(c *cobra.Command, r connectionRow, _ []string) error { return p.approve(c, r, yes) })
}

func (p *commands) approve(c *cobra.Command, r connectionRow, yes bool) error {
	var all hub.Server
	if err := p.ask(c.Context(), "GET", r.path(), nil, &all); err != nil {
		return err
	}
	seen, held := map[string]string{}, 0
	for _, t := range all.Tools {
		seen[t.Remote] = t.Hash
		if t.HeldBecause == "" {
			continue
		}
		held++
		if !p.asJSON {
			p.showTool(t)
		}
	}
	if held > 0 && !p.asJSON && !yes && p.IsInteractive() {
		if err := p.Confirm(c.Context(), fmt.Sprintf("\nApprove %d of the tools of %s as shown above?", held,
			all.Name)); err != nil {
			return errors.New("nothing was approved")
		}
	}
	var done protocol.Approved
	if err := p.ask(c.Context(), "POST", r.path()+"/approve",
		hub.Approval{Tools: seen}, &done); err != nil {
		return err
	}
	if p.asJSON {
		return p.json(done)
	}
	fmt.Fprintf(p.Out, "approved; %s offers %s\n", all.Name, plural.Of(done.ToolCount, "tool", "tools"))
	for _, h := range done.HeldTools {
		fmt.Fprintf(p.Out, "still held back: %s, as %s\n", fault.Printable(h.Remote, 100), h.Reason)
	}
	return nil
}
