package connection

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sandlot/internal/api/protocol"
	"sandlot/internal/app"
	"sandlot/internal/cli/plain"
	"sandlot/internal/fault"
)

// callWithConsent calls a tool over HTTP. When the server requires the user's consent, it
// calls the tool again as an MCP client that can ask the user.
func (p *commands) callWithConsent(c *cobra.Command, tool string, args any, yes bool) error {
	err := p.result(c, tool, args)
	if refused, ok := errors.AsType[*protocol.Problem](err); !ok ||
		refused.ErrorCode != fault.New(fault.Forbidden, "").Code() ||
		refused.Context["consent"] != "ask" {
		return err
	}
	client, done, err := p.Connect(c.Context())
	if err != nil {
		return err
	}
	res, err := client.CallTool(c.Context(), app.Version, tool, args, func(ctx context.Context, message string) bool {
		return p.consents(ctx, message, yes)
	})
	if err = errors.Join(err, done()); err != nil {
		return err
	}
	return p.printResult(res)
}

// consents shows what the server asks consent for, and returns whether the user consents:
// with --yes, or at the terminal.
func (p *commands) consents(ctx context.Context, message string, yes bool) bool {
	fmt.Fprintf(p.Err, "%s\n\n", plain.Text(message))
	if !yes && !p.IsInteractive() {
		fmt.Fprintln(p.Err, "There is no terminal to ask on: --yes consents.")
		return false
	}
	return yes || p.Confirm(ctx, "Do you consent?") == nil
}
