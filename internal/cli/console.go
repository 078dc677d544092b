package cli

import (
	"bytes"
	"context"
	"fmt"
	"html/template"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/protocol"
)

func (p *program) console() *cobra.Command {
	c := &cobra.Command{
		Use: "console", Short: "Print a link to the web console, with which a browser logs in",
		Long: `Print a link to the server's web console. The browser that opens it is logged in as you. The link counts
once, and for a minute. Without SANDLOT_TOKEN, on the server's machine, you are its operator.`,
		Example: `  sandlot console
  sandlot console --open`,
		Args: cobra.NoArgs,
	}
	open := c.Flags().Bool("open", false, "open it in this machine's browser")
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		server, err := p.client()
		if err != nil {
			return err
		}
		var link protocol.ConsoleLink
		if err := server.JSON(c.Context(), "POST", "/v1/console/codes", nil, &link); err != nil {
			return err
		}
		if p.asJSON {
			return p.json(link)
		}
		fmt.Fprintln(p.out, link.URL)
		if *open {
			return openBrowser(c.Context(), link.URL)
		}
		return nil
	})
}

// opening is the page that a browser opens first. An address in the arguments of a program would show its code to all
// users of the machine.
var opening = template.Must(template.New("").Parse(
	`<!doctype html><meta charset="utf-8"><title>Sandlot</title><meta http-equiv="refresh" content="0;url={{.}}">`))

// openBrowser opens an address in the browser of the machine's user.
func openBrowser(ctx context.Context, address string) error {
	folder, err := os.MkdirTemp("", "sandlot-console-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "open.html")
	var page bytes.Buffer
	if err := opening.Execute(&page, address); err != nil {
		return err
	}
	if err := os.WriteFile(file, page.Bytes(), 0o600); err != nil {
		return err
	}
	command := []string{"xdg-open", file}
	switch runtime.GOOS {
	case "darwin":
		command[0] = "open"
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler", file}
	}
	if err := exec.CommandContext(ctx, command[0], command[1:]...).Run(); err != nil {
		return fmt.Errorf("no browser was opened (%w): open the address yourself", err)
	}
	select { // the browser reads the file after the command has ended
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
	}
	return nil
}
