package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/cli/doctor"
)

func (p *program) doctor() *cobra.Command {
	var compare bool
	c := &cobra.Command{
		Use: "doctor", Short: "Check that sandboxes work on this machine", Args: cobra.NoArgs,
		Long: "Check the settings and the machine, boot a sandbox and run code in it. The exit code is 1 when a " +
			"check fails. With --all it also looks at each runtime that Sandlot can use: whether it works here, what " +
			"is missing, and what it costs; that does not change the exit code. With the flag --server (and a token " +
			"with the role operator) that server checks its own machine.",
	}
	c.Flags().BoolVar(&compare, "all", false, "compare all runtimes on this machine")
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		all := doctor.Report{OK: true, Checks: []doctor.Check{}}
		report := func(one doctor.Check) {
			all.OK = all.OK && one.OK
			all.Checks = append(all.Checks, one)
			if !p.asJSON {
				p.showCheck(one)
			}
		}
		if c.Flags().Changed("server") { // whoever has set SANDLOT_SERVER asks about this machine still
			if compare {
				return usage{errors.New("--all compares the runtimes of this machine: leave --server out")}
			}
			if err := p.doctorThere(c.Context(), report); err != nil {
				return err
			}
		} else if cfg, err := p.load(nil); err != nil {
			report(doctor.Check{Name: "settings", Detail: err.Error(), Remedy: doctor.Remedy("settings")})
		} else {
			doctor.Examine(c.Context(), cfg, p.errorLog(), p.temporary, report)
			if compare {
				doctor.Compare(c.Context(), cfg, p.errorLog(), func(one doctor.Runtime) {
					all.Runtimes = append(all.Runtimes, one)
					if !p.asJSON {
						fmt.Fprint(p.out, one)
					}
				})
			}
		}
		var err error
		if p.asJSON {
			err = p.json(all)
		}
		if !all.OK {
			err = errors.Join(err, exit(1))
		}
		return err
	})
}

// showCheck prints a check, and what to do about one that has failed.
func (p *program) showCheck(one doctor.Check) {
	fmt.Fprintf(p.out, "%-4s  %-12s %s\n", doctor.Mark(one), one.Name, one.Detail)
	if !one.OK && one.Remedy != "" {
		fmt.Fprintf(p.out, "      %-12s %s\n", "", one.Remedy)
	}
}

// doctorThere lets a server check its own machine.
func (p *program) doctorThere(ctx context.Context, report func(doctor.Check)) error {
	server, err := p.operator()
	if err != nil {
		return err
	}
	found, err := server.Doctor(ctx)
	for _, one := range found.Checks {
		one.Name, one.Detail, one.Remedy = printable(one.Name), printable(one.Detail), printable(one.Remedy)
		report(one)
	}
	return err
}

// examine checks this machine for a running server, with the settings as a start with these flags would have them now.
func (p *program) examine(flags map[string]string, log *slog.Logger) func(context.Context, func(doctor.Check)) {
	return func(ctx context.Context, report func(doctor.Check)) {
		cfg, err := p.load(maps.Clone(flags))
		if err != nil {
			report(doctor.Check{Name: "settings", Detail: err.Error(), Remedy: doctor.Remedy("settings")})
			return
		}
		start := func(ctx context.Context, log *slog.Logger) (*client.Client, func() error, error) {
			return p.temporaryWith(ctx, flags, log)
		}
		doctor.Examine(ctx, cfg, log, start, report)
	}
}
