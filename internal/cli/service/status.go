package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandlot/internal/api/client"
	"sandlot/internal/api/protocol"
	"sandlot/internal/app"
	"sandlot/internal/autostart"
)

// status is the JSON of `sandlot service status`.
type status struct {
	Installed bool     `json:"installed"`
	Running   bool     `json:"running"`
	AtLogIn   bool     `json:"starts_at_log_in"`
	State     string   `json:"state,omitempty"` // in the system's words
	PID       int      `json:"pid,omitempty"`
	Program   string   `json:"program,omitempty"`
	Args      []string `json:"arguments,omitempty"`
	// Version is the program's; Serving is that of the server that runs.
	Version    string   `json:"version,omitempty"`
	Serving    string   `json:"running_version,omitempty"`
	Address    string   `json:"address,omitempty"`
	StateDir   string   `json:"state_dir,omitempty"`
	Definition string   `json:"definition,omitempty"`
	Log        string   `json:"log,omitempty"` // a file, or the command that shows it
	Notes      []string `json:"notes,omitempty"`
}

func (p *commands) statusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "Show whether the service is installed and runs, and where its log is", Args: cobra.NoArgs,
		Long: "Show whether the service is installed and runs, its program and version, address and log. The exit code " +
			"is 0 if the server runs, else 1.",
		RunE: func(c *cobra.Command, _ []string) error {
			system, err := p.system()
			if err != nil {
				return err
			}
			s, err := p.status(c.Context(), system)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(p.Out)
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				err = enc.Encode(s)
			} else {
				p.print(s)
			}
			if err == nil && !s.Running {
				err = p.Failed
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (p *commands) status(ctx context.Context, system autostart.System) (s status, err error) {
	definition, err := system.Installed(ctx)
	if err != nil || definition == "" {
		return s, err
	}
	s.Installed, s.Definition, s.Log = true, system.Path(), system.LogFile()
	if s.Log == "" {
		s.Log = strings.Join(system.LogCommand(100, false), " ")
	}
	if state, err := system.State(ctx); err != nil {
		s.Notes = append(s.Notes, err.Error())
	} else {
		s.Running, s.AtLogIn, s.State, s.PID = state.Running, state.AtLogIn, state.Text, state.PID
	}
	server, found := autostart.Recorded(definition)
	if !found {
		s.Notes = append(s.Notes, "The definition is not one of `sandlot service install`: which server it starts is "+
			"not known.")
		return s, nil
	}
	if autostart.Edited(system, definition) {
		s.Notes = append(s.Notes, "The definition was changed after `sandlot service install`, or is another version's: "+
			"what is shown here is from then.")
	}
	s.Program, s.Args = server.Program, server.Args
	if s.Version, err = versionOf(ctx, server.Program); err != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("The service cannot start its program (%v): run `sandlot service install` "+
			"with the program that it should start.", err))
	}
	p.addServer(ctx, &s, server)
	if s.Serving != "" && s.Version != "" && s.Serving != s.Version {
		s.Notes = append(s.Notes, "The program has been replaced: `sandlot service restart` starts the new one; "+
			"sessions go on.")
	}
	s.Notes = append(s.Notes, system.Notes(ctx)...)
	return s, nil
}

// addServer adds what the settings and the server say.
func (p *commands) addServer(ctx context.Context, s *status, server autostart.Server) {
	cfg, err := p.recorded(server)
	if err != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("The settings of the service are wrong: %v", err))
		return
	}
	s.Address, s.StateDir = p.LocalURL(cfg), cfg.Server.StateDir
	folder, err := app.InspectStateFolder(ctx, nil, p.Log(), s.StateDir)
	if err != nil || folder.Server == nil {
		return
	}
	if s.PID == 0 && s.Running {
		s.PID = folder.Server.PID
	}
	if s.PID != folder.Server.PID {
		s.Notes = append(s.Notes, fmt.Sprintf("Another server has the state folder, process %d: stop it (`sandlot "+
			"stop`).", folder.Server.PID))
		return
	}
	var health protocol.Health
	c, err := client.New(app.SocketPath(s.StateDir), "", "")
	if err == nil {
		err = c.JSON(ctx, "GET", "/", nil, &health)
	}
	if err != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("The server does not answer: %v", err))
	}
	s.Serving = health.Version
}

// versionOf returns the version of a program.
func versionOf(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "version", "--json").Output()
	if err != nil {
		return "", err
	}
	var v struct{ Version string }
	err = json.Unmarshal(out, &v)
	return v.Version, err
}

func (p *commands) print(s status) {
	if !s.Installed {
		fmt.Fprintln(p.Out, "No service is installed; `sandlot service install` does that.")
		return
	}
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(p.Out, "%-11s %s\n", name, value)
		}
	}
	running := "does not run"
	if s.Running {
		running = "runs"
		if s.PID != 0 {
			running += fmt.Sprintf(", process %d", s.PID)
		}
		if s.Serving != "" {
			running += ", version " + s.Serving
		}
	}
	if s.State != "" {
		running += "; " + s.State
	}
	login := "starts when you log in"
	if !s.AtLogIn {
		login = "does not start when you log in"
	}
	line("server", running)
	line("log-in", login)
	line("address", s.Address)
	line("program", strings.Join(append([]string{s.Program}, s.Args...), " "))
	line("version", s.Version)
	line("state", s.StateDir)
	line("definition", s.Definition)
	line("log", s.Log)
	for _, note := range s.Notes {
		fmt.Fprintln(p.Out, note)
	}
}

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
