package builtin

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// documentReader prints a document as text. It runs in the sandbox, since documents are hostile.
//
//go:embed documents.py
var documentReader string

// documentTimeout is how long a document may take to be read.
const documentTimeout = time.Minute

// asText returns what a reader of a document that is no text is told.
func asText(file string) string {
	if slices.Contains([]string{".docx", ".xlsx", ".pptx", ".pdf", ".parquet"}, strings.ToLower(path.Ext(file))) {
		return "; \"as\": \"text\" returns its text"
	}
	return ""
}

// documentInfo is what documentReader prints first.
type documentInfo struct {
	Unit               string // pages, slides, rows, …
	Count, First, Last int
	Characters         int64
}

// readDocument reads a document as text, by the sandbox's Python. As files of the sandbox decide what that runs, who may
// not run code may not do it.
func (t *Tools) readDocument(ctx context.Context, l *session.Lease, c tool.Call, in readFileInput) (*tool.Result, error) {
	python, ok := l.Booted.Template.Language("python")
	if !ok || len(python.Command) == 0 {
		return nil, fault.Argument("as", "a document is read as text by Python, and this template has none")
	}
	if err := c.May(ctx, policy.CodeExecute, "python", tool.Question{Message: "May an agent read this document by the " +
		"sandbox's Python?\n" + spec.ExactCommandLine([]string{in.Path})}); err != nil {
		return nil, err
	}
	limit := cmp.Or(in.Limit, fileBytes)
	args := append(slices.Clone(python.Command), "-c", documentReader, absolutePath(in.Path), in.Pages,
		strconv.FormatInt(in.Offset, 10), strconv.FormatInt(limit, 10))
	agentCtx, cancel := context.WithTimeout(ctx, documentTimeout+agent.AnswerTimeout)
	defer cancel()
	d, err := l.Agent().Exec(agentCtx, agent.Exec{Command: agent.Command{Args: args, Dir: "/"}, Timeout: documentTimeout,
		Inline: agent.InlineBounds{Head: int(min(limit, math.MaxInt32/2)) + 1000, Tail: 1}}, agent.Observer{})
	if err != nil {
		return nil, l.Fault(ctx, err, fault.FileAccess)
	}
	head, text, _ := strings.Cut(string(d.Stdout.Head), "\n")
	var info documentInfo
	switch {
	case d.TimedOut:
		return nil, fault.New(fault.FileAccess, "%s: reading it as text took longer than %s; a range of pages takes less",
			in.Path, documentTimeout)
	case d.KilledBy != "":
		return nil, fault.New(fault.FileAccess, "%s as text: %s", in.Path, limitText(l, d.KilledBy)).With("path", in.Path)
	case d.ExitCode != 0:
		return nil, fault.New(fault.FileAccess, "%s as text: %s", in.Path, cmp.Or(lastLine(string(d.Stderr.Head)),
			fmt.Sprintf("the sandbox's Python ended with exit code %d", d.ExitCode))).With("path", in.Path)
	case json.Unmarshal([]byte(head), &info) != nil:
		return nil, fault.New(fault.FileAccess, "%s as text: the sandbox's Python gave a senseless answer", in.Path)
	}
	text = strings.ToValidUTF8(text, "\ufffd")
	r, fields := fileResult(l, in.Path, nil, in.Offset, info.Characters, "utf-8")
	characters := int64(len([]rune(text)))
	end := in.Offset + characters
	fields.Bytes, fields.Text, fields.Truncated = len(text), text, end < info.Characters
	r.Content = append(r.Content, tool.Text(text))
	note := fmt.Sprintf("%s %d to %d of %d", info.Unit, info.First, info.Last, info.Count)
	if info.First == 1 && info.Last == info.Count {
		note = fmt.Sprintf("%d %s", info.Count, info.Unit)
	}
	if info.Last < info.Count {
		note += fmt.Sprintf("; go on with pages \"%d-\"", info.Last+1)
	}
	if fields.Truncated {
		note += fmt.Sprintf("; characters %d to %d of %d: go on with offset %d", in.Offset, end, info.Characters, end)
	}
	r.Content = append(r.Content, tool.Text("["+note+"]"))
	return r, nil
}

// lastLine returns the last line of a text that has something.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
