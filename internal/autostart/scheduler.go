package autostart

import (
	"context"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf16"

	"sandlot/internal/atomicfile"
)

// taskName is the name of the task in the Task Scheduler's library.
const taskName = `\Sandlot`

// scheduler is the Task Scheduler of Windows. A Windows service would be another user's, without this user's files and
// Docker.
type scheduler struct {
	Machine
	folder string // of this user's data that stay on this machine
	root   string // of Windows
}

func newScheduler(m Machine) (System, error) {
	folder, root := m.Getenv("LOCALAPPDATA"), m.Getenv("SystemRoot")
	if folder == "" || root == "" {
		return nil, errors.New("the variables LOCALAPPDATA and SystemRoot are not set, which Windows sets for each " +
			"user: open a new window, and try again")
	}
	return &scheduler{m, folder + `\Sandlot`, root}, nil
}

func (w *scheduler) Name() string         { return "the Task Scheduler" }
func (w *scheduler) Path() string         { return filepath.Join(w.folder, "service.xml") }
func (w *scheduler) TakesVariables() bool { return false }
func (w *scheduler) LogFile() string      { return w.folder + `\Logs\sandlot.log` }

func (w *scheduler) LogCommand(int, bool) []string { return nil }

func (w *scheduler) Definition(s Server) (string, error) {
	return task(s, w.Account, w.root+`\System32\conhost.exe`)
}

// expanded matches what the Task Scheduler replaces in the paths and arguments of a task. Nothing protects a text from
// that.
var expanded = regexp.MustCompile(`%[^%]+%|\$\(`)

// checkTask returns an error for a text that a task cannot have.
func checkTask(text string) error {
	if err := checkText(text); err != nil {
		return err
	}
	if found := expanded.FindString(text); found != "" {
		return fmt.Errorf("%q has %s, which the Task Scheduler would replace; use another folder or value", text, found)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0xfffe || r == 0xffff }) {
		return fmt.Errorf("%q has a control character, which a task cannot have; use another folder or value", text)
	}
	return nil
}

// task returns the definition of a task. conhost gives the server a console without a window, which somebody would
// close. A trigger without a user would be for all users, which only administrators may make.
func task(s Server, who Account, conhost string) (string, error) {
	about, err := record(s)
	if err != nil {
		return "", err
	}
	words := []string{"--headless", "--", quoteArgument(s.Program)}
	for _, arg := range s.Args {
		words = append(words, quoteArgument(arg))
	}
	for _, text := range append([]string{s.Program, who.Home, who.Name, who.ID, conhost}, s.Args...) {
		if err := checkTask(text); err != nil {
			return "", err
		}
	}
	if len(s.Variables) > 0 {
		return "", errors.New("a task has no variables of its own: set them for your user, in the system's settings")
	}
	return `<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>Sandlot, sandboxes for AI agents over MCP</Description>
    <Documentation>` + xmlText(about) + `</Documentation>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Enabled>true</Enabled>
      <UserId>` + xmlText(who.Name) + `</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>` + xmlText(who.ID) + `</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>5</Priority>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>10</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>` + xmlText(conhost) + `</Command>
      <Arguments>` + xmlText(strings.Join(words, " ")) + `</Arguments>
      <WorkingDirectory>` + xmlText(who.Home) + `</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
`, nil
}

// quoteArgument returns a word of a command line as the programs of Windows read it back.
func quoteArgument(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\"") {
		return word
	}
	var b strings.Builder
	b.WriteByte('"')
	slashes := 0 // before a quote each counts twice
	for _, r := range word {
		switch r {
		case '\\':
			slashes++
		case '"':
			b.WriteString(strings.Repeat(`\`, slashes+1))
			slashes = 0
		default:
			slashes = 0
		}
		b.WriteRune(r)
	}
	b.WriteString(strings.Repeat(`\`, slashes))
	b.WriteByte('"')
	return b.String()
}

// meaning is what a definition says, of what Definition writes. The Task Scheduler adds defaults, and writes users as
// it likes.
type meaning struct {
	Triggers []struct{ Enabled string } `xml:"Triggers>LogonTrigger"`
	Level    string                     `xml:"Principals>Principal>RunLevel"`
	LogOn    string                     `xml:"Principals>Principal>LogonType"`
	Settings struct {
		Instances  string `xml:"MultipleInstancesPolicy"`
		Batteries  string `xml:"DisallowStartIfOnBatteries"`
		Going      string `xml:"StopIfGoingOnBatteries"`
		Time       string `xml:"ExecutionTimeLimit"`
		Priority   string
		Interval   string `xml:"RestartOnFailure>Interval"`
		Count      string `xml:"RestartOnFailure>Count"`
		IsDisabled string `xml:"Enabled"`
	}
	Commands []struct{ Command, Arguments, WorkingDirectory string } `xml:"Actions>Exec"`
}

func readMeaning(definition string) (string, error) {
	var m meaning
	d := xml.NewDecoder(strings.NewReader(definition))
	// A text in memory is UTF-8, whatever it says of the file.
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	if err := d.Decode(&m); err != nil {
		return "", err
	}
	// What is true of a task that does not say it.
	if m.Settings.IsDisabled == "" {
		m.Settings.IsDisabled = "true"
	}
	if m.Level == "" {
		m.Level = "LeastPrivilege"
	}
	for i := range m.Triggers {
		if m.Triggers[i].Enabled == "" {
			m.Triggers[i].Enabled = "true"
		}
	}
	return fmt.Sprintf("%q", m), nil
}

func (w *scheduler) Same(a, b string) bool {
	first, err := readMeaning(a)
	second, err2 := readMeaning(b)
	return err == nil && err2 == nil && first == second
}

// control runs schtasks.
func (w *scheduler) control(ctx context.Context, args ...string) (string, error) {
	output, err := w.Run(ctx, nil, "schtasks.exe", args...)
	if err != nil {
		err = failed(err, output, append([]string{"schtasks"}, args...)...)
	}
	return output, err
}

// powershell runs a command of powershell, whose numbers are the same in every language.
func (w *scheduler) powershell(ctx context.Context, command string) (string, error) {
	output, err := w.Run(ctx, nil, "powershell.exe", "-NoProfile", "-NonInteractive", "-Command", command)
	if err != nil {
		err = failed(err, output, "powershell", "-Command", command)
	}
	return strings.TrimSpace(strings.TrimPrefix(output, "\ufeff")), err
}

func (w *scheduler) Check(ctx context.Context) error {
	if _, err := w.powershell(ctx, "(Get-Service Schedule).Status"); err != nil {
		return fmt.Errorf("the Task Scheduler does not answer: %w", err)
	}
	return nil
}

// missing is what the commands of powershell print for a task that is not there.
const missing = "none"

// ifTask returns a command of powershell that prints something of the task $t, or missing, in UTF-8.
func ifTask(print string) string {
	return `[Console]::OutputEncoding = New-Object Text.UTF8Encoding $false; ` +
		`$t = Get-ScheduledTask -TaskPath '\' -TaskName Sandlot -ErrorAction SilentlyContinue; ` +
		`if ($t) { ` + print + ` } else { '` + missing + `' }`
}

func (w *scheduler) Installed(ctx context.Context) (string, error) {
	// Not by schtasks, which prints letters beyond ASCII in the console's own encoding.
	text, err := w.powershell(ctx, ifTask("$t | Export-ScheduledTask"))
	if err != nil || text == missing {
		return "", err
	}
	return text, nil
}

func (w *scheduler) Apply(ctx context.Context, definition string) error {
	for _, dir := range []string{filepath.Dir(w.Path()), w.folder + `\Logs`} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := atomicfile.Write(w.Path(), utf16Text(definition)); err != nil {
		return err
	}
	if err := w.Stop(ctx); err != nil {
		return err
	}
	if _, err := w.control(ctx, "/Create", "/F", "/TN", taskName, "/XML", w.Path()); err != nil {
		return err
	}
	return w.Start(ctx)
}

func (w *scheduler) Remove(ctx context.Context) error {
	if err := w.Stop(ctx); err != nil {
		return err
	}
	if _, err := w.control(ctx, "/Delete", "/F", "/TN", taskName); err != nil {
		return err
	}
	return removeFile(w.Path())
}

func (w *scheduler) Start(ctx context.Context) error {
	_, err := w.control(ctx, "/Run", "/TN", taskName)
	return err
}

// Stop ends the server at once: Windows has no signal that asks it to end. No session is lost by that.
func (w *scheduler) Stop(ctx context.Context) error {
	state, err := w.State(ctx)
	if err != nil || !state.Running {
		return err
	}
	if _, err = w.control(ctx, "/End", "/TN", taskName); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		state, err = w.State(ctx)
		return !state.Running, err
	})
}

// taskStates are the states of a task by their numbers, TASK_STATE.
var taskStates = []string{"unknown", "disabled", "queued", "ready", "running"}

func (w *scheduler) State(ctx context.Context) (State, error) {
	found, err := w.powershell(ctx, ifTask("[int]$t.State"))
	if err != nil || found == missing {
		return State{Ended: true, Text: "no task"}, err
	}
	n, err := strconv.Atoi(found)
	if err != nil || n < 0 || n >= len(taskStates) {
		return State{}, fmt.Errorf("the state of the task is %q, and not a known number", found)
	}
	return State{Running: n == 4, Ended: n == 1 || n == 3, AtLogIn: n != 1, Text: taskStates[n]}, nil
}

func (w *scheduler) Notes(context.Context) []string { return nil }

// utf16Text returns the bytes of a file that schtasks reads.
func utf16Text(text string) []byte {
	data := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(text)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return data
}
