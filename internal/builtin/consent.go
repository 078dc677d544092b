package builtin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"

	"sandlot/internal/event"
	"sandlot/internal/fault"
	"sandlot/internal/servers/spec"
	"sandlot/internal/tool"
)

// consentFor returns the function that asks for consent before the call installs, starts or connects a
// third-party server. It reads the current policy each time.
func (t *Tools) consentFor(c tool.Call) spec.Consent {
	return func(ctx context.Context, p spec.Change) error {
		policy, began := *t.consent.Load(), time.Now()
		if decided, err := c.Door().Consent(ctx, consentQuestion(p)); decided {
			return err
		}
		err := policy.Consent(ctx, c, consentQuestion(p))
		if policy != tool.Allow && c.Principal.Authenticated {
			t.Events.Publish(event.Event{Kind: event.Consent, Principal: c.Principal.ID, Operation: event.ConsentAsk,
				Name: c.Name, Outcome: consentOutcome(err), Duration: time.Since(began)})
		}
		if policy == tool.Ask && c.Principal.Authenticated && t.Log != nil {
			t.Log.InfoContext(ctx, "consent", "principal", c.Principal.ID, "tool", c.Name, "name", p.Name, "given",
				err == nil, "why", err)
		}
		return err
	}
}

// consentOutcome returns the outcome for the event: given, declined, or the code of the error with which
// the question failed.
func consentOutcome(err error) string {
	switch declined, ok := errors.AsType[*tool.Declined](err); {
	case err == nil:
		return "given"
	case ok && declined != nil:
		return "declined"
	}
	return fault.From(err).Code()
}

// NotConnected is the result of a tool that failed to connect a server.
type NotConnected struct {
	Success      bool         `json:"success"`
	ConnectionID string       `json:"connectionId"`
	Name         string       `json:"name"`
	ToolCount    int          `json:"toolCount"`
	Tools        []ServerTool `json:"tools"`
	InstallLog   string       `json:"installLog,omitempty"`
	Declined     bool         `json:"declined,omitempty"` // by the user
	Error        string       `json:"error"`
}

// serverNamer is implemented by inputs that name a server.
type serverNamer interface{ serverName() string }

// declineAsResult returns a handler that turns the error of a user who declined into a result.
func declineAsResult[In serverNamer](h handler[In]) handler[In] {
	return func(ctx context.Context, c tool.Call, in In) (*tool.Result, error) {
		r, err := h(ctx, c, in)
		declined, ok := errors.AsType[*tool.Declined](err)
		if !ok {
			return r, err
		}
		text := declined.Message + ": nothing was installed, started or changed."
		r = textResult(&NotConnected{Name: in.serverName(), Tools: []ServerTool{}, Declined: true, Error: text}, text)
		r.IsError, r.Summary = true, "Do not try again unless the user asks for it."
		return r, nil
	}
}

// questionText is the template of the question to the user.
const questionText = `{{.Verb}} the MCP server {{printf "%q" .Name}}?
{{with .Install}}
Installs: {{packageKind .Type}} {{exact .Spec}}, into {{exact .Folder}} of your home session, with
{{range $.Commands}}  {{.}}
{{end}}{{if eq .Type "git"}}  and what npm or pip install for it, as it says itself
{{end}}{{end}}{{if .Remote}}
Connects to: {{exact .URL}}
{{else}}
Runs: {{.Program}}
In: {{exact .Cwd}} of your home session
{{end}}{{names "Variables" .EnvKeys .Env}}{{names "Headers" .HeaderKeys .Headers -}}
{{if or .Env .Headers}}It is given the values of your stored secrets that are named in ${secret:…}.
{{end}}{{with .Replaces}}Instead of: {{.}}
{{end}}
{{if .Remote}}It is sent what your agents pass to its tools.
{{- else}}It can read and change all that is in /workspace, and use the network of your home session.{{end}}`

var questionFuncs = template.FuncMap{
	"exact": func(word string) string { return spec.ExactCommandLine([]string{word}) },
	"names": nameList,
	"packageKind": func(kind string) string {
		return map[string]string{"npm": "npm package", "pip": "Python package", "git": "git repository"}[kind]
	},
}

// consentQuestion returns the question to the user, with all that the change would run and send. It quotes text
// from an agent with spec.ExactCommandLine, so that the text cannot hide anything.
func consentQuestion(p spec.Change) tool.Question {
	data := struct {
		spec.Change
		Verb, Program string
		Remote        bool
	}{p, "Start", spec.ExactCommandLine(append([]string{p.Command}, p.Args...)), p.Kind != spec.Stdio}
	doing := "starting"
	switch {
	case p.Install != nil:
		data.Verb, doing = "Install and start", "installing and starting"
	case data.Remote:
		data.Verb, doing = "Connect", "connecting"
	}
	if p.Command == "" {
		data.Program = strings.TrimSpace("the one program that it brings " + spec.ExactCommandLine(p.Args))
	}
	var text strings.Builder
	question := template.Must(template.New("").Funcs(questionFuncs).Parse(questionText))
	if err := question.Execute(&text, data); err != nil {
		panic(err) // the template does not fit the change
	}
	return tool.Question{What: fmt.Sprintf("%s the MCP server %q", doing, p.Name), Message: text.String(),
		WithoutAgent: commandLine(p)}
}

// nameList returns a line with the names of variables or headers; empty: there are none. Where secrets has a name's
// reference to stored secrets, the line has the reference too; values are never in it.
func nameList(label string, keys []string, secrets map[string]string) string {
	if len(keys) == 0 {
		return ""
	}
	shown := slices.Clone(keys)
	for i, k := range keys {
		if r := secrets[k]; r != "" {
			shown[i] = k + " = " + r
		}
	}
	return fmt.Sprintf("%s: %s (values are not shown)\n", label, strings.Join(shown, ", "))
}

// keyOption returns a variable or header for the command line: KEY=REFERENCE if its value is only a
// reference to a secret, else KEY, which the command reads from its environment.
func keyOption(key, reference string) string {
	if reference == "" || strings.Contains(reference, "…") {
		return key
	}
	return key + "=" + reference
}

// commandLine returns the user's shell command for the same change.
func commandLine(p spec.Change) string {
	argv := []string{"sandlot", "mcp", "add", p.Name}
	program := append([]string{p.Command}, p.Args...)
	switch {
	case p.Install != nil:
		argv = append(argv, "--"+p.Install.Type, p.Install.Spec)
		if p.Install.SHA256 != "" {
			argv = append(argv, "--sha256", p.Install.SHA256)
		}
		if p.Workdir != "" {
			argv = append(argv, "--workdir", p.Workdir)
		}
		if p.Command == "" {
			program = nil
		}
	case p.Kind != spec.Stdio:
		argv, program = append(argv, "--url", p.URL), nil
		if p.Kind == spec.SSE {
			argv = append(argv, "--sse")
		}
	case p.Cwd != "/workspace":
		argv = append(argv, "--cwd", p.Cwd)
	}
	for _, k := range p.EnvKeys {
		argv = append(argv, "--env", keyOption(k, p.Env[k]))
	}
	for _, k := range p.HeaderKeys {
		argv = append(argv, "--header", keyOption(k, p.Headers[k]))
	}
	if len(program) > 0 {
		argv = append(append(argv, "--"), program...)
	}
	return spec.ExactCommandLine(argv)
}
