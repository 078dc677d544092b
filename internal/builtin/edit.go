package builtin

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/servers/spec"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

const (
	// maxEdited is the largest file, in bytes, that can be edited.
	maxEdited = 4 << 20
	// maxDiff is how many bytes of a diff a result has.
	maxDiff = 8000
)

type editFileInput struct {
	Path  string `json:"path"`
	Edits []Edit `json:"edits" jsonschema:"Replacements, one after the other: all of them are made, or none."`
	SessionInput
}

// Edit replaces a text of a file by another.
type Edit struct {
	Old string `json:"old_text" jsonschema:"What is in the file, exactly, and once."`
	New string `json:"new_text" jsonschema:"What stands there instead; empty: nothing."`
	All bool   `json:"all,omitempty" jsonschema:"Replace each occurrence."`
}

// FileEdited is the result of sandbox_edit_file.
type FileEdited struct {
	SessionOutput
	Path         string `json:"path" jsonschema:"The file."`
	Replacements int    `json:"replacements" jsonschema:"How many texts were replaced."`
	Size         int64  `json:"size" jsonschema:"Bytes in the file now."`
	Diff         string `json:"diff" jsonschema:"What has changed, as a unified diff, or its beginning."`
}

// detail implements detailed.
func (in editFileInput) detail() string { return in.Path }

// implies implements implying: the diff and the errors tell what is in the file.
func (editFileInput) implies() []policy.Operation { return []policy.Operation{policy.FileRead} }

func (t *Tools) editFile(ctx context.Context, c tool.Call, in editFileInput) (*tool.Result, error) {
	if len(in.Edits) == 0 {
		return nil, fault.Argument("edits", "argument \"edits\" is empty: give at least one old_text and its new_text")
	}
	if err := in.readAllowed(ctx, c); err != nil {
		return nil, err
	}
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	done, err := t.edits.turn(ctx, l.ID())
	if err != nil {
		return nil, err
	}
	defer done()
	before, size, err := readRange(ctx, l, c.Reservation, fileRange{in.Path, 0, maxEdited + 1})
	if err != nil {
		return nil, err
	}
	if size > maxEdited {
		return nil, fault.New(fault.FileAccess, "%s has %d bytes; at most %d can be edited", in.Path, size, maxEdited).
			Advise("Change it with a command, such as sed, or with code")
	}
	if err := c.Reservation.ReserveAnswer(ctx, 3*len(before)); err != nil { // what it will be, and the lines of both
		return nil, err
	}
	after, replaced, err := replaceAll(before, in.Edits)
	if err != nil {
		return nil, err
	}
	if err := l.ReserveDisk(in.Path, int64(len(after))); err != nil {
		return nil, err
	}
	if size, err = l.Agent().WriteFile(ctx, agent.FileWrite{Path: in.Path, Data: after}); err != nil {
		return nil, l.Fault(ctx, err, fault.FileAccess)
	}
	fields := &FileEdited{SessionOutput: sessionOutput(l), Path: in.Path, Replacements: replaced, Size: size,
		Diff: diffOf(in.Path, before, after)}
	return sessionResult(l, fields, tool.Text(fields.Diff)), nil
}

// readAllowed asks policy whether the file may be read too.
func (in editFileInput) readAllowed(ctx context.Context, c tool.Call) error {
	return c.May(ctx, policy.FileRead, in.Path, tool.Question{Message: "May an agent read this file, to edit it?\n" +
		spec.ExactCommandLine([]string{in.Path})})
}

// replaceAll returns the text after all edits, and how many texts were replaced.
func replaceAll(text []byte, edits []Edit) (_ []byte, replaced int, err error) {
	for i, e := range edits {
		n := 0
		if text, n, err = e.replace(text, i); err != nil {
			return nil, 0, err
		}
		replaced += n
	}
	return text, replaced, nil
}

// replace returns the text after the edit, which is that of an index, and how many texts were replaced.
func (e Edit) replace(text []byte, index int) ([]byte, int, error) {
	name := fmt.Sprintf("edits[%d].old_text", index)
	refuse := func(format string, args ...any) error {
		what := fmt.Sprintf(format, args...)
		if index > 0 {
			what += " (after the edits before it)"
		}
		return fault.Argument(name, "%s %s; the file stays as it was", name, what)
	}
	from, to := []byte(e.Old), []byte(e.New)
	switch {
	case len(from) == 0:
		return nil, 0, fault.Argument(name, "%s is empty; give a text of the file with what stands before or after, or "+
			"write a new file with sandbox_write_file", name)
	case e.Old == e.New:
		return nil, 0, fault.Argument(name, "%s is the same as its new_text", name)
	}
	n := bytes.Count(text, from)
	if n == 0 && endsLinesByCRLF(text) { // models write \n
		from, to = withCRLF(from), withCRLF(to)
		n = bytes.Count(text, from)
	}
	switch {
	case n == 0:
		return nil, 0, refuse("is not in the file%s", nearly(text, from))
	case n > 1 && !e.All:
		return nil, 0, refuse("is in the file %d times (%s): give more of the text around it, or set all", n,
			linesOf(text, from, n))
	case int64(len(text))+int64(n)*int64(len(to)-len(from)) > maxEdited:
		return nil, 0, refuse("would make the file larger than %d bytes", maxEdited)
	}
	return bytes.ReplaceAll(text, from, to), n, nil
}

// endsLinesByCRLF reports whether the lines of a text end as on Windows.
func endsLinesByCRLF(text []byte) bool {
	n := bytes.Count(text, []byte("\n"))
	return n > 0 && n == bytes.Count(text, []byte("\r\n"))
}

func withCRLF(text []byte) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
}

// nearly says where the text is in the file but for white space, or how to find it.
func nearly(text, wanted []byte) string {
	lines := wordsOf(bytes.TrimSpace(wanted))
	if lines = lines[:min(50, len(lines))]; len(text) <= 256<<10 && lines[0] != "" {
		all := wordsOf(text)
		for at := range all[:max(0, len(all)-len(lines)+1)] {
			here := all[at : at+len(lines)]
			if slices.Equal(here, lines) || len(lines) == 1 && strings.Contains(here[0], lines[0]) {
				return fmt.Sprintf("; but for white space it is in line %d: copy it from the file (sandbox_read_file)",
					at+1)
			}
		}
	}
	return ": copy it exactly from the file (sandbox_read_file)"
}

// wordsOf returns the lines of a text, each with one space between its words.
func wordsOf(text []byte) (lines []string) {
	for _, line := range strings.Split(string(text), "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// linesOf says in which lines a text is, of n occurrences.
func linesOf(text, wanted []byte, n int) string {
	var numbers []string
	line, at := 1, 0
	for range min(n, 5) {
		i := bytes.Index(text[at:], wanted)
		line += bytes.Count(text[at:at+i], []byte("\n"))
		numbers = append(numbers, fmt.Sprint(line))
		line += bytes.Count(wanted, []byte("\n"))
		at += i + len(wanted)
	}
	more := ""
	if n > len(numbers) {
		more = ", …"
	}
	return "lines " + strings.Join(numbers, ", ") + more
}

// diffOf returns the beginning of a unified diff.
func diffOf(path string, before, after []byte) string {
	diff := strings.ToValidUTF8(udiff.Unified(path, path, string(before), string(after)), "\uFFFD")
	if len(diff) <= maxDiff {
		return diff
	}
	end := maxDiff
	for !utf8.RuneStart(diff[end]) {
		end--
	}
	return fmt.Sprintf("%s\n[%d bytes more of the diff]", diff[:end], len(diff)-end)
}

// turns let one call at a time edit files of a session: what one has read no other may change.
type turns struct {
	mu   sync.Mutex
	held map[string]*turn // by session
}

// turn is who edits files of a session, and who waits for that.
type turn struct {
	free  chan struct{} // has room for the one whose turn it is
	calls int
}

// turn waits until no other call edits files of a session. The caller calls done in the end.
func (ts *turns) turn(ctx context.Context, session string) (done func(), err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.held[session]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		if ts.held == nil {
			ts.held = map[string]*turn{}
		}
		ts.held[session] = t
	}
	t.calls++
	leave := func() {
		if t.calls--; t.calls == 0 {
			delete(ts.held, session)
		}
	}
	ts.mu.Unlock()
	select {
	case t.free <- struct{}{}:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	ts.mu.Lock()
	if err != nil {
		leave()
		return nil, err
	}
	return func() {
		<-t.free
		ts.mu.Lock()
		defer ts.mu.Unlock()
		leave()
	}, nil
}
