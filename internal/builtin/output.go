package builtin

import (
	"encoding/base64"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"sandlot/internal/agent"
	"sandlot/internal/session"
	"sandlot/internal/terminal"
	"sandlot/internal/tool"
)

// inlineLimits returns how much of an output's beginning and of its end a result may have. The end gets
// more, since errors are usually there.
func (t *Tools) inlineLimits() agent.InlineBounds {
	head := t.MaxOutput * 2 / 5
	return agent.InlineBounds{Head: head, Tail: t.MaxOutput - head}
}

// renderedStream is one captured output in the forms that a result needs.
type renderedStream struct {
	name string
	// text is the output as a terminal would show it, without trailing white space; data is the
	// output as the program wrote it, with U+FFFD for bytes that are not UTF-8. Of a truncated output,
	// both have the beginning and the end.
	text, data string
	truncated  bool
	total      int64
	binary     string // base64 of an output that is not text and not truncated
	link       *tool.Link
	path       string // of the file in the sandbox that the link is to
}

func renderStream(l *session.Lease, name string, c agent.Output) renderedStream {
	s := renderedStream{name: name, total: c.Total, path: c.Path}
	s.truncated = c.Total > c.Inline()
	if !s.truncated {
		all := append(c.Head[:len(c.Head):len(c.Head)], c.Tail...)
		if !terminal.IsText(all) {
			s.binary = base64.StdEncoding.EncodeToString(all)
		}
		s.data = validUTF8(all)
		s.text = displayText(s.data)
		if c.Path != "" && s.text != s.plain() {
			s.link = outputLink(l.ID(), name, c)
			s.link.Description = fmt.Sprintf("%s as it came, %d bytes", name, c.Total)
		}
		return s
	}
	rest := "the rest was not kept"
	if c.Path != "" {
		s.link = outputLink(l.ID(), name, c)
		kept := "the whole is"
		if c.Kept < c.Total {
			kept = fmt.Sprintf("its first %d bytes are", c.Kept)
		}
		rest = fmt.Sprintf("%s in the file %s of the sandbox, the resource %s", kept, c.Path, s.link.URI)
	}
	omission := fmt.Sprintf("… [%d of %d bytes of %s left out here; %s] …", c.Total-c.Inline(), c.Total, name, rest)
	head, tail := validUTF8(c.Head), validUTF8(c.Tail)
	s.data = head + "\n" + omission + "\n" + tail
	s.text = terminal.Text(head) + "\n" + omission + "\n" + displayText(tail)
	return s
}

// plain returns the output as the program wrote it, without trailing white space.
func (s renderedStream) plain() string { return strings.TrimRight(s.data, " \t\n") }

// displayText returns data as a terminal would show it, without trailing white space.
func displayText(data string) string { return strings.TrimRight(terminal.Text(data), " \t\n") }

// validUTF8 returns b with U+FFFD for each byte that is not UTF-8. The agent counts characters in the same
// way, so the result has as many as the agent counted.
func validUTF8(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}

// wholeRunes returns b without the incomplete character at its end, if the rest of b is text.
func wholeRunes(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if end := len(b) - i; utf8.RuneStart(b[end]) {
			if !utf8.FullRune(b[end:]) && utf8.Valid(b[:end]) {
				return b[:end]
			}
			break
		}
	}
	return b
}

func outputLink(session, name string, c agent.Output) *tool.Link {
	return &tool.Link{URI: FileURI(session, c.Path), Name: path.Base(c.Path), MIME: "text/plain", Size: c.Kept,
		Description: fmt.Sprintf("The whole %s, %d bytes", name, c.Total)}
}

// joinNonEmpty joins the parts that are not empty with line breaks.
func joinNonEmpty(parts ...string) string {
	var nonEmpty []string
	for _, p := range parts {
		if p != "" {
			nonEmpty = append(nonEmpty, p)
		}
	}
	return strings.Join(nonEmpty, "\n")
}

// Timing has the duration of a call.
type Timing struct {
	Milliseconds int64 `json:"execution_time_ms" jsonschema:"How long it ran, in milliseconds."`
}

func timing(d time.Duration) Timing { return Timing{Milliseconds: (d.Microseconds() + 500) / 1000} }

// ending returns what a summary says of how a run ended: its exit code if it failed, and its duration if it took long.
func ending(exitCode int, d time.Duration) (words []string) {
	if exitCode != 0 {
		words = append(words, fmt.Sprintf("exit_code: %d", exitCode))
	}
	if d >= time.Second {
		words = append(words, fmt.Sprintf("%.1f s", d.Seconds()))
	}
	return words
}

// Streams have what the text of a result does not tell about its outputs: the full sizes of truncated
// ones, and the base64 form of those that are not text.
type Streams struct {
	Truncated    bool   `json:"truncated" jsonschema:"Whether output was left out."`
	StdoutBytes  int64  `json:"stdout_bytes,omitempty"`
	StderrBytes  int64  `json:"stderr_bytes,omitempty"`
	ResultBytes  int64  `json:"result_bytes,omitempty"`
	StdoutBase64 string `json:"stdout_base64,omitempty"`
	StderrBase64 string `json:"stderr_base64,omitempty"`
	ResultBase64 string `json:"result_base64,omitempty"`
	StdoutURI    string `json:"stdout_uri,omitempty" jsonschema:"The resource with all that is left out in output."`
	StderrURI    string `json:"stderr_uri,omitempty"`
	ResultURI    string `json:"result_uri,omitempty"`
}

// addStreams appends links to the full outputs to a result's content, and returns the fields about the
// outputs.
func addStreams(r *tool.Result, streams ...renderedStream) (s Streams) {
	sizes := map[string]*int64{"stdout": &s.StdoutBytes, "stderr": &s.StderrBytes, "result": &s.ResultBytes}
	encoded := map[string]*string{"stdout": &s.StdoutBase64, "stderr": &s.StderrBase64, "result": &s.ResultBase64}
	uris := map[string]*string{"stdout": &s.StdoutURI, "stderr": &s.StderrURI, "result": &s.ResultURI}
	for _, stream := range streams {
		if stream.truncated {
			s.Truncated = true
			*sizes[stream.name] = stream.total
		}
		if stream.binary != "" {
			*encoded[stream.name] = stream.binary
		}
		if stream.link != nil {
			*uris[stream.name] = stream.link.URI
			r.Content = append(r.Content, tool.Content{Link: stream.link})
		}
	}
	return s
}

// printedBy returns what a run printed to both streams: in the order of time, as a terminal shows it, if that is known,
// and else stdout before stderr.
func printedBy(stdout, stderr renderedStream, merged *agent.Output) renderedStream {
	if merged == nil {
		return renderedStream{text: joinNonEmpty(stdout.text, stderr.text), data: joinNonEmpty(stdout.plain(), stderr.plain())}
	}
	head, tail := validUTF8(merged.Head), validUTF8(merged.Tail)
	if merged.Total <= merged.Inline() {
		all := validUTF8(append(merged.Head[:len(merged.Head):len(merged.Head)], merged.Tail...))
		return renderedStream{text: displayText(all), data: all}
	}
	rest := "the rest was not kept"
	var where []string
	for _, s := range []renderedStream{stdout, stderr} {
		if s.link != nil {
			where = append(where, fmt.Sprintf("%s: the file %s, the resource %s", s.name, s.path, s.link.URI))
		}
	}
	if len(where) > 0 {
		rest = "each stream is in a file of the sandbox; " + strings.Join(where, "; ")
	}
	omission := fmt.Sprintf("… [%d of %d bytes of the output left out here; %s] …", merged.Total-merged.Inline(),
		merged.Total, rest)
	return renderedStream{text: terminal.Text(head) + "\n" + omission + "\n" + displayText(tail),
		data: head + "\n" + omission + "\n" + tail}
}
