package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api"
	"sandlot/internal/app"
	"sandlot/internal/builtin"
	"sandlot/internal/config"
	"sandlot/internal/egress"
	"sandlot/internal/sandbox"
)

func (p *program) doctor() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Check that sandboxes work on this machine", Args: cobra.NoArgs,
		Long: "Check the settings, the programs and the machine, boot one sandbox and run code in it.",
	}
	p.jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		checks, bad := []check{}, false
		err := p.examine(c.Context(), func(ok bool, what, more string) {
			mark := "ok  "
			if !ok {
				mark, bad = "FAIL", true
			}
			checks = append(checks, check{what, ok, more})
			if !p.asJSON {
				fmt.Fprintf(p.out, "%s  %-12s %s\n", mark, what, more)
			}
		})
		if p.asJSON {
			err = errors.Join(p.json(map[string]any{"ok": !bad && err == nil, "checks": checks}), err)
		}
		if err == nil && bad {
			err = exit(1)
		}
		return err
	}
	return c
}

// check is one thing that the doctor looked at.
type check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// examine says what it finds; its error is that no more can be looked at.
func (p *program) examine(ctx context.Context, say func(ok bool, what, more string)) error {
	cfg, err := p.load(nil)
	if err != nil {
		say(false, "settings", err.Error())
		return exit(1)
	}
	say(true, "settings", fmt.Sprintf("state in %s, runtime %s (see `sandlot config`)", cfg.Server.StateDir,
		cfg.Runtime.Name))
	templates, err := app.Templates(cfg)
	if err != nil {
		say(false, "templates", err.Error())
		return exit(1)
	}
	for _, t := range templates {
		say(true, "template", fmt.Sprintf("%s: %v", t.Name, t.LanguageNames()))
	}
	rt, err := app.Runtime(cfg, p.errorLog())
	if err == nil {
		err = errors.Join(rt.Check(ctx), rt.Close())
	}
	if err != nil {
		say(false, cfg.Runtime.Name, err.Error())
		return exit(1)
	}
	mode := "as root"
	if os.Getuid() != 0 {
		mode = "without root (boots are slower; memory is watched by the server, not enforced by the kernel)"
	}
	say(true, cfg.Runtime.Name, "runs here, "+mode)
	if w, ok := rt.(sandbox.Warner); ok && w.Warning() != "" {
		say(true, "limits", "WARNING: "+w.Warning())
	}
	say(true, "snapshots", snapshots(rt))
	if took, err := wakeUp(); err == nil {
		poll, _ := os.ReadFile(haltPoll)
		governor, _ := os.ReadFile(idleGovernor)
		say(true, "wake-ups", wakeUps(took, strings.TrimSpace(string(poll)), strings.TrimSpace(string(governor))))
	}
	p.bootOne(ctx, cfg, say)
	return nil
}

// snapshots says whether a server's sandboxes start from preboot images, or why not.
func snapshots(rt sandbox.Runtime) string {
	prebooter, ok := rt.(sandbox.Prebooter)
	if !ok {
		return "none, each sandbox boots: the runtime " + rt.Name() + " makes none"
	}
	if err := prebooter.CanPreboot(); err != nil {
		return "none, each sandbox boots: " + err.Error()
	}
	return "new sandboxes start from one that has booted, some seconds after the server's start"
}

func (p *program) bootOne(ctx context.Context, cfg *config.Config, say func(bool, string, string)) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	start := time.Now()
	client, done, err := p.fleeting(ctx)
	if err != nil {
		say(false, "boot", err.Error())
		return
	}
	var res builtin.CodeResult
	err = client.JSON(ctx, "POST", "/v1/tools/execute_code", builtin.CodeInput{SessionInput: fresh, Code: "6*7"}, &res)
	took, said := time.Since(start), ""
	if res.Value != nil {
		said = *res.Value
	}
	if err == nil && said == "42" {
		checkNetwork(ctx, client, cfg, say)
	}
	if err = errors.Join(err, done()); err != nil {
		say(false, "boot", err.Error())
		return
	}
	say(said == "42", "boot", fmt.Sprintf("a sandbox booted, answered %s for 6*7 and was removed, %d ms",
		said, took.Milliseconds()))
}

// fresh is a session that is made for one call.
var fresh = builtin.SessionInput{SessionID: "new"}

// checkNetwork tries what no policy allows: an address for documentation.
func checkNetwork(ctx context.Context, client *api.Client, cfg *config.Config, say func(bool, string, string)) {
	mode := cfg.Network.Mode
	if mode == string(egress.Open) {
		say(true, "network", "WARNING: open: sandboxes use this machine's own network. No rule holds; they reach "+
			"whatever it reaches, services on its loopback and cloud metadata included")
		return
	}
	var res builtin.CommandResult
	err := client.JSON(ctx, "POST", "/v1/tools/execute_command", builtin.CommandInput{SessionInput: fresh,
		Timeout: 20, Command: "exec 3<>/dev/tcp/192.0.2.1/9; head -c 1 <&3"}, &res)
	switch {
	case err != nil:
		say(false, "network", err.Error())
	case len(res.NetworkRefused) != 1 || res.NetworkRefused[0].Host != "192.0.2.1":
		say(false, "network", "a connection to an address that no rule allows was not led to the broker; nothing but "+
			"loopback can be reached, and package managers will fail")
	default:
		say(true, "network", fmt.Sprintf("%s; what no rule allows was refused (see `sandlot network`)", mode))
	}
}
