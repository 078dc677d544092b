package autostart

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/atomicfile"
)

// label is the name of launchd's agent.
const label = "dev.sandlot.server"

// launchd is macOS's launchd, for the user's session on the screen.
type launchd struct {
	Machine
}

func newLaunchd(m Machine) (System, error) {
	if m.Account.ID == "0" {
		return nil, errors.New("the service is a user's own: run this as your own user, without sudo")
	}
	return &launchd{m}, nil
}

func (l *launchd) Name() string { return "launchd" }

func (l *launchd) Path() string {
	return path.Join(l.Account.Home, "Library/LaunchAgents", label+".plist")
}

func (l *launchd) LogFile() string {
	return path.Join(l.Account.Home, "Library/Logs/Sandlot/sandlot.log")
}

func (l *launchd) LogCommand(int, bool) []string { return nil }

func (l *launchd) Definition(s Server) (string, error) {
	return plist(s, l.Account.Home, path.Join(path.Dir(l.LogFile()), "launchd.log"))
}

// plist returns the property list of an agent, which writes to output what the server prints before it has its log.
func plist(s Server, home, output string) (string, error) {
	about, err := record(s)
	if err != nil {
		return "", err
	}
	texts := append([]string{home, output, s.Program}, s.Args...)
	for _, text := range append(texts, slices.Collect(maps.Values(s.Variables))...) {
		if err := checkXML(text); err != nil {
			return "", err
		}
	}
	arguments := ""
	for _, word := range append([]string{s.Program}, s.Args...) {
		arguments += "\t\t<string>" + xmlText(word) + "</string>\n"
	}
	variables := ""
	for _, name := range slices.Sorted(maps.Keys(s.Variables)) {
		variables += "\t\t<key>" + xmlText(name) + "</key>\n\t\t<string>" + xmlText(s.Variables[name]) + "</string>\n"
	}
	about = strings.ReplaceAll(about, "--", `-\u002d`) // no comment of XML has --
	return `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- Written by "sandlot service install", which also replaces it. -->
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>` + label + `</string>
	<key>ProgramArguments</key>
	<array>
` + arguments + `	</array>
	<key>EnvironmentVariables</key>
	<dict>
` + variables + `	</dict>
	<key>WorkingDirectory</key>
	<string>` + xmlText(home) + `</string>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<key>ExitTimeOut</key>
	<integer>100</integer>
	<key>ProcessType</key>
	<string>Interactive</string>
	<key>StandardOutPath</key>
	<string>` + xmlText(output) + `</string>
	<key>StandardErrorPath</key>
	<string>` + xmlText(output) + `</string>
</dict>
</plist>
<!-- ` + about + " -->\n", nil
}

// checkXML returns an error for a text with characters that XML 1.0 does not have.
func checkXML(text string) error {
	if err := checkText(text); err != nil {
		return err
	}
	if strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && !strings.ContainsRune("\t\n\r", r) || r == 0xfffe || r == 0xffff
	}) {
		return fmt.Errorf("%q has a control character, which the definition of a service cannot have; use another "+
			"folder or value", text)
	}
	return nil
}

// xmlText returns a text as XML has it.
func xmlText(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder takes everything
	return b.String()
}

func (l *launchd) domain() string { return "gui/" + l.Account.ID }
func (l *launchd) target() string { return l.domain() + "/" + label }

// control runs launchctl.
func (l *launchd) control(ctx context.Context, args ...string) (string, error) {
	output, err := l.Run(ctx, nil, "launchctl", args...)
	if err != nil {
		err = failed(err, output, append([]string{"launchctl"}, args...)...)
	}
	return output, err
}

func (l *launchd) Check(ctx context.Context) error {
	if _, err := l.control(ctx, "print", l.domain()); err != nil {
		return fmt.Errorf("launchd has no session of yours on this Mac's screen, which the service belongs to: log in "+
			"there, and try again (%w)", err)
	}
	return nil
}

func (l *launchd) Installed(context.Context) (string, error) { return readDefinition(l.Path()) }

func (l *launchd) Apply(ctx context.Context, definition string) error {
	for _, dir := range []string{filepath.Dir(l.LogFile()), filepath.Dir(l.Path())} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := l.unload(ctx); err != nil {
		return err
	}
	if err := atomicfile.Write(l.Path(), []byte(definition)); err != nil {
		return err
	}
	return l.load(ctx)
}

// load makes launchd take the agent, which starts it.
func (l *launchd) load(ctx context.Context) error {
	if _, err := l.control(ctx, "enable", l.target()); err != nil { // the user may have disabled it
		return err
	}
	_, err := l.control(ctx, "bootstrap", l.domain(), l.Path())
	return err
}

func (l *launchd) isLoaded(ctx context.Context) bool {
	_, err := l.control(ctx, "print", l.target())
	return err == nil
}

// unload makes launchd forget the agent, and waits until its server has ended.
func (l *launchd) unload(ctx context.Context) error {
	if !l.isLoaded(ctx) {
		return nil
	}
	_, err := l.control(ctx, "bootout", l.target()) // it fails with "Operation now in progress" while it goes on
	if late := await(ctx, func() (bool, error) { return !l.isLoaded(ctx), nil }); late != nil {
		return errors.Join(late, err)
	}
	return nil
}

func (l *launchd) Remove(ctx context.Context) error {
	if err := l.unload(ctx); err != nil {
		return err
	}
	return removeFile(l.Path())
}

func (l *launchd) Start(ctx context.Context) error {
	if !l.isLoaded(ctx) {
		return l.load(ctx)
	}
	_, err := l.control(ctx, "kickstart", l.target())
	return err
}

// Stop ends the server, which launchd does not start again then: it ends without an error.
func (l *launchd) Stop(ctx context.Context) error {
	state, err := l.State(ctx)
	if err != nil || !state.Running {
		return err
	}
	if _, err := l.control(ctx, "kill", "SIGTERM", l.target()); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		state, err = l.State(ctx)
		return !state.Running, err
	})
}

// State reads what launchctl prints for people: there is no other form of it.
func (l *launchd) State(ctx context.Context) (State, error) {
	if err := l.Check(ctx); err != nil {
		return State{}, err
	}
	output, err := l.control(ctx, "print", l.target())
	if err != nil {
		return State{Text: "not loaded", Ended: true}, nil
	}
	fields := map[string]string{}
	for line := range strings.Lines(output) {
		// Deeper lines are about something else, such as the session.
		name, value, found := strings.Cut(strings.TrimRight(strings.TrimPrefix(line, "\t"), "\r\n"), " = ")
		if found && !strings.HasPrefix(name, "\t") && fields[name] == "" {
			fields[name] = value
		}
	}
	pid, _ := strconv.Atoi(fields["pid"])
	state := State{Running: fields["state"] == "running", PID: pid, AtLogIn: l.isEnabled(ctx), Text: fields["state"]}
	if code := fields["last exit code"]; !state.Running && code != "" {
		state.Text += ", last exit code " + code
		state.Ended = code != "(never exited)"
	}
	return state, nil
}

// isEnabled reports whether nobody has disabled the agent: System Settings has a switch for it.
func (l *launchd) isEnabled(ctx context.Context) bool {
	output, err := l.control(ctx, "print-disabled", l.domain())
	if err != nil {
		return true
	}
	for line := range strings.Lines(output) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), " => "); found && name == `"`+label+`"` {
			return value != "true" && value != "disabled"
		}
	}
	return true
}

func (l *launchd) Notes(context.Context) []string { return nil }
