package builtin

import (
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

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/session"
	"sandlot/internal/tool"
)

// FileURI names a file of a session as an MCP resource.
func FileURI(session, file string) string {
	return "sandlot://sessions/" + session + "/files" + (&url.URL{Path: path.Clean("/" + file)}).EscapedPath()
}

const maxRead = 1 << 20

func readFile() tool.Tool {
	return tool.Tool{
		Name: "sandbox_read_file", Title: "Read a file",
		Description: "Read a file of the sandbox as text; images come back as images, other binary files as base64. Long files are cut: go on with offset.",
		Params: []tool.Param{
			{Name: "path", Type: tool.String, Required: true, Description: "Absolute, or relative to /workspace."},
			sessionParam(),
			{Name: "encoding", Type: tool.String, Enum: []string{"utf-8", "base64"}, Default: "utf-8", Description: "How the bytes are returned."},
			tool.Param{Name: "offset", Type: tool.Integer, Default: 0, Description: "The byte to begin at."}.Range(0, 1<<53),
			tool.Param{Name: "limit", Type: tool.Integer, Default: 50000, Description: "The most bytes to return."}.Range(1, maxRead)},
		Output: outputSchema([]string{"path", "size"}, sessionFields(map[string]any{
			"path":      typed("string", "The file."),
			"size":      typed("integer", "Bytes in the whole file."),
			"offset":    typed("integer", "Where the returned bytes begin."),
			"bytes":     typed("integer", "How many were returned."),
			"encoding":  typed("string", "utf-8 or base64."),
			"truncated": typed("boolean", "Whether there is more after them."),
		})),
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) read(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	l, err := t.open(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	offset, limit := a.Int("offset", 0), a.Int("limit", int64(50000))
	binary := a.Text("encoding") == "base64"
	data, size, err := read(ctx, l, c.Held, part{a.Text("path"), offset, limit})
	if err != nil {
		return nil, err
	}
	picture := http.DetectContentType(data)
	if !binary && offset == 0 && size <= 4<<20 && shown(picture) {
		if int64(len(data)) < size {
			if data, size, err = read(ctx, l, c.Held, part{a.Text("path"), 0, size}); err != nil {
				return nil, err
			}
		}
		r := fileResult(l, a.Text("path"), data, 0, size, "base64")
		r.Content = append(notice(l), tool.Content{Image: &tool.Blob{MIME: picture, Data: data}})
		return r, nil
	}
	if !binary {
		if cut := edge(data); offset+int64(len(data)) < size && len(cut) > 0 && len(cut) < len(data) && utf8.Valid(data[:len(cut)]) {
			data = data[:len(cut)]
		}
		binary = !utf8.Valid(data)
	}
	encoding, text := "utf-8", string(data)
	if binary {
		encoding, text = "base64", base64.StdEncoding.EncodeToString(data)
	}
	r := fileResult(l, a.Text("path"), data, offset, size, encoding)
	r.Content = append(notice(l), tool.Text(text))
	if r.Fields["truncated"] == true {
		r.Content = append(r.Content, tool.Text(fmt.Sprintf("[bytes %d to %d of %d; go on with offset %d]", offset, offset+int64(len(data)), size, offset+int64(len(data)))),
			tool.Content{Link: &tool.Link{URI: FileURI(l.ID(), absolute(a.Text("path"))), Name: path.Base(a.Text("path")), Size: size, MIME: mimeOf(a.Text("path"), data)}})
	}
	return r, nil
}

func shown(mime string) bool {
	switch mime {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return true
	}
	return false
}

func absolute(p string) string {
	if strings.HasPrefix(p, "/") {
		return path.Clean(p)
	}
	return path.Join("/workspace", p)
}

func mimeOf(name string, data []byte) string {
	if m := mime.TypeByExtension(path.Ext(name)); m != "" {
		return m
	}
	return http.DetectContentType(data)
}

func fileResult(l *session.Lease, p string, data []byte, offset, size int64, encoding string) *tool.Result {
	r := &tool.Result{Fields: where(l), Words: words(l, fmt.Sprintf("%s: %d bytes, %s", p, size, encoding))}
	r.Fields["path"], r.Fields["size"], r.Fields["offset"] = p, size, offset
	r.Fields["bytes"], r.Fields["encoding"] = len(data), encoding
	r.Fields["truncated"] = offset+int64(len(data)) < size
	return r
}

// part is what of a file is read.
type part struct {
	path          string
	offset, limit int64
}

// read reads a part of a file, of which large ones count for the principal before
// they come.
func read(ctx context.Context, l *session.Lease, held *limit.Held, p part) ([]byte, int64, error) {
	data, size, err := fetch(ctx, l, p.path, p.offset, min(p.limit, limit.Large))
	want := min(p.limit, size-p.offset)
	if err != nil || int64(len(data)) >= want {
		return data, size, err
	}
	if err := held.Wait(ctx, want); err != nil {
		return nil, 0, err
	}
	return fetch(ctx, l, p.path, p.offset, want)
}

// fetch reads at most limit bytes of a file.
func fetch(ctx context.Context, l *session.Lease, p string, offset, limit int64) ([]byte, int64, error) {
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	data, size, err := l.Agent().ReadFile(short, p, offset, limit)
	if err != nil {
		return nil, 0, l.Fault(ctx, err, fault.FileAccess)
	}
	return data, size, nil
}

func writeFile() tool.Tool {
	return tool.Tool{
		Name: "sandbox_write_file", Title: "Write a file",
		Description: "Write a file in the sandbox; folders on the way are made. It replaces the whole file at once, unless append or offset is given.",
		Params: []tool.Param{
			{Name: "path", Type: tool.String, Required: true, Description: "Absolute, or relative to /workspace."},
			{Name: "content", Type: tool.String, Required: true, Description: "What to write."},
			sessionParam(),
			{Name: "encoding", Type: tool.String, Enum: []string{"utf-8", "base64"}, Default: "utf-8", Description: "What content is in."},
			{Name: "append", Type: tool.Boolean, Default: false, Description: "Write at the end of the file."},
			tool.Param{Name: "offset", Type: tool.Integer, Description: "Write at this byte and keep the rest."}.Range(0, 1<<40),
			{Name: "mode", Type: tool.String, Description: `Permissions in octal, such as "0755".`}},
		Output: outputSchema([]string{"path", "bytes_written"}, sessionFields(map[string]any{
			"path": typed("string", "The file."), "bytes_written": typed("integer", "Bytes of content."), "size": typed("integer", "Bytes in the file now.")})),
		Hints: tool.Hints{Destructive: true, Idempotent: true},
	}
}

var octal = regexp.MustCompile(`^0?[0-7]{3}$`)

func (t *Tools) write(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	q := agent.FileWrite{Path: a.Text("path"), Data: []byte(a.Text("content")), Append: a.Bool("append")}
	if a.Text("encoding") == "base64" {
		data, err := base64.StdEncoding.DecodeString(a.Text("content"))
		if err != nil {
			return nil, fault.New(fault.InvalidParameters, "argument \"content\" is not base64: %v", err).With("argument", "content").With("allowed", "base64 with padding")
		}
		q.Data = data
	}
	if a.Has("offset") {
		if q.Append {
			return nil, fault.New(fault.InvalidParameters, "append and offset do not go together; leave one of them out").With("argument", "offset")
		}
		at := a.Int("offset", 0)
		q.At = &at
	}
	if m := a.Text("mode"); m != "" {
		if !octal.MatchString(m) {
			return nil, fault.New(fault.InvalidParameters, "mode %q must be three octal digits, such as 0644", agent.Printable(m, 20)).With("argument", "mode").With("allowed", "0000 to 0777")
		}
		mode, _ := strconv.ParseUint(m, 8, 32)
		q.Mode = uint32(mode)
	}
	l, err := t.open(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	size, err := l.Agent().WriteFile(short, q)
	if err != nil {
		return nil, l.Fault(ctx, err, fault.FileAccess)
	}
	r := &tool.Result{Fields: where(l), Words: words(l)}
	r.Fields["path"], r.Fields["bytes_written"], r.Fields["size"] = a.Text("path"), len(q.Data), size
	r.Content = append(notice(l), tool.Text(fmt.Sprintf("Wrote %d bytes to %s", len(q.Data), a.Text("path"))))
	return r, nil
}

func listFiles() tool.Tool {
	return tool.Tool{
		Name: "sandbox_list_files", Title: "List files",
		Description: "List a directory of the sandbox: name, type, size, mode and time of each entry.",
		Params: []tool.Param{
			{Name: "path", Type: tool.String, Default: "/workspace", Description: "Absolute, or relative to /workspace."},
			sessionParam(),
			tool.Param{Name: "depth", Type: tool.Integer, Default: 1, Description: "How many levels down."}.Range(1, 10),
			tool.Param{Name: "limit", Type: tool.Integer, Default: 500, Description: "The most entries to return."}.Range(1, 10000)},
		Output: outputSchema([]string{"path", "files"}, sessionFields(map[string]any{
			"path": typed("string", "The directory."), "files": map[string]any{"type": "array", "items": map[string]any{"type": "object"}},
			"truncated": typed("boolean", "Whether there are more entries.")})),
		Hints: tool.Hints{ReadOnly: true, Idempotent: true},
	}
}

func (t *Tools) files(ctx context.Context, c tool.Call, a tool.Args) (*tool.Result, error) {
	dir := a.Text("path")
	if dir == "" {
		dir = "/workspace"
	}
	l, err := t.open(ctx, c, a)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	files, cut, err := l.Agent().ListFiles(short, dir, int(a.Int("depth", 1)), int(a.Int("limit", 500)))
	if err != nil {
		return nil, l.Fault(ctx, err, fault.FileAccess)
	}
	rows := []map[string]any{}
	lines := []string{}
	for _, f := range files {
		row := map[string]any{"name": strings.ToValidUTF8(f.Path, "\uFFFD"), "type": f.Type, "size": f.Size,
			"mode": fmt.Sprintf("%04o", f.Mode), "modified": when(f.Modified)}
		name := agent.Printable(f.Path, 4096)
		if f.Type == "directory" {
			name += "/"
		}
		if f.Target != "" {
			row["target"] = strings.ToValidUTF8(f.Target, "\uFFFD")
			name += " -> " + agent.Printable(f.Target, 4096)
		}
		rows = append(rows, row)
		lines = append(lines, fmt.Sprintf("%s %9d %s %s", row["mode"], f.Size, row["modified"], name))
	}
	text := strings.Join(lines, "\n")
	switch {
	case len(lines) == 0:
		text = "(empty directory)"
	case cut:
		text += fmt.Sprintf("\n[only the first %d entries; list a subdirectory, or raise limit]", len(lines))
	}
	r := &tool.Result{Fields: where(l), Words: words(l), Content: append(notice(l), tool.Text(text))}
	r.Fields["path"], r.Fields["files"], r.Fields["truncated"] = dir, rows, cut
	return r, nil
}

// ResourceTemplates implements tool.Reader.
func (t *Tools) ResourceTemplates() []tool.Link {
	return []tool.Link{{URI: "sandlot://sessions/{session_id}/files/{+path}", Name: "session file",
		Description: "A file of one of your sessions, by its absolute path. Larger files: GET /v1/sessions/{session_id}/files/{path}."}}
}

var fileURI = regexp.MustCompile(`^sandlot://sessions/([a-z0-9-]{1,64})/files(/.*)$`)

// Read implements tool.Reader.
func (t *Tools) Read(ctx context.Context, p auth.Principal, uri string, most int) (tool.Blob, int64, error) {
	m := fileURI.FindStringSubmatch(uri)
	name, err := "", error(nil)
	if m != nil {
		name, err = url.PathUnescape(m[2])
	}
	if m == nil || err != nil || m[1] == "new" {
		return tool.Blob{}, 0, fault.New(fault.NotFound, "resource not found: %s", agent.Printable(uri, 200)).With("uri", agent.Printable(uri, 200))
	}
	l, err := t.Sessions.Open(ctx, p, session.Ask{ID: m[1]})
	if err != nil {
		return tool.Blob{}, 0, err
	}
	defer l.Release()
	data, size, err := fetch(ctx, l, name, 0, int64(most))
	if err != nil {
		return tool.Blob{}, 0, err
	}
	return tool.Blob{MIME: mimeOf(name, data), Data: data}, size, nil
}

func when(t time.Time) string { return t.UTC().Format(time.RFC3339) }
