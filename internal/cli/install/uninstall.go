package install

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/clientconfig"
	"sandlot/internal/platform"
	"sandlot/internal/wsl"
)

// Uninstall returns `sandlot uninstall`. With gives it the function to run.
func Uninstall(env Program,
	with func(*cobra.Command, func(*cobra.Command, []string) error) *cobra.Command) *cobra.Command {
	return (&program{env, platform.System}).uninstallCommand(with)
}

func (p *program) uninstallCommand(with func(*cobra.Command, func(*cobra.Command, []string) error) *cobra.Command,
) *cobra.Command {
	var f installFlags
	c := &cobra.Command{
		Use: "uninstall CLIENT", Short: "Remove Sandlot from the settings of an MCP client",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: clientconfig.IDs(),
		Long: `Remove Sandlot from the settings file of an MCP client on this machine. CLIENT is one of
` + strings.Join(clientconfig.IDs(), ", ") + `.

The command shows the change and asks before it writes. The rest of the file stays as it is, and a
backup is kept beside it. Sessions and their files are not touched.`,
		Example: "  sandlot uninstall cursor\n  sandlot uninstall codex --yes",
	}
	p.placeFlags(c, &f)
	return with(c, func(c *cobra.Command, args []string) error {
		k, err := p.clientOf(args)
		if err != nil {
			return err
		}
		f.here = wsl.Here(c.Context())
		return p.uninstallFrom(c.Context(), k, f)
	})
}

// placeFlags adds the flags that say which file is changed, and how.
func (p *program) placeFlags(c *cobra.Command, f *installFlags) {
	flags := c.Flags()
	flags.StringVar(&f.server.Name, "name", "sandlot", "name of the server in the client")
	flags.StringVar(&f.file, "file", "", "settings file of the client (default: its usual place; see --list of install)")
	flags.BoolVar(&f.windows, "windows", false, "in WSL: write the settings of Windows's client")
	flags.BoolVar(&f.dryRun, "dry-run", false, "show the change without writing it")
	flags.BoolVar(&f.yes, "yes", false, "write without asking")
}

// clientOf returns the client that the arguments name.
func (p *program) clientOf(args []string) (clientconfig.Client, error) {
	if len(args) == 0 {
		return clientconfig.Client{}, p.Usage(fmt.Errorf("which client? One of %s; see `sandlot install --list`",
			strings.Join(clientconfig.IDs(), ", ")))
	}
	k, err := clientconfig.Find(args[0])
	if err != nil {
		return k, p.Usage(err)
	}
	return k, nil
}

func (p *program) uninstallFrom(ctx context.Context, k clientconfig.Client, f installFlags) error {
	file, err := p.fileOf(ctx, k, &f)
	if err != nil {
		return err
	}
	change, err := k.PlanRemoval(file, f.server.Name)
	if err != nil {
		return err
	}
	if change.New || change.Unchanged() {
		fmt.Fprintf(p.Out, "%s has no server %q: nothing to do.\n", file, f.server.Name)
		return nil
	}
	fmt.Fprint(p.Out, change.Diff())
	return p.write(ctx, change, f, k.Title+" no longer has it after its next start.")
}

// write writes a change that was shown, if the user wants it, and says what comes next.
func (p *program) write(ctx context.Context, change *clientconfig.Change, f installFlags, next string) error {
	if f.dryRun {
		return nil
	}
	if !f.yes {
		if err := p.Confirm(ctx, "Write this to "+change.Path+"?"); err != nil {
			return err
		}
	}
	backup, err := change.Write(time.Now())
	if err != nil {
		return err
	}
	fmt.Fprintf(p.Out, "\n%s is written.", change.Path)
	if backup != "" {
		fmt.Fprintf(p.Out, " As it was before: %s.", backup)
	}
	fmt.Fprintf(p.Out, "\n%s\n", next)
	return nil
}

// present returns the client's file under the name that it has on this machine.
func present(k clientconfig.Client, file string) string {
	if other := k.Sibling(file); other != "" {
		if _, err := os.Stat(file); err != nil && exists(other) {
			return other
		}
	}
	return file
}
