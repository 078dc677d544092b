package service

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sandlot/internal/app"
	"sandlot/internal/autostart"
	"sandlot/internal/config"
)

// describe returns the server that the service starts: this program with these flags, the settings file and the state
// folder of this shell. cfg are the settings that it will have.
func (p *commands) describe(system autostart.System, flags map[string]string) (autostart.Server, *config.Config,
	error) {
	here, err := p.Load(flags)
	if err != nil {
		return autostart.Server{}, nil, err
	}
	program, err := ownProgram()
	if err != nil {
		return autostart.Server{}, nil, err
	}
	server := autostart.Server{Program: program, Args: []string{"serve"}}
	for _, flag := range slices.Sorted(maps.Keys(p.Settings)) {
		if value, given := flags[p.Settings[flag]]; given {
			server.Args = append(server.Args, "--"+flag+"="+value)
		}
	}
	if place, named, required := here.Source.SettingsFile(); named {
		abs, err := filepath.Abs(place)
		if err != nil {
			return server, nil, err
		}
		if !required { // its folder was named, and it may be made later
			abs = filepath.Dir(abs) + "/"
		}
		server.Args = append(server.Args, "--config="+abs)
	}
	if here.Origin["state_dir"] != "default" || os.Getenv("XDG_STATE_HOME") != "" {
		dir, err := filepath.Abs(here.Server.StateDir)
		if err != nil {
			return server, nil, err
		}
		server.Args = append(server.Args, "--state-dir="+dir)
	}
	if file := system.LogFile(); file != "" {
		server.Args = append(server.Args, "--log-file="+file)
	}
	server.Variables = passedVariables()
	for _, name := range leftOut(here, server) {
		fmt.Fprintf(p.Err, "note: the variable %s of this shell does not reach the service: set it in the settings "+
			"file, or give the flag if there is one (see --help)\n", name)
	}
	cfg, err := p.recorded(server)
	return server, cfg, err
}

// ownProgram returns the path of this program: the one by which the shell finds it, which stays when a package manager
// replaces the program behind it, or else the file's own.
func ownProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	own, err := os.Stat(self)
	if err != nil {
		return "", fmt.Errorf("this program is no longer at its place: %w", err)
	}
	if found, err := exec.LookPath(filepath.Base(self)); err == nil && filepath.IsAbs(found) {
		if st, err := os.Stat(found); err == nil && os.SameFile(st, own) {
			return found, nil
		}
	}
	return self, nil
}

// dockerVariables say which daemon the docker command uses, and so the runtime docker.
var dockerVariables = []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH",
	"DOCKER_TLS_VERIFY"}

// passedVariables returns the variables of this shell that the service gets: the paths of programs, which sandboxes of
// the template host and credential helpers need, and the daemon.
func passedVariables() map[string]string {
	variables := map[string]string{}
	for _, name := range dockerVariables {
		if value := os.Getenv(name); value != "" {
			variables[name] = value
		}
	}
	var folders []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) && !slices.Contains(folders, dir) {
			folders = append(folders, dir)
		}
	}
	if len(folders) > 0 {
		variables["PATH"] = strings.Join(folders, string(filepath.ListSeparator))
	}
	return variables
}

// leftOut returns the names of variables that a server in this shell would heed, and the service does not have. They
// may be secret, so they are not copied.
func leftOut(here *config.Config, server autostart.Server) []string {
	var names []string
	for key, origin := range here.Origin {
		if name, ok := strings.CutPrefix(origin, "variable "); ok && key != "state_dir" {
			names = append(names, name)
		}
	}
	for _, name := range append([]string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy",
		"no_proxy"}, dockerVariables...) {
		if _, passed := server.Variables[name]; os.Getenv(name) != "" && !passed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// recorded returns the settings that the server of a service has.
func (p *commands) recorded(server autostart.Server) (*config.Config, error) {
	source := config.Source{Env: maps.Clone(server.Variables), Flags: map[string]string{}}
	for _, arg := range server.Args {
		flag, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		switch setting := p.Settings[flag]; {
		case !ok:
		case flag == "config":
			source.File = value
		case flag == "state-dir":
			source.Flags["state_dir"] = value
		case setting != "":
			source.Flags[setting] = value
		}
	}
	return app.Load(source)
}
