package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sandlot/internal/cli/doctor"
)

func (p *program) doctor() *cobra.Command {
	var compare bool
	c := &cobra.Command{
		Use: "doctor", Short: "Check that sandboxes work on this machine", Args: cobra.NoArgs,
		Long: "Check the settings and the machine, boot a sandbox and run code in it. The exit code is 1 when a " +
			"check fails. With --all it also looks at each runtime that Sandlot can use: whether it works here, what " +
			"is missing, and what it costs; that does not change the exit code.",
	}
	c.Flags().BoolVar(&compare, "all", false, "compare all runtimes on this machine")
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		all := doctor.Report{OK: true, Checks: []doctor.Check{}}
		report := func(one doctor.Check) {
			all.OK = all.OK && one.OK
			all.Checks = append(all.Checks, one)
			if !p.asJSON {
				fmt.Fprintf(p.out, "%-4s  %-12s %s\n", one.Mark(), one.Name, one.Detail)
			}
		}
		if cfg, err := p.load(nil); err != nil {
			report(doctor.Check{Name: "settings", Detail: err.Error()})
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
