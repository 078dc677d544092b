package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sandlot/internal/hub"
)

// usageFlags are the flags of `sandlot usage`.
type usageFlags struct {
	user           string
	all, bySession bool
	asJSON         bool
	days           int
}

// usageCommand returns the command `sandlot usage`, which prints to out.
func usageCommand(connect connectOperator, out io.Writer) *cobra.Command {
	var f usageFlags
	c := &cobra.Command{
		Use: "usage", Short: "Show what your sessions have used on past days",
		Long: `Show what your sessions have used on each day (UTC): processor time, the most memory and disk that one had,
traffic, and calls. The server stores 90 days. An operator (without SANDLOT_TOKEN, on the server's machine) may name
another user with --user, or see all with --all.`,
		Example: `  sandlot usage
  sandlot usage --sessions --days 7
  sandlot usage --all`,
		Args: cobra.NoArgs,
	}
	c.Flags().StringVar(&f.user, "user", "", "show the usage of this user; for operators")
	c.Flags().BoolVar(&f.all, "all", false, "show the usage of all users; for operators")
	c.Flags().BoolVar(&f.bySession, "sessions", false, "show each session")
	c.Flags().IntVar(&f.days, "days", 30, "for how many days, up to 90")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	c.MarkFlagsMutuallyExclusive("user", "all")
	c.MarkFlagsMutuallyExclusive("sessions", "all")
	c.RunE = func(c *cobra.Command, _ []string) error {
		u, err := f.read(c.Context(), connect)
		if err != nil {
			return err
		}
		if f.asJSON {
			enc := json.NewEncoder(out)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			return enc.Encode(u)
		}
		return f.print(out, u)
	}
	return c
}

// read asks the server.
func (f *usageFlags) read(ctx context.Context, connect connectOperator) (u hub.Usage, err error) {
	server, done, err := connect(ctx)
	if err != nil {
		return u, err
	}
	if f.all {
		u, err = server.UsageOfAll(ctx, f.days)
	} else {
		u, err = server.Usage(ctx, f.user, f.days)
	}
	return u, errors.Join(err, done())
}

func (f *usageFlags) print(out io.Writer, u hub.Usage) error {
	rows := u.Days
	of, name := "USER", func(r hub.UsageRow) string { return r.Principal }
	if f.bySession {
		of, name = "SESSION", func(r hub.UsageRow) string { return r.Session }
	} else {
		rows = byDay(rows)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "Nothing was used on these days.")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "DAY\t%s\tCPU\tMEMORY\tDISK\tSENT\tRECEIVED\tCALLS\n", of)
	for _, r := range rows {
		who := name(r)
		if who == "" {
			who = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f s\t%d MB\t%d MB\t%d MB\t%d MB\t%d\n", r.Day, who, r.CPU, r.Memory>>20, r.Disk>>20,
			r.Sent>>20, r.Received>>20, r.Calls)
	}
	return t.Flush()
}

// byDay sums up the rows of each principal and day, which follow one another.
func byDay(rows []hub.UsageRow) (sums []hub.UsageRow) {
	for _, r := range rows {
		r.Session = ""
		if n := len(sums) - 1; n >= 0 && sums[n].Day == r.Day && sums[n].Principal == r.Principal {
			s := &sums[n]
			s.CPU, s.Calls, s.Sent, s.Received = s.CPU+r.CPU, s.Calls+r.Calls, s.Sent+r.Sent, s.Received+r.Received
			s.Memory, s.Disk = max(s.Memory, r.Memory), max(s.Disk, r.Disk)
			continue
		}
		sums = append(sums, r)
	}
	return sums
}
