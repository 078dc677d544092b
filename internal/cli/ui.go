package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sandlot/internal/tui"
)

var errNoTerminal = errors.New("this needs a terminal; `sandlot events` and `sandlot questions` print to anything")

func (p *program) ui() *cobra.Command {
	return &cobra.Command{
		Use: "ui", Short: "Show sessions, servers and questions in the terminal", Args: cobra.NoArgs,
		Long: `Show what happens on the server, as it happens: the questions that wait for you, your sessions, your MCP servers,
and a timeline. "sandlot" without arguments does the same in a terminal. Keys: ? says which.

Your own commands are shell scripts in the folder "sandlot/commands" of your settings, such as
~/.config/sandlot/commands/test.sh: they run in the selected session.`,
		Example: "  sandlot ui\n  SANDLOT_TOKEN=… sandlot ui --server https://sandlot.example.com",
		RunE: func(c *cobra.Command, _ []string) error {
			if !p.onTerminal() {
				return usage{errNoTerminal}
			}
			return p.showUI(c)
		},
	}
}

// onTerminal reports whether both standard input and output are a terminal.
func (p *program) onTerminal() bool {
	out, ok := p.out.(*os.File)
	return ok && p.isInteractive() && term.IsTerminal(int(out.Fd()))
}

// begin shows the interface on a terminal, and else the help.
func (p *program) begin(c *cobra.Command, _ []string) error {
	if !p.onTerminal() {
		return c.Help()
	}
	return p.showUI(c)
}

func (p *program) showUI(c *cobra.Command) error {
	api, err := p.client()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	scripts := ""
	if folder, err := os.UserConfigDir(); err == nil {
		scripts = filepath.Join(folder, "sandlot", "commands")
	}
	return tui.Run(c.Context(), tui.Options{Client: api, Server: p.server, Scripts: scripts, In: p.in, Out: p.out,
		Shell: func(session string) *exec.Cmd { return exec.Command(self, p.again("shell", "--session="+session)...) }})
}

// again returns the arguments of this program with which a command finds the same server.
func (p *program) again(command ...string) (args []string) {
	for flag, value := range map[string]string{"--config": p.configFile, "--state-dir": p.stateDir, "--server": p.server} {
		if value != "" {
			args = append(args, flag+"="+value)
		}
	}
	return append(args, command...)
}
