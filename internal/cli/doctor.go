package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"sandlot/internal/cli/doctor"
)

// doctorReport is the JSON of doctor.
type doctorReport struct {
	OK     bool           `json:"ok"`
	Checks []doctor.Check `json:"checks"`
}

func (p *program) doctor() *cobra.Command {
	c := &cobra.Command{
		Use: "doctor", Short: "Check that sandboxes work on this machine", Args: cobra.NoArgs,
		Long: "Check the settings and the machine, boot a sandbox and run code in it. The exit code is 1 when a " +
			"check fails.",
	}
	return p.withJSON(c, func(c *cobra.Command, _ []string) error {
		all := doctorReport{OK: true, Checks: []doctor.Check{}}
		report := func(one doctor.Check) {
			mark := "ok  "
			if !one.OK {
				mark, all.OK = "FAIL", false
			}
			all.Checks = append(all.Checks, one)
			if !p.asJSON {
				fmt.Fprintf(p.out, "%s  %-12s %s\n", mark, one.Name, one.Detail)
			}
		}
		if cfg, err := p.load(nil); err != nil {
			report(doctor.Check{Name: "settings", Detail: err.Error()})
		} else {
			doctor.Examine(c.Context(), cfg, p.errorLog(), p.temporary, report)
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
