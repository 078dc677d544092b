package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"runtime"

	"github.com/spf13/cobra"

	"sandlot/internal/autostart"
	"sandlot/internal/config"
)

// Program has what the commands need of the program.
type Program struct {
	Out, Err io.Writer
	Log      func() *slog.Logger
	// Load reads the settings as this shell has them. flags has values by setting.
	Load func(flags map[string]string) (*config.Config, error)
	// ServerFlags adds the flags of `sandlot serve` that override settings, and returns a function that reads those
	// that are given, by setting. Settings has the settings by these flags.
	ServerFlags func(*cobra.Command) func() map[string]string
	Settings    map[string]string
	LocalURL    func(*config.Config) string
	Confirm     func(ctx context.Context, question string) error
	Failed      error // ends the program with an exit code and no message
}

// System returns the system of this machine and user.
func System() (autostart.System, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	account := autostart.Account{ID: fmt.Sprint(os.Getuid()), Home: home}
	if u, err := user.Current(); err == nil {
		account.ID, account.Name = u.Uid, u.Username
	}
	return autostart.New(autostart.Machine{System: runtime.GOOS, Account: account, Getenv: os.Getenv,
		Run: autostart.RunProgram})
}

// commands are the commands of `sandlot service`.
type commands struct {
	Program
	system func() (autostart.System, error)
}

// installed returns the system and the definition of the service, or an error if there is none.
func (p *commands) installed(ctx context.Context) (autostart.System, string, error) {
	system, err := p.system()
	if err != nil {
		return nil, "", err
	}
	definition, err := system.Installed(ctx)
	if err == nil && definition == "" {
		err = errors.New("no service is installed; `sandlot service install` does that")
	}
	return system, definition, err
}
