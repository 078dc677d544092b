package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"sandlot/internal/app"
	"sandlot/internal/cli/plain"
	"sandlot/internal/plural"
	"sandlot/internal/servers/spec"
)

// showFolders prints state folders, with what runs and sleeps in each.
func showFolders(out io.Writer, folders []app.StateFolder) error {
	if len(folders) == 0 {
		_, err := fmt.Fprintln(out, "nothing of Sandlot runs")
		return err
	}
	for i, f := range folders {
		if i > 0 {
			fmt.Fprintln(out)
		}
		server := "no server"
		if f.Server != nil {
			server = fmt.Sprintf("server %d, for %s", f.Server.PID, age(f.Server.Since))
		}
		if f.Deleted {
			server = "the folder was deleted"
		}
		fmt.Fprintf(out, "%s: %s, %s%s\n", plain.Cell(f.Path), server,
			plural.Of(len(f.Sandboxes), "sandbox", "sandboxes"), asleep(f))
		if len(f.Sandboxes) == 0 {
			continue
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		lost := false
		fmt.Fprintln(t, "  SESSION\tOWNER\tTEMPLATE\tRUNTIME\tAGE\tMEMORY\tPID\tSERVER")
		for _, s := range f.Sandboxes {
			session, held := s.Session, "yes"
			if session == "" {
				session = "-"
			}
			switch {
			case s.Lost:
				held, lost = "lost", true
			case !s.HasServer:
				held = "no"
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%d MB\t%d\t%s\n", plain.Cell(session), plain.Cell(s.Owner),
				plain.Cell(s.Template), s.Runtime, age(s.Since), s.MemoryBytes>>20, s.PID, held)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if lost {
			end := spec.CommandLine([]string{"sandlot", "--state-dir", f.Path, "stop", "--sessions"})
			fmt.Fprintf(out, "  Records of lost ones were deleted; this ends them: %s\n", plain.Text(end))
		}
	}
	return nil
}

// asleep says how many sessions of a state folder sleep; empty: none.
func asleep(f app.StateFolder) string {
	asleep, paused := f.Resting()
	text := ""
	if asleep > 0 {
		text += ", " + plural.Of(asleep, "session sleeps", "sessions sleep")
	}
	if paused > 0 {
		text += ", " + plural.Of(paused, "session is paused", "sessions are paused")
	}
	return text
}

// age returns the time since then, in its two largest units.
func age(since time.Time) string {
	d := max(time.Since(since), 0).Truncate(time.Second)
	switch {
	case d > 24*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d > time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String()
}
