package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/api/client"
	"sandlot/internal/app"
	"sandlot/internal/cli/plain"
	"sandlot/internal/clientconfig"
	"sandlot/internal/revision"
)

// How long a client's own command may take, a call, which may have to start a sandbox, and a program to end after it.
const (
	askTimeout  = time.Minute
	callTimeout = 3 * time.Minute
	endTimeout  = 40 * time.Second
)

// The call that a check makes.
const (
	checkTool   = "execute_command"
	checkOutput = "42"
)

var checkArguments = map[string]string{"command": "echo $((6*7))"}

// checked is the JSON of `sandlot install CLIENT --check`.
type checked struct {
	Client  string `json:"client"`
	File    string `json:"file"`
	Reached string `json:"reached"` // the URL, or the program
	Asked   string `json:"asked,omitempty"`
	Said    string `json:"said,omitempty"` // by the client's own command
	Works   bool   `json:"works"`
}

// check asks a client what it thinks of the server in its settings, and calls a tool as the client would.
func (p *program) check(ctx context.Context, k clientconfig.Client, f installFlags) error {
	file, err := p.fileOf(ctx, k, &f)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	i, err := k.Installed(text, f.server.Name)
	if err != nil {
		return fmt.Errorf("%w (its settings are %s)", err, file)
	}
	c := checked{Client: k.ID, File: file, Reached: i.URL}
	if i.URL == "" {
		c.Reached = i.Program
	}
	p.say("%s has the server %q in %s: %s\n", k.Title, f.server.Name, file, plain.Cell(c.Reached))
	askErr := p.ask(ctx, k, f.server.Name, &c)
	callErr := p.call(ctx, k, i)
	c.Works = askErr == nil && callErr == nil
	if callErr == nil {
		p.say("A call of %s through it works.\n", checkTool)
	} else {
		callErr = fmt.Errorf("a call as %s would make it fails: %w", k.Title, callErr)
	}
	if p.IsJSON() {
		err = p.JSON(c)
	}
	return errors.Join(askErr, callErr, err)
}

// say prints a line for people.
func (p *program) say(format string, args ...any) {
	if !p.IsJSON() {
		fmt.Fprintf(p.Out, format, args...)
	}
}

// unwell are words by which clients say that they cannot use a server.
var unwell = []string{"failed", "disconnected", "not connected", "needs auth", "✗", "✘", "error"}

// colors matches what some clients print without a terminal, too.
var colors = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// ask runs the client's own command that says what it thinks of the server.
func (p *program) ask(ctx context.Context, k clientconfig.Client, name string, c *checked) error {
	command := k.Asks(name)
	if command == nil {
		p.say("%s has no command that says whether it can use the server: look at it in the client.\n", k.Title)
		return nil
	}
	line := strings.Join(command, " ")
	if _, err := exec.LookPath(command[0]); err != nil {
		p.say("The client cannot be asked with `%s`: the program is not in PATH.\n", line)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay, cmd.Env = time.Second, append(os.Environ(), "NO_COLOR=1")
	out, err := cmd.CombinedOutput()
	out = colors.ReplaceAll(out, nil)
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended && ctx.Err() == nil {
		return fmt.Errorf("%s cannot be asked: `%s` does not start: %w", k.Title, line, err)
	}
	said := plain.Text(string(out))
	c.Asked, c.Said = line, said
	p.say("`%s` says:\n  %s\n", line, strings.ReplaceAll(strings.TrimSpace(said), "\n", "\n  "))
	if ctx.Err() != nil {
		return fmt.Errorf("`%s` has not answered within %s", line, askTimeout)
	}
	about := said
	if command[len(command)-1] != name { // a list of all servers
		about = ""
		for l := range strings.Lines(said) {
			if strings.Contains(l, name) {
				about += l
			}
		}
	}
	if err != nil || !strings.Contains(about, name) {
		return fmt.Errorf("%s does not know the server %q: `%s` says so", k.Title, name, line)
	}
	for _, word := range unwell {
		if strings.Contains(strings.ToLower(about), word) {
			return fmt.Errorf("%s cannot use the server %q: `%s` says so", k.Title, name, line)
		}
	}
	return nil
}

// call calls a tool as the client would.
func (p *program) call(ctx context.Context, k clientconfig.Client, i clientconfig.Installed) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var result json.RawMessage
	var err error
	if i.URL != "" {
		result, err = callURL(ctx, k, i)
	} else {
		result, err = callProgram(ctx, k, i)
	}
	if err != nil {
		return err
	}
	var r struct {
		IsError bool `json:"isError"`
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return errors.New("the answer is not a result of a tool: is this Sandlot's address?")
	}
	said := ""
	for _, c := range r.Content {
		said += c.Text + "\n"
	}
	if r.IsError || !strings.Contains(said, checkOutput) {
		return fmt.Errorf("%s says: %s", checkTool, strings.TrimSpace(plain.Text(said)))
	}
	return nil
}

// callURL makes the call over HTTP, with the headers of the entry. It is one of the stateless protocol: a call without
// any protocol would make a new session.
func callURL(ctx context.Context, k clientconfig.Client, i clientconfig.Installed) (json.RawMessage, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": checkTool, "arguments": checkArguments, "_meta": map[string]any{
			"io.modelcontextprotocol/protocolVersion":    revision.Stateless,
			"io.modelcontextprotocol/clientInfo":         map[string]string{"name": "sandlot", "version": app.Version},
			"io.modelcontextprotocol/clientCapabilities": map[string]any{}}}})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, i.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{"Content-Type": "application/json",
		"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": revision.Stateless,
		"Mcp-Method": "tools/call", "Mcp-Name": checkTool} {
		r.Header.Set(name, value)
	}
	for name, value := range i.Headers {
		r.Header.Set(name, k.Expand(value, os.Getenv))
	}
	if i.TokenEnv != "" {
		r.Header.Set("Authorization", "Bearer "+os.Getenv(i.TokenEnv))
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, fmt.Errorf("no server answers at its URL: %w; start it with `sandlot serve`, or let the client start one "+
			"with `sandlot install %s --stdio`", err, k.ID)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("the server refuses its token, or wants one: make one with `sandlot token create --user NAME`, "+
			"and give it with `sandlot install %s --token TOKEN`", k.ID)
	}
	for l := range bytes.Lines(text) { // of an event stream, the last message is the answer
		if data, ok := bytes.CutPrefix(l, []byte("data: ")); ok {
			text = data
		}
	}
	var answer struct {
		Result json.RawMessage
		Error  *struct{ Message string }
	}
	switch err := json.Unmarshal(text, &answer); {
	case err != nil:
		return nil, fmt.Errorf("what answers at its URL is not Sandlot: status %d", resp.StatusCode)
	case answer.Error != nil:
		return nil, errors.New(plain.Text(answer.Error.Message))
	}
	return answer.Result, nil
}

// callProgram starts the program of the entry, makes the call, and ends the program.
func callProgram(ctx context.Context, k clientconfig.Client, i clientconfig.Installed) (json.RawMessage, error) {
	cmd := exec.CommandContext(ctx, i.Program, i.Args...)
	cmd.Env = os.Environ()
	for name, value := range i.Env {
		cmd.Env = append(cmd.Env, name+"="+k.Expand(value, os.Getenv))
	}
	var errs bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &errs, time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("its program does not start: %w", err)
	}
	result, err := client.CallOver(ctx, out, in, app.Version, checkTool, checkArguments)
	late := time.AfterFunc(endTimeout, func() { cmd.Process.Kill() })
	defer late.Stop()
	in.Close()
	io.Copy(io.Discard, out)
	waitErr := cmd.Wait() // how it ends matters only if it has not answered
	if err != nil {
		return nil, fmt.Errorf("its program does not answer: %w (%v) %s", err, waitErr,
			strings.TrimSpace(plain.Text(errs.String())))
	}
	return result, nil
}
