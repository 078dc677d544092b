// Package tasks has the tasks of an agent's working day, as calls of tools with what has to come of each. Tests demand
// that each is done without a needless error, and the benchmarks count what it costs a model.
package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandlot/test/tokens"
)

// Answer is the result of a call, as a model sees it.
type Answer struct {
	Text   string         // all blocks of text
	Fields map[string]any // the result's data
	Images int
	Failed bool // the result is an error
}

// Registries are the variables that say where this machine has its packages from, for a server that is to have them
// from there, too.
func Registries() (all []string) {
	for _, kv := range os.Environ() {
		for _, prefix := range []string{"PIP_", "npm_config_", "NPM_CONFIG_", "GO", "SSL_CERT", "NODE_EXTRA",
			"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy"} {
			if strings.HasPrefix(kv, prefix) {
				all = append(all, kv)
			}
		}
	}
	return all
}

// Caller calls a tool.
type Caller func(ctx context.Context, tool string, arguments map[string]any) (Answer, error)

// CallerOf returns the Caller of a client.
func CallerOf(session *mcp.ClientSession) Caller {
	return func(ctx context.Context, name string, arguments map[string]any) (answer Answer, err error) {
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: arguments})
		if err != nil {
			return answer, err
		}
		answer.Failed = r.IsError
		answer.Fields, _ = r.StructuredContent.(map[string]any)
		for _, block := range r.Content {
			switch block := block.(type) {
			case *mcp.TextContent:
				answer.Text += block.Text
			case *mcp.ImageContent:
				answer.Images++
			}
		}
		return answer, nil
	}
}

// Task is one task.
type Task struct {
	Number int
	Name   string
	Long   bool // it installs much, or waits long
	Do     func(d *Desk)
}

// Desk does a task in a session of its own, and keeps what it costs.
type Desk struct {
	Session string
	Calls   int
	Tokens  int // of all arguments and texts; a picture counts as none
	Err     error

	ctx  context.Context
	call Caller
}

// Run does a task in a new session, and stops that session.
func Run(ctx context.Context, t Task, call Caller) *Desk {
	d := &Desk{ctx: ctx, call: call, Session: "new"}
	t.Do(d)
	if d.Session != "new" && d.Session != "home" {
		if _, err := call(ctx, "stop_session", map[string]any{"session_id": d.Session}); err != nil && d.Err == nil {
			d.Err = err
		}
	}
	return d
}

type args = map[string]any

// Do makes a call that has to succeed, with a text that matches want.
func (d *Desk) Do(tool string, a args, want string) Answer { return d.make(tool, a, want, false) }

// Try makes a call that has to fail, and to say why.
func (d *Desk) Try(tool string, a args, want string) Answer { return d.make(tool, a, want, true) }

func (d *Desk) make(tool string, a args, want string, fails bool) Answer {
	if d.Err != nil {
		return Answer{}
	}
	_, ofProcess := a["process_id"]
	if !ofProcess && tool != "remove_snapshot" && !strings.HasPrefix(tool, "ext_") && !strings.HasSuffix(tool, "_mcp") {
		a["session_id"] = d.Session
	}
	answer, err := d.call(d.ctx, tool, a)
	given, _ := json.Marshal(a) // of texts, numbers and lists
	d.Calls++
	d.Tokens += tokens.Count(string(given)) + tokens.Count(answer.Text)
	if id, ok := answer.Fields["session_id"].(string); ok && d.Session == "new" {
		d.Session = id
	}
	switch {
	case err != nil:
		d.fail(tool, a, "%v", err)
	case answer.Failed != fails:
		d.fail(tool, a, "failed is %v: %s", answer.Failed, answer.Text)
	case !regexp.MustCompile(want).MatchString(answer.Text):
		d.fail(tool, a, "its text does not match %s: %s", want, answer.Text)
	}
	return answer
}

func (d *Desk) fail(tool string, a args, form string, more ...any) {
	given, _ := json.Marshal(a)
	d.Err = fmt.Errorf("%s %.600s: %.3000s", tool, given, fmt.Sprintf(form, more...))
}

// Shell runs a command that has to end with 0.
func (d *Desk) Shell(command, want string) Answer {
	a := d.Do("execute_command", args{"command": command, "timeout": 280}, want)
	if code, ok := a.Fields["exit_code"].(float64); d.Err == nil && (!ok || code != 0) {
		d.fail("execute_command", args{"command": command}, "code %v: %s", a.Fields["exit_code"], a.Text)
	}
	return a
}

// Apt installs packages of the distribution, and runs a command after that. The template host has the lists of what there
// is; elsewhere they are fetched first, as in any image.
func (d *Desk) Apt(packages, command, want string) {
	d.Shell("{ ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || sudo apt-get update -q >/dev/null; } && "+
		"sudo apt-get install -y -q "+packages+" >/dev/null && "+command, want)
}

// Cell runs code that has to succeed.
func (d *Desk) Cell(language, code, want string) Answer {
	a := d.Do("execute_code", args{"code": code, "language": language, "timeout": 280}, want)
	if ok, _ := a.Fields["code_success"].(bool); d.Err == nil && !ok && a.Images == 0 { // no data beside a picture
		d.fail("execute_code", args{"code": code}, "%s", a.Text)
	}
	return a
}

// Python runs a cell of Python.
func (d *Desk) Python(code, want string) Answer { return d.Cell("python", code, want) }

// Write writes a file of the workspace.
func (d *Desk) Write(path, content string) {
	d.Do("sandbox_write_file", args{"path": "/workspace/" + path, "content": content}, "")
}

// Begin starts a command in the background and returns its process id.
func (d *Desk) Begin(command string, more args) string {
	a := args{"command": command, "background": true}
	for k, v := range more {
		a[k] = v
	}
	id, _ := d.Do("execute_command", a, "").Fields["process_id"].(string)
	return id
}

// Await reads what a process prints until something holds.
func (d *Desk) Await(process, until, want string) Answer {
	a := d.Do("read_process", args{"process_id": process, "until": until, "wait": 60}, want)
	if met, _ := a.Fields["until_met"].(bool); d.Err == nil && !met {
		d.fail("read_process", args{"until": until}, "it never came: %s", a.Text)
	}
	return a
}

// Type sends text to a process.
func (d *Desk) Type(process, text string) {
	d.Do("write_process", args{"process_id": process, "data": text}, "")
}

// expect fails the task unless something holds.
func (d *Desk) expect(ok bool, form string, more ...any) {
	if d.Err == nil && !ok {
		d.Err = fmt.Errorf(form, more...)
	}
}

// lines joins the lines of a program.
func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }
