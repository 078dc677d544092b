package builtin

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/plural"
	"sandlot/internal/policy"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// FileURI returns the URI of a session's file as an MCP resource.
func FileURI(session, file string) string {
	return "sandlot://sessions/" + session + "/files" + (&url.URL{Path: path.Clean("/" + file)}).EscapedPath()
}

type readFileInput struct {
	Path string `json:"path"`
	SessionInput
	Encoding string `json:"encoding,omitempty" jsonschema:"How the bytes are returned."`
	As       string `json:"as,omitempty"`
	Pages    string `json:"pages,omitempty" jsonschema:"With as: pages, slides or rows, such as 2-5 or 4-; offset and limit then count characters."`
	Offset   int64  `json:"offset,omitempty" jsonschema:"The byte to begin at."`
	Limit    int64  `json:"limit,omitempty" jsonschema:"The most bytes to return."`
}

// detail implements detailed.
func (in readFileInput) detail() string { return in.Path }

// implies implements implying: the sandbox's Python reads a document.
func (readFileInput) implies() []policy.Operation { return []policy.Operation{policy.CodeExecute} }

// FileRead is the result of sandbox_read_file.
type FileRead struct {
	SessionOutput
	Path      string `json:"path" jsonschema:"The file."`
	Size      int64  `json:"size" jsonschema:"Bytes in the whole file."`
	Offset    int64  `json:"offset" jsonschema:"Where the returned bytes begin."`
	Bytes     int    `json:"bytes" jsonschema:"How many were returned."`
	Encoding  string `json:"encoding" jsonschema:"utf-8 or base64; empty: it is not text, and was not read."`
	Truncated bool   `json:"truncated" jsonschema:"Whether there is more after them."`
	Text      string `json:"text,omitempty" jsonschema:"What was read; an image is only in content."`
	URI       string `json:"uri,omitempty" jsonschema:"The resource with the whole file, if there is more."`
}

func (t *Tools) readFile(ctx context.Context, c tool.Call, in readFileInput) (*tool.Result, error) {
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if in.As == "text" {
		return t.readDocument(ctx, l, c, in)
	}
	if in.Pages != "" {
		return nil, fault.Argument("pages", "pages are for a document that is read as text: add \"as\": \"text\"")
	}
	offset, binary := in.Offset, in.Encoding == "base64"
	data, size, err := readRange(ctx, l, c.Reservation, fileRange{in.Path, offset, cmp.Or(in.Limit, fileBytes)})
	if err != nil {
		return nil, err
	}
	contentType := http.DetectContentType(data)
	if !binary && offset == 0 && tool.IsImage(contentType) {
		if int64(len(data)) < size && size <= tool.MaxImageBytes {
			if data, size, err = readRange(ctx, l, c.Reservation, fileRange{in.Path, 0, size}); err != nil {
				return nil, err
			}
		}
		mime, problem := tool.CheckImage(data)
		if large := tool.TooLarge(size); large != "" { // it was not read to its end
			problem = large
		}
		if problem != "" {
			r, _ := fileResult(l, in.Path, nil, 0, size, "base64")
			r.Content = append(r.Content, tool.Text(fmt.Sprintf("[%s (%s, %d bytes) is not shown as an image: %s. With encoding "+
				"base64 you get its bytes.]", in.Path, contentType, size, problem)))
			return r, nil
		}
		r, _ := fileResult(l, in.Path, data, 0, size, "base64")
		r.Content = append(r.Content, tool.Content{Image: &tool.Blob{MIME: mime, Data: data}})
		return r, nil
	}
	uri := FileURI(l.ID(), absolutePath(in.Path))
	text, encoding := shownText{text: base64.StdEncoding.EncodeToString(data)}, "base64"
	if !binary {
		if offset+int64(len(data)) < size {
			data = wholeRunes(data)
		}
		for n := 0; n < utf8.UTFMax-1 && offset > 0 && len(data) > 0 && !utf8.RuneStart(data[0]); n++ { // the rest of a character
			data, offset = data[1:], offset+1
		}
		text, encoding = textOf(data), "utf-8"
		if !text.is {
			r, fields := fileResult(l, in.Path, nil, offset, size, "")
			fields.URI, fields.Truncated = uri, false
			r.Content = append(r.Content, tool.Text(fmt.Sprintf("[%s is not text: %s, %d bytes. Encoding \"base64\" returns "+
				"its bytes%s; the resource is %s]", in.Path, mimeType(in.Path, data), size, asText(in.Path), uri)))
			return r, nil
		}
	}
	r, fields := fileResult(l, in.Path, data, offset, size, encoding)
	r.Content, fields.Text = append(r.Content, tool.Text(text.text)), text.text
	for _, note := range []string{text.note, unshown(text.text)} {
		if note != "" {
			r.Content = append(r.Content, tool.Text(note))
		}
	}
	if fields.Truncated {
		end := offset + int64(len(data))
		fields.URI = uri
		r.Content = append(r.Content, tool.Text(fmt.Sprintf("[bytes %d to %d of %d; go on with offset %d, or read the "+
			"resource %s]", offset, end, size, end, fields.URI)))
	}
	return r, nil
}

// shownText is what a reader of a file is shown.
type shownText struct {
	text string
	note string // on its encoding
	is   bool   // it is text
}

// textOf returns the text that data is: in UTF-8, in UTF-16 with its mark, or in an older encoding without control
// characters.
func textOf(data []byte) shownText {
	kind := http.DetectContentType(data)
	switch {
	case strings.HasPrefix(kind, "text/plain; charset=utf-16"):
		text, err := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewDecoder().Bytes(data)
		return shownText{string(text), "[the file is in UTF-16, and is shown as UTF-8]", err == nil}
	case utf8.Valid(data):
		return shownText{text: string(data), is: true}
	case strings.HasPrefix(kind, "text/"):
		text, err := charmap.Windows1252.NewDecoder().Bytes(data)
		return shownText{string(text), "[the file is not in UTF-8, and is shown as if it were in Windows-1252]", err == nil}
	}
	return shownText{}
}

// unshown returns what a reader of a file's text is to be told about characters in it that clients leave out or models do
// not see; empty: nothing. The text keeps them, as it may be written back.
func unshown(text string) string {
	n, first := 0, rune(0)
	for _, r := range text {
		if r < ' ' && !strings.ContainsRune("\t\n\f\r", r) || r >= 0x7f && r < 0xa0 {
			if n == 0 {
				first = r
			}
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("[control characters in the text that may not be shown: %d, the first is U+%04X; with encoding "+
		"\"base64\" all bytes can be read]", n, first)
}

func absolutePath(p string) string {
	if strings.HasPrefix(p, "/") {
		return path.Clean(p)
	}
	return path.Join("/workspace", p)
}

func mimeType(name string, data []byte) string {
	if m := mime.TypeByExtension(path.Ext(name)); m != "" {
		return m
	}
	return http.DetectContentType(data)
}

func fileResult(l *session.Lease, p string, data []byte, offset, size int64, encoding string) (*tool.Result,
	*FileRead) {
	fields := &FileRead{SessionOutput: sessionOutput(l), Path: p, Size: size, Offset: offset, Bytes: len(data),
		Encoding:  encoding,
		Truncated: offset+int64(len(data)) < size}
	r := sessionResult(l, fields)
	r.Summary = summary(l, fmt.Sprintf("%s: %d bytes, %s", p, size, cmp.Or(encoding, "no text")))
	return r, fields
}

// fileRange is a range of a file.
type fileRange struct {
	path          string
	offset, limit int64
}

// readRange reads a range of a file, and returns the file's size too. Before it reads a large range, it
// waits until the principal's memory limit admits that many bytes.
func readRange(ctx context.Context, l *session.Lease, held *limit.Reservation, r fileRange) ([]byte, int64, error) {
	data, size, err := readUpTo(ctx, l, r.path, r.offset, min(r.limit, limit.LargeAnswer))
	needed := min(r.limit, size-r.offset)
	if err != nil || int64(len(data)) >= needed {
		return data, size, err
	}
	if err := held.Reserve(ctx, needed); err != nil {
		return nil, 0, err
	}
	return readUpTo(ctx, l, r.path, r.offset, needed)
}

// readUpTo reads at most limit bytes of a file, and returns the file's size too.
func readUpTo(ctx context.Context, l *session.Lease, p string, offset, limit int64) ([]byte, int64, error) {
	data, size, err := l.Agent().ReadFile(ctx, p, offset, limit)
	if err != nil {
		return nil, 0, l.Fault(ctx, err, fault.FileAccess)
	}
	return data, size, nil
}

type writeFileInput struct {
	Path    string `json:"path"`
	Content string `json:"content" jsonschema:"What to write."`
	SessionInput
	Encoding string `json:"encoding,omitempty" jsonschema:"What content is in."`
	Append   bool   `json:"append,omitempty" jsonschema:"Write at the end of the file."`
	Offset   *int64 `json:"offset,omitempty" jsonschema:"Write at this byte and keep the rest."`
	Mode     string `json:"mode,omitempty"`
}

// FileWritten is the result of sandbox_write_file.
type FileWritten struct {
	SessionOutput
	Path    string `json:"path" jsonschema:"The file."`
	Written int    `json:"bytes_written" jsonschema:"Bytes of content."`
	Size    int64  `json:"size" jsonschema:"Bytes in the file now."`
}

var octalMode = regexp.MustCompile(`^0?[0-7]{3}$`)

// detail implements detailed.
func (in writeFileInput) detail() string { return in.Path }

// request returns the agent's request for the arguments.
func (in writeFileInput) request() (agent.FileWrite, error) {
	w := agent.FileWrite{Path: in.Path, Data: []byte(in.Content), Append: in.Append, Offset: in.Offset}
	if in.Encoding == "base64" {
		data, err := base64.StdEncoding.DecodeString(in.Content)
		if err != nil {
			return w, fault.Argument("content", "argument \"content\" is not base64: %v", err).
				With("allowed", "base64 with padding")
		}
		w.Data = data
	}
	if in.Offset != nil && in.Append {
		return w, fault.Argument("offset", "append and offset do not go together; leave one of them out")
	}
	if in.Mode != "" {
		if !octalMode.MatchString(in.Mode) {
			return w, fault.Argument("mode", "mode %q must be three octal digits, such as 0644",
				fault.Printable(in.Mode, 20)).With("allowed", "0000 to 0777")
		}
		mode, _ := strconv.ParseUint(in.Mode, 8, 32)
		w.Mode = uint32(mode)
	}
	return w, nil
}

func (t *Tools) writeFile(ctx context.Context, c tool.Call, in writeFileInput) (*tool.Result, error) {
	w, err := in.request()
	if err != nil {
		return nil, err
	}
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if err := l.ReserveDisk(w.Path, int64(len(w.Data))); err != nil {
		return nil, err
	}
	size, err := l.Agent().WriteFile(ctx, w)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.FileAccess)
	}
	fields := &FileWritten{SessionOutput: sessionOutput(l), Path: in.Path, Written: len(w.Data), Size: size}
	return sessionResult(l, fields, tool.Text(fmt.Sprintf("Wrote %d bytes to %s", len(w.Data), in.Path))), nil
}

type listFilesInput struct {
	Path string `json:"path,omitempty"`
	SessionInput
	Depth int `json:"depth,omitempty" jsonschema:"How many levels down."`
	Limit int `json:"limit,omitempty" jsonschema:"The most entries to return."`
}

// detail implements detailed.
func (in listFilesInput) detail() string { return in.Path }

// FileList is the result of sandbox_list_files.
type FileList struct {
	SessionOutput
	Path      string `json:"path" jsonschema:"The directory."`
	Files     []File `json:"files"`
	Truncated bool   `json:"truncated" jsonschema:"Whether there are more entries."`
	Withheld  int    `json:"withheld,omitempty" jsonschema:"Entries left out, as a rule does not let you list them."`
}

// File is one entry of a directory in the results.
type File struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Size     int64  `json:"size"`
	Mode     string `json:"mode"` // in octal
	Modified string `json:"modified"`
	Target   string `json:"target,omitempty"`
}

func (t *Tools) listFiles(ctx context.Context, c tool.Call, in listFilesInput) (*tool.Result, error) {
	dir := cmp.Or(in.Path, "/workspace")
	l, err := t.openSession(ctx, c, session.OpenRequest{ID: in.SessionID})
	if err != nil {
		return nil, err
	}
	defer l.Release()
	files, truncated, err := l.Agent().ListFiles(ctx, dir, cmp.Or(in.Depth, 1), cmp.Or(in.Limit, 500))
	if err != nil {
		return nil, l.Fault(ctx, err, fault.FileAccess)
	}
	files, withheld := shownFiles(ctx, c, dir, files)
	rows, lines := []File{}, []string{}
	for _, f := range files {
		row := File{Name: strings.ToValidUTF8(f.Path, "\uFFFD"), Type: f.Type, Size: f.Size,
			Mode: fmt.Sprintf("%04o", f.Mode), Modified: formatTime(f.Modified),
			Target: strings.ToValidUTF8(f.Target, "\uFFFD")}
		rows = append(rows, row)
		lines = append(lines, fmt.Sprintf("%s %9d %s %s", row.Mode, f.Size, row.Modified, shownName(f)))
	}
	text := cmp.Or(strings.Join(lines, "\n"), "(empty directory)")
	if truncated && len(lines) > 0 {
		text += fmt.Sprintf("\n[only the first %d entries; list a subdirectory, or raise limit]", len(lines)+withheld)
	}
	if withheld > 0 {
		text += fmt.Sprintf("\n[%s left out: a rule does not let you list them]", plural.Of(withheld, "entry is",
			"entries are"))
	}
	return sessionResult(l, &FileList{SessionOutput: sessionOutput(l), Path: dir, Files: rows, Truncated: truncated,
		Withheld: withheld}, tool.Text(text)), nil
}

// shownName returns the name of a file for a line of a listing, and where a link leads to.
func shownName(f agent.File) string {
	name := fault.Name(f.Path, 4096)
	if f.Type == "directory" {
		name += "/"
	}
	if f.Target != "" {
		name += " -> " + fault.Name(f.Target, 4096)
	}
	return name
}

// shownFiles returns the entries of a directory that policy lets the principal list, and how many others there are:
// those that it denies, and all below them.
func shownFiles(ctx context.Context, c tool.Call, dir string, files []agent.File) (shown []agent.File, withheld int) {
	known := map[string]bool{".": true}
	var shows func(name string) bool
	shows = func(name string) bool {
		yes, ok := known[name]
		if !ok {
			yes = shows(path.Dir(name)) && c.Door().Shows(ctx, absolutePath(path.Join(dir, name)))
			known[name] = yes
		}
		return yes
	}
	for _, f := range files {
		if shows(path.Clean(strings.TrimLeft(f.Path, "/"))) {
			shown = append(shown, f)
		}
	}
	return shown, len(files) - len(shown)
}

// ResourceTemplates implements tool.ResourceReader.
func (t *Tools) ResourceTemplates() []tool.Link {
	return []tool.Link{{URI: "sandlot://sessions/{session_id}/files/{+path}", Name: "session file",
		Description: "A file of one of your sessions, by its absolute path. Larger files: GET " +
			"/v1/sessions/{session_id}/files/{path}."}}
}

var fileURI = regexp.MustCompile(`^sandlot://sessions/([a-z0-9-]{1,64})/files(/.*)$`)

// File implements tool.ResourceReader.
func (t *Tools) File(uri string) (session, file string, ok bool) {
	m := fileURI.FindStringSubmatch(uri)
	if m == nil || m[1] == "new" {
		return "", "", false
	}
	file, err := url.PathUnescape(m[2])
	return m[1], file, err == nil
}

// Read implements tool.ResourceReader.
func (t *Tools) Read(ctx context.Context, p auth.Principal, uri string, maxBytes int) (tool.Blob, int64, error) {
	id, name, ok := t.File(uri)
	if !ok {
		return tool.Blob{}, 0, fault.New(fault.NotFound, "resource not found: %s", fault.Printable(uri, 200)).
			With("uri", fault.Printable(uri, 200))
	}
	l, err := t.Sessions.Wake(ctx, p, id)
	if err != nil {
		return tool.Blob{}, 0, err
	}
	defer l.Release()
	data, size, err := readUpTo(ctx, l, name, 0, int64(maxBytes))
	if err != nil {
		return tool.Blob{}, 0, err
	}
	return tool.Blob{MIME: mimeType(name, data), Data: data}, size, nil
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
