package autostart

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/atomicfile"
)

// unitName is the name of systemd's unit.
const unitName = "sandlot.service"

// systemd is the user's own instance of systemd.
type systemd struct {
	Machine
	path string
}

func newSystemd(m Machine) (System, error) {
	if m.Account.ID == "0" {
		return nil, errors.New("root's server is a service of the system, with a user of its own: " +
			"docs/guide/deploy.md#systemd has its unit. For a service of your own, run this as your own user")
	}
	dir := m.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(m.Account.Home, ".config")
	}
	return &systemd{m, filepath.Join(dir, "systemd", "user", unitName)}, nil
}

func (s *systemd) Name() string    { return "systemd" }
func (s *systemd) Path() string    { return s.path }
func (s *systemd) LogFile() string { return "" }

func (s *systemd) Definition(server Server) (string, error) { return unit(server) }

func (s *systemd) LogCommand(lines int, follow bool) []string {
	command := []string{"journalctl", "--user", "-u", unitName, "-n", strconv.Itoa(lines)}
	if follow {
		return append(command, "-f")
	}
	return append(command, "--no-pager")
}

// unit returns the text of a user unit. Stopping it stops the server alone, as deploy/sandlot.service does: what
// becomes of sandboxes is the server's part.
func unit(s Server) (string, error) {
	about, err := record(s)
	if err != nil {
		return "", err
	}
	variables := ""
	for _, name := range slices.Sorted(maps.Keys(s.Variables)) {
		variables += "Environment=" + unitWord(name+"="+s.Variables[name]) + "\n"
	}
	return `# Written by "sandlot service install", which also replaces it: put changes of your own into a drop-in
# ("systemctl --user edit sandlot").
[Unit]
Description=Sandlot, sandboxes for AI agents over MCP
# Restart without a limit: a full disk or a port in use may be temporary.
StartLimitIntervalSec=0

[Service]
ExecStart=` + unitCommand(s) + `
` + variables + `# The server itself puts sessions to sleep, or, with on_stop: keep, leaves their sandboxes to the next one.
KillMode=process
TimeoutStopSec=100
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target

# ` + about + "\n", nil
}

// unitCommand returns the value of ExecStart. systemd takes no quotes, backslashes and control characters in the path
// of a program: there the shell starts it.
func unitCommand(s Server) string {
	words := []string{unitWord(s.Program)}
	if strings.ContainsFunc(s.Program, func(r rune) bool { return r < ' ' || strings.ContainsRune("\"'\\\x7f", r) }) {
		words = []string{"/bin/sh", "-c", unitWord(`exec "$0" "$@"`), unitWord(s.Program)}
		words[2], words[3] = unitDollars(words[2]), unitDollars(words[3])
	}
	for _, arg := range s.Args {
		words = append(words, unitDollars(unitWord(arg)))
	}
	return strings.Join(words, " ")
}

// unitDollars keeps systemd from replacing variables in an argument. In a program's path it replaces none.
func unitDollars(word string) string { return strings.ReplaceAll(word, "$", "$$") }

// plainWord matches words that need no quotes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@+=:,./-]+$`)

// unitWord quotes a word for a unit, if necessary.
func unitWord(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '%': // a specifier
			b.WriteString("%%")
		case r == '\n':
			b.WriteString(`\n`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// variables returns what systemctl needs to find the user's instance. A shell of su or sudo does not have it.
func (s *systemd) variables() []string {
	dir := "/run/user/" + s.Account.ID
	if _, err := os.Stat(filepath.Join(dir, "systemd")); err == nil && s.Getenv("XDG_RUNTIME_DIR") == "" {
		return []string{"XDG_RUNTIME_DIR=" + dir}
	}
	return nil
}

// control runs systemctl.
func (s *systemd) control(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--user"}, args...)
	output, err := s.Run(ctx, s.variables(), "systemctl", args...)
	if err != nil {
		err = failed(err, output, append([]string{"systemctl"}, args...)...)
	}
	return output, err
}

func (s *systemd) Check(ctx context.Context) error {
	_, err := s.control(ctx, "show-environment")
	if err == nil {
		return nil
	}
	version, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	hint := "systemd does not run for this user here (in containers it usually does not): log in as the user, by ssh " +
		"or on the machine itself, not by su or sudo"
	if strings.Contains(strings.ToLower(string(version)), "microsoft") {
		hint = "WSL runs systemd if /etc/wsl.conf has the lines `[boot]` and `systemd=true`; then run `wsl " +
			"--shutdown` in Windows, and open the distribution again"
	} else if _, missing := os.Stat("/run/systemd/system"); missing != nil {
		hint = "this system was not started by systemd (containers usually are not): let what starts programs here " +
			"run `sandlot serve`"
	}
	return fmt.Errorf("no service can be installed: %s (%w)", hint, err)
}

func (s *systemd) Installed(context.Context) (string, error) { return readDefinition(s.path) }

func (s *systemd) Apply(ctx context.Context, definition string) error {
	if err := os.MkdirAll(filepath.Dir(s.path), 0o755); err != nil {
		return err
	}
	if err := atomicfile.Write(s.path, []byte(definition)); err != nil {
		return err
	}
	if _, err := s.control(ctx, "daemon-reload"); err != nil {
		return err
	}
	used, err := s.show(ctx)
	if err != nil {
		return err
	}
	if used["FragmentPath"] != s.path {
		return fmt.Errorf("systemd reads the unit %s from %q, not from %s: it has another XDG_CONFIG_HOME than this "+
			"shell, or a unit of the same name elsewhere; correct that, and try again", unitName, used["FragmentPath"],
			s.path)
	}
	if _, err := s.control(ctx, "enable", unitName); err != nil {
		return err
	}
	_, err = s.control(ctx, "restart", unitName)
	return err
}

func (s *systemd) Remove(ctx context.Context) error {
	// Without a user manager (say, in a rescue shell) the file alone can be removed.
	_, err := s.control(ctx, "disable", "--now", unitName)
	if err != nil && s.Check(ctx) == nil {
		return err
	}
	link := filepath.Join(filepath.Dir(s.path), "default.target.wants", unitName)
	if err := errors.Join(removeFile(link), removeFile(s.path)); err != nil {
		return err
	}
	if err == nil {
		if _, err = s.control(ctx, "daemon-reload"); err == nil {
			_, _ = s.control(ctx, "reset-failed", unitName) // it fails unless the unit has failed
		}
		return err
	}
	return nil
}

func (s *systemd) Start(ctx context.Context) error {
	_, err := s.control(ctx, "start", unitName)
	return err
}

func (s *systemd) Stop(ctx context.Context) error {
	_, err := s.control(ctx, "stop", unitName)
	return err
}

// show returns the properties of the unit.
func (s *systemd) show(ctx context.Context) (map[string]string, error) {
	output, err := s.control(ctx, "show", unitName, "--property",
		"ActiveState,SubState,Result,MainPID,UnitFileState,FragmentPath,ExecMainStatus")
	properties := map[string]string{}
	for line := range strings.Lines(output) {
		if name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "="); ok {
			properties[name] = value
		}
	}
	return properties, err
}

func (s *systemd) State(ctx context.Context) (State, error) {
	p, err := s.show(ctx)
	if err != nil {
		return State{}, err
	}
	pid, _ := strconv.Atoi(p["MainPID"])
	state := State{Running: p["ActiveState"] == "active", AtLogIn: p["UnitFileState"] == "enabled", PID: pid,
		Text: p["ActiveState"] + " (" + p["SubState"] + ")"}
	state.Ended = !state.Running && pid == 0
	if p["Result"] != "success" && p["Result"] != "" && !state.Running {
		state.Text += ", " + p["Result"] + " " + p["ExecMainStatus"]
	}
	return state, nil
}

// lingerDir has a file for each user whose services start with the machine.
const lingerDir = "/var/lib/systemd/linger"

func (s *systemd) Notes(context.Context) []string {
	if _, err := os.Stat(filepath.Join(lingerDir, s.Account.Name)); err == nil {
		return nil
	}
	return []string{"It starts when you log in, and ends with its sandboxes when you have logged out everywhere. To " +
		"have it from the start of the machine on: loginctl enable-linger"}
}
