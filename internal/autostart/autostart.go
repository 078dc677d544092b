// Package autostart makes a user's system start the server when the user logs in, and keep it running: by a user unit
// of systemd on Linux, and an agent of launchd on macOS. It owns the definition of that service: its text, where it
// lies, and the calls of the programs systemctl and launchctl.
//
// The texts are made by pure functions, for each system on every system.
package autostart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"
)

// Server is the server that a service starts.
type Server struct {
	Program   string            `json:"program"` // an absolute path
	Args      []string          `json:"args"`
	Variables map[string]string `json:"variables,omitempty"` // besides those that the system gives to each service
}

// Account is the user whose service it is.
type Account struct {
	ID   string // a number
	Name string
	Home string
}

// Machine is what a service needs to know of the machine.
type Machine struct {
	System  string // as in runtime.GOOS
	Account Account
	Getenv  func(string) string
	Run     Run
}

// Run runs a program of the system and returns what it printed, standard error included. The variables are added to
// those of this process.
type Run func(ctx context.Context, variables []string, program string, args ...string) (output string, err error)

// System is the part of an operating system that starts programs when a user logs in.
type System interface {
	// Name is the name that users know: "systemd" or "launchd".
	Name() string
	// Path is the file with the definition.
	Path() string
	// LogFile is the file for the server's log; empty: what the server prints goes to the system's log.
	LogFile() string
	// LogCommand is the command that shows the log; empty: there is a file.
	LogCommand(lines int, follow bool) []string
	// Definition returns the text that makes the system start the server.
	Definition(s Server) (string, error)
	// Check returns nil, or an error that says why no service can be had here and what to do.
	Check(ctx context.Context) error
	// Installed returns the definition that is there; empty: there is none.
	Installed(ctx context.Context) (string, error)
	// Apply makes the system take the definition, whether it knows the service or not, and starts the server again.
	Apply(ctx context.Context, definition string) error
	// Remove stops the server and removes the definition.
	Remove(ctx context.Context) error
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	State(ctx context.Context) (State, error)
	// Notes returns what the user should know of a service that is there, in whole sentences.
	Notes(ctx context.Context) []string
}

// State is what a system says of the service.
type State struct {
	Running bool
	Ended   bool   // its last server has ended; the system may be about to start the next one
	AtLogIn bool   // it starts when the user logs in
	PID     int    // 0: the system does not say it
	Text    string // in the system's own words
}

// New returns the part of a system that starts programs, or an error that says why there is none for this user.
func New(m Machine) (System, error) {
	if m.Account.Home == "" {
		return nil, errors.New("the home folder is not known: set HOME")
	}
	switch m.System {
	case "linux":
		return newSystemd(m)
	case "darwin":
		return newLaunchd(m)
	case "windows":
		return nil, errors.New("there is no service of a user's own on Windows: install Sandlot in WSL, which has " +
			"one, or let your client start it (`sandlot install`)")
	}
	return nil, fmt.Errorf("there is no service of a user's own on %s; run `sandlot serve`", m.System)
}

// recordPrefix begins the line or text in which a definition says which server it starts.
const recordPrefix = "sandlot service install: "

// record returns the text that Recorded reads back: one line.
func record(s Server) (string, error) {
	for _, text := range append([]string{s.Program}, s.Args...) {
		if err := checkText(text); err != nil {
			return "", err
		}
	}
	for name, value := range s.Variables {
		if err := checkText(value); err != nil {
			return "", fmt.Errorf("the variable %s: %w", name, err)
		}
	}
	text, err := json.Marshal(s)
	return recordPrefix + string(text), err
}

// checkText returns an error for a text that no definition can have.
func checkText(text string) error {
	if !utf8.ValidString(text) || strings.Contains(text, "\x00") {
		return fmt.Errorf("%q is not UTF-8, or has a zero: a service cannot have it; use another folder or value", text)
	}
	return nil
}

// Recorded returns the server of a definition that Definition has made.
func Recorded(definition string) (s Server, found bool) {
	_, text, found := strings.Cut(definition, recordPrefix)
	if !found {
		return Server{}, false
	}
	// In XML the quotes may be entities. The JSON has no & of its own.
	err := json.NewDecoder(strings.NewReader(html.UnescapeString(text))).Decode(&s)
	return s, err == nil && s.Program != ""
}

// Edited reports whether a definition is not what Definition makes: somebody has written or changed it.
func Edited(system System, definition string) bool {
	s, found := Recorded(definition)
	if !found {
		return true
	}
	made, err := system.Definition(s)
	return err != nil || made != definition
}

// BackUp writes a definition beside its path, and returns where.
func BackUp(system System, definition string, now time.Time) (string, error) {
	if err := os.MkdirAll(filepath.Dir(system.Path()), 0o755); err != nil {
		return "", err
	}
	for n := 0; ; n++ {
		path := system.Path() + now.Format(".bak-20060102-150405")
		if n > 0 {
			path += fmt.Sprintf("-%d", n)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) && n < 100 {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = f.WriteString(definition)
		return path, errors.Join(err, f.Close())
	}
}

// readDefinition returns the text of a file; empty: there is none.
func readDefinition(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// removeFile removes a file, if there is one.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// failed returns an error with what a program of the system printed.
func failed(err error, output string, words ...string) error {
	output = strings.TrimSpace(output)
	if output == "" {
		return fmt.Errorf("`%s`: %w", strings.Join(words, " "), err)
	}
	return fmt.Errorf("`%s`: %w: %s", strings.Join(words, " "), err, output)
}
