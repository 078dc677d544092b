package builtin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/internal/image"
	"sandlot/internal/once"
	"sandlot/internal/plural"
	"sandlot/internal/policy"
	"sandlot/internal/session"
	"sandlot/internal/session/property"
	"sandlot/internal/terminal"
	"sandlot/internal/tool"
)

// CodeInput are the arguments of execute_code.
type CodeInput struct {
	Code     string `json:"code" jsonschema:"The source code to run."`
	Language string `json:"language,omitempty"`
	Template string `json:"template,omitempty"`
	SessionInput
	Flavor  string            `json:"flavor,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Timeout int64             `json:"timeout,omitempty"`
	property.New
	BeforeInput
	IdempotencyInput
}

// target implements targeted.
func (in CodeInput) target(_ *Tools, c tool.Call, d *tool.Detail) {
	d.Session = wantedSession(c, in.SessionID)
}

// CodeResult is the result of execute_code.
type CodeResult struct {
	SessionOutput
	Timing
	Streams
	Output    string  `json:"output,omitempty" jsonschema:"What it printed, and why it failed, as text."`
	Images    int     `json:"images,omitempty" jsonschema:"How many images are in content, and nowhere else."`
	Template  string  `json:"template" jsonschema:"The template asked for."`
	Language  string  `json:"language" jsonschema:"The language that ran."`
	Success   bool    `json:"code_success"`
	ExitCode  int     `json:"exit_code" jsonschema:"0 for success; 124 when the time was over."`
	Value     *string `json:"result" jsonschema:"The last expression's value as text."`
	StateLost bool    `json:"state_lost,omitempty" jsonschema:"The interpreter had to be restarted: variables are gone."`
}

// languages lists the names of all templates' languages, without duplicates.
func (t *Tools) languages() []string {
	var names []string
	for _, template := range t.Templates() {
		names = append(names, slices.DeleteFunc(slices.Clone(template.LanguageNames()),
			func(l string) bool { return slices.Contains(names, l) })...)
	}
	if len(names) == 0 { // no template is ready yet; those that are offered have these
		return []string{"python", "node", "bash"}
	}
	return names
}

// addContext adds the facts that are missing in the context of err, if err is a fault of that kind.
func addContext(err error, kind fault.Kind, facts map[string]any) error {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != kind {
		return err
	}
	for name, value := range facts {
		if _, exists := f.Context[name]; !exists {
			f = f.With(name, value)
		}
	}
	return f
}

func (t *Tools) executeCode(ctx context.Context, c tool.Call, in CodeInput) (*tool.Result, error) {
	if err := t.checkLanguage(in.Language); err != nil {
		return nil, err
	}
	before, err := t.snapshotBefore(ctx, c, in.BeforeInput, in.SessionID)
	if err != nil {
		return nil, err
	}
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID, Template: in.Template, Flavor: in.Flavor,
		Env: in.Env, Set: in.Change()})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	l.Snapshot = before
	lang, err := chooseLanguage(l.Booted.Template, in.Language, in.Template)
	if err != nil {
		return nil, err
	}
	if err := c.May(ctx, policy.CodeExecute, lang.Name, tool.Question{}); err != nil {
		return nil, err
	}
	if err := l.UseVariables(ctx, c.Door().Reveal); err != nil {
		return nil, err
	}
	timeout := t.timeout(in.Timeout)
	once.Begun(ctx)
	tag, end := t.Calls.Begin(ctx, l.ID(), "a cell in "+lang.Name, c)
	defer end()
	code := agent.Code{Language: lang.Name, Source: in.Code, Timeout: timeout, Inline: t.inlineLimits(), Tag: tag}
	result, err := t.evaluate(ctx, l, c, code)
	if err != nil {
		about := map[string]any{"template": l.Booted.Template.Name, "session_id": l.ID()}
		return nil, addContext(l.Fault(ctx, err, fault.CodeExecution), fault.CodeExecution, about)
	}
	return t.Calls.Noted(l.ID(), t.codeResult(l, result, lang, in.Template, timeout)), nil
}

// checkLanguage returns an error for a language that no template has, so that no sandbox boots for it.
func (t *Tools) checkLanguage(name string) error {
	if name == "" {
		return nil
	}
	for _, template := range t.Templates() {
		if _, ok := template.Language(name); ok || len(template.Languages) == 0 {
			return nil
		}
	}
	return unknownLanguage(name, t.languages())
}

func unknownLanguage(name string, known []string) error {
	name = fault.Printable(name, 60)
	return fault.Argument("language", "language %q is not known; known are: %s", name,
		strings.Join(known, ", ")).With("given", name).With("allowed", known)
}

// chooseLanguage chooses the language of a call by its arguments language (asked) and template. A template
// that has a language's name selects that language.
func chooseLanguage(t *image.Template, requested, template string) (image.Language, error) {
	byTemplate, named := t.Language(template)
	if requested == "" {
		if named && template != "" {
			return byTemplate, nil
		}
		return t.Languages[0], nil
	}
	l, ok := t.Language(requested)
	if !ok {
		return l, unknownLanguage(requested, t.LanguageNames())
	}
	// The shells are allowed with every template, and TypeScript with the template node: it has the same interpreter.
	same := byTemplate.Driver == l.Driver && slices.Equal(byTemplate.Command, l.Command)
	if named && template != "" && !same && l.Name != "bash" && l.Name != "sh" {
		return l, fault.Argument("language", "language %q and template %q do not go together; leave "+
			"one of them out", requested, template).With("given", requested).With("template", template)
	}
	return l, nil
}

// evaluate runs code and returns its result. The timeout does not include the time during which the code
// waits for other code in the same interpreter.
func (t *Tools) evaluate(ctx context.Context, l *session.Lease, c tool.Call,
	code agent.Code) (*agent.CodeResult, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := code.Timeout + agent.AnswerTimeout
	timer := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	defer timer.Stop()
	o := progressObserver(c)
	o.Waiting = func(elapsed time.Duration) error {
		timer.Reset(limit)
		if c.Progress != nil {
			c.Progress(fault.Printable(fmt.Sprintf("Waiting: another piece of %s code has been running in this "+
				"session for %d s", code.Language, int(elapsed.Seconds())), 4096))
		}
		return nil
	}
	return l.Agent().Evaluate(ctx, code, o)
}

// progressObserver sends output to the client as progress notifications, if the client wants them. Each
// notification has at most 4096 bytes, whatever the sandbox sends.
func progressObserver(c tool.Call) agent.Observer {
	if c.Progress == nil {
		return agent.Observer{}
	}
	return agent.Observer{Output: func(b []byte) error {
		c.Progress(fault.Printable(terminal.Text(string(b)), 4096))
		return nil
	}}
}

func (t *Tools) codeResult(l *session.Lease, d *agent.CodeResult, lang image.Language, template string,
	timeout time.Duration) *tool.Result {
	stdout, stderr := renderStream(l, "stdout", d.Stdout), renderStream(l, "stderr", d.Stderr)
	end, exitCode := codeEndText(l, d, timeout), d.ExitCode
	errorText := joinNonEmpty(displayText(d.Traceback), end)
	if !d.OK && exitCode == 0 {
		exitCode = 1
	}
	fields := &CodeResult{SessionOutput: sessionOutput(l), Timing: timing(d.Duration), Language: lang.Name,
		Template: cmp.Or(template, l.Booted.Template.Name), Success: d.OK, ExitCode: exitCode, StateLost: d.StateLost}
	r := sessionResult(l, fields)
	r.IsError = !d.OK
	var result renderedStream
	if d.Value != nil {
		result = renderStream(l, "result", *d.Value)
		plain := result.plain()
		fields.Value = &plain
	}
	both := printedBy(stdout, stderr, d.Merged)
	value, printed := result.text, joinNonEmpty(both.text, errorText)
	fields.Output = joinNonEmpty(both.plain(), strings.TrimRight(d.Traceback, " \t\n"), end)
	if t.Labeled {
		r.Content = append(r.Content, tool.Text(labeledText(stdout, stderr, errorText, value, exitCode)))
	} else {
		if printed != "" || value == "" {
			r.Content = append(r.Content, tool.Text(printed))
		}
		if value != "" && !textRedundant(value, d.Rich) {
			r.Content = append(r.Content, tool.Text(value))
		}
	}
	fields.Streams = addStreams(r, stdout, stderr, result)
	fields.Truncated = fields.Truncated || slices.ContainsFunc(d.Rich, func(v agent.Rich) bool { return v.MIME == wire.CutList })
	for _, c := range richContent(l, d.Rich) {
		r.Content = append(r.Content, c)
		if c.Image != nil {
			fields.Images++
		}
	}
	fields.warn(l, r, "", stdout.text, stderr.text, errorText)
	r.Summary = summary(l, ending(exitCode, d.Duration)...)
	return r
}

// codeEndText returns a text on why the run was ended, or empty if it ended by itself.
func codeEndText(l *session.Lease, d *agent.CodeResult, timeout time.Duration) string {
	state := "Variables were kept."
	if d.StateLost {
		state = "Variables are gone: the interpreter was restarted"
		if d.Reason != "" {
			state += " (" + d.Reason + ")"
		}
		state += "."
	}
	switch {
	case d.TimedOut:
		return fmt.Sprintf("Execution timed out after %d seconds. %s", int(timeout.Seconds()), state)
	case d.KilledBy != "":
		return limitText(l, d.KilledBy) + " " + state
	case d.Interrupted:
		return "Execution was interrupted. " + state
	case d.StateLost:
		return state
	}
	return ""
}

func limitText(l *session.Lease, limit string) string {
	switch limit {
	case "memory":
		return fmt.Sprintf("Killed: the sandbox reached its memory limit of %d MB.", l.Booted.Flavor.MemoryMB)
	case "processes":
		return "Killed: the sandbox reached its limit of processes."
	case "time":
		return "Ended: its time limit was over."
	}
	return "Killed: a limit of the sandbox was reached (" + limit + ")."
}

// labeledText returns the text of a result in the form that mcp-codemode used.
func labeledText(stdout, stderr renderedStream, errorText, value string, exitCode int) string {
	var lines []string
	if out := joinNonEmpty(stdout.text, value); out != "" {
		lines = append(lines, "[stdout]", out)
	}
	if e := joinNonEmpty(stderr.text, errorText); e != "" {
		lines = append(lines, "[stderr]", e)
	}
	lines = append(lines, fmt.Sprintf("[exit_code] %d", exitCode))
	if stdout.truncated || stderr.truncated {
		lines = append(lines, "[note] Output was truncated due to size limits.")
	}
	return strings.Join(lines, "\n")
}

// typeOnly matches the text of a value that tells nothing but its type, such as <Figure object at 0x7f…>, or
// <__main__.B at 0x7f…>, which is how IPython has it.
var typeOnly = regexp.MustCompile(`^<[\w.<>]+ (object|(object )?at 0x[0-9a-f]+)>$`)

// textRedundant reports whether the text of a value adds nothing to its rich forms.
func textRedundant(value string, forms []agent.Rich) bool {
	return len(forms) > 0 && typeOnly.MatchString(value)
}

// outputFile returns a link to the file in the sandbox into which a driver wrote the value, and nil for
// other values. The driver sends a list of one URI, below wire.OutputDir, after a comment with the
// file's size.
func outputFile(l *session.Lease, v agent.Rich) *tool.Link {
	var size int64
	var uri string
	if v.MIME != "text/uri-list" && v.MIME != wire.CutList || len(v.Data) > 300 {
		return nil
	}
	if n, _ := fmt.Sscanf(string(v.Data), "# %d bytes\n%s", &size, &uri); n != 2 || size < 0 {
		return nil
	}
	name, ok := strings.CutPrefix(uri, "file://"+wire.OutputDir+"/")
	if !ok || name != fault.Printable(path.Base(name), 200) {
		return nil
	}
	link := &tool.Link{URI: FileURI(l.ID(), wire.OutputDir+"/"+name), Name: name, MIME: "text/html", Size: size,
		Description: "The value as HTML"}
	if v.MIME == wire.CutList {
		link.MIME, link.Description = "text/plain", fmt.Sprintf("The whole text, %d bytes", size)
	}
	return link
}

// maxRich is the maximum number of rich values (images, HTML …) in a result.
const maxRich = 16

func richContent(l *session.Lease, values []agent.Rich) []tool.Content {
	var blocks []tool.Content
	for i, v := range values {
		if i == maxRich {
			return append(blocks, tool.Text(fmt.Sprintf("[%s left out]",
				plural.Of(len(values)-maxRich, "more value", "more values"))))
		}
		if link := outputFile(l, v); link != nil {
			blocks = append(blocks, tool.Content{Link: link})
			continue
		}
		switch mime, problem := tool.CheckImage(v.Data); {
		case tool.IsImage(v.MIME) && problem == "":
			blocks = append(blocks, tool.Content{Image: &tool.Blob{MIME: mime, Data: v.Data}})
		case tool.IsImage(v.MIME):
			blocks = append(blocks, tool.Text(fmt.Sprintf("[an image of %d bytes is not shown: %s]", len(v.Data), problem)))
		case v.MIME == "text/plain":
			blocks = append(blocks, tool.Text(strings.ToValidUTF8(string(v.Data), "\uFFFD")))
		default:
			blocks = append(blocks, tool.Content{Resource: &tool.Resource{URI: fmt.Sprintf("sandlot://output/%d", i),
				MIME: v.MIME,
				Text: strings.ToValidUTF8(string(v.Data), "\uFFFD")}})
		}
	}
	return blocks
}
