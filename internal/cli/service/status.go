package service

import (
	"context"
	"encoding/json"
	"fmt"
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
		Use: "status", Short: "Show whether the service is installed and runs, and where its log is",
		Args: cobra.NoArgs,
		Long: "Show whether the service is installed and runs, its program and version, address and log. The exit " +
			"code is 0 if the server runs, else 1.",
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
		s.Notes = append(s.Notes, "The definition was changed after `sandlot service install`, or is another "+
			"version's: what is shown here is from then.")
	}
	s.Program, s.Args = server.Program, server.Args
	if s.Version, err = versionOf(ctx, server.Program); err != nil {
		s.Notes = append(s.Notes, fmt.Sprintf("The service cannot start its program (%v): run `sandlot service "+
			"install` with the program that it should start.", err))
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
