package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/autostart"
)

func (p *commands) logsCommand() *cobra.Command {
	var lines int
	var follow bool
	c := &cobra.Command{
		Use: "logs", Short: "Show the server's log", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			system, _, err := p.installed(c.Context())
			if err != nil {
				return err
			}
			if file := system.LogFile(); file != "" {
				return p.showFile(c.Context(), file, lines, follow)
			}
			command := system.LogCommand(lines, follow)
			cmd := exec.CommandContext(c.Context(), command[0], command[1:]...)
			cmd.Stdout, cmd.Stderr = p.Out, p.Err
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
			if err := cmd.Run(); err != nil && c.Context().Err() == nil {
				return fmt.Errorf("`%s`: %w; users have a journal if there is a folder /var/log/journal, else the log "+
					"is in that of the system, for administrators", strings.Join(command, " "), err)
			}
			return nil
		},
	}
	c.Flags().IntVar(&lines, "lines", 100, "how many lines of the past")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new lines until Ctrl-C")
	return c
}

// maxTail bounds how much of a log file's end is read, in bytes.
const maxTail = 1 << 20

// fileTail returns the last lines of a file, and its size.
func fileTail(path string, lines int) (text []byte, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	if size, err = f.Seek(0, io.SeekEnd); err != nil {
		return nil, 0, err
	}
	text = make([]byte, min(size, maxTail))
	if _, err := f.ReadAt(text, size-int64(len(text))); err != nil {
		return nil, 0, err
	}
	for at, left := len(text)-1, lines; at >= 0; at-- {
		if text[at] == '\n' && at < len(text)-1 {
			if left--; left <= 0 {
				return text[at+1:], size, nil
			}
		}
	}
	return text, size, nil
}

// showFile prints the end of a log, and with follow what comes.
func (p *commands) showFile(ctx context.Context, path string, lines int, follow bool) error {
	text, at, err := fileTail(path, lines)
	if errors.Is(err, fs.ErrNotExist) && !follow {
		return fmt.Errorf("there is no log yet: %w", err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := p.Out.Write(text); err != nil || !follow {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
		f, err := os.Open(path) // again each time: it may be a new one
		if errors.Is(err, fs.ErrNotExist) {
			at = 0
			continue
		}
		if err != nil {
			return err
		}
		if st, err := f.Stat(); err == nil && st.Size() < at {
			at = 0
		}
		n, err := io.Copy(p.Out, io.NewSectionReader(f, at, 1<<62))
		at += n
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// logTail returns the last lines of the log.
func logTail(ctx context.Context, system autostart.System, lines int) (string, error) {
	if file := system.LogFile(); file != "" {
		text, _, err := fileTail(file, lines)
		return string(bytes.TrimSpace(text)), err
	}
	command := system.LogCommand(lines, false)
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
	return string(bytes.TrimSpace(out)), err
}
