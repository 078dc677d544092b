package mcpcommand

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/agent/wire"
)

// request is a request to the host.
type request struct {
	Call   *callRequest   `json:"call,omitempty"`
	Search *searchRequest `json:"search,omitempty"`
}

type callRequest struct {
	Server    string                     `json:"server"`
	Tool      string                     `json:"tool"`
	Arguments map[string]json.RawMessage `json:"arguments"`
	Timeout   float64                    `json:"timeout,omitempty"`
}

type searchRequest struct {
	Query string `json:"query"`
}

// unreachable says that nothing was asked.
type unreachable struct{ error }

// refusal is an error that the host answers with.
type refusal struct {
	Code, Message string
	Retry         bool // nothing was done, and the next server may do it
}

func (r refusal) Error() string { return r.Message }

var errBroken = errors.New("the connection to Sandlot broke: the tool may have run. Check what it did before you " +
	"call it again")

// Sandlot may say that it is being stopped, and has not made a call. The next server makes it, if that comes while the
// pauses between the tries are shorter than againFor together. The user is told after noteAfter.
const (
	againFor  = time.Minute
	noteAfter = 2 * time.Second
)

// request sends a request and returns the answer, which is the value of one member.
func (c *command) request(r request, member string) (json.RawMessage, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var end time.Time                        // zero: none
	if r.Call != nil && r.Call.Timeout > 0 { // the host's own limit comes first
		end = time.Now().Add(time.Duration((r.Call.Timeout + 1) * float64(time.Second)))
	}
	pause, paused, noted := 100*time.Millisecond, time.Duration(0), false
	for {
		answer, err := c.exchange(append(line, '\n'), member, end)
		said, ok := errors.AsType[refusal](err)
		if !ok || said.Code != "unavailable" || !said.Retry || paused >= againFor ||
			!end.IsZero() && time.Until(end) <= pause {
			return answer, err
		}
		if paused >= noteAfter && !noted {
			noted = true
			fmt.Fprintln(c.errOut, "mcp: Sandlot is being restarted; waiting for it, for a minute at most")
		}
		time.Sleep(pause)
		paused, pause = paused+pause, min(2*pause, time.Second)
	}
}

// exchange sends the line of a request over a connection of its own.
func (c *command) exchange(request []byte, member string, end time.Time) (json.RawMessage, error) {
	conn, err := net.Dial("unix", filepath.Join(c.dir, wire.ToolSocket))
	if err != nil {
		return nil, unreachable{fmt.Errorf("Sandlot does not answer (%w): nothing was called", err)}
	}
	defer conn.Close()
	_ = conn.SetDeadline(end)
	_, err = conn.Write(request) // if it fails, there may be an answer that says why
	in := bufio.NewReaderSize(conn, 256<<10)
	for {
		line, readErr := in.ReadBytes('\n')
		if errors.Is(readErr, os.ErrDeadlineExceeded) {
			return nil, errors.New("there was no answer in time, and the call was cancelled")
		}
		if readErr != nil {
			return nil, errors.Join(errBroken, err)
		}
		var answer map[string]json.RawMessage
		if err := json.Unmarshal(line, &answer); err != nil {
			return nil, errors.New("Sandlot sent something that is not an answer")
		}
		if e := answer["error"]; e != nil {
			var said refusal
			_ = json.Unmarshal(e, &said)
			return nil, said
		}
		if found := answer[member]; found != nil {
			return found, nil
		}
	}
}

// result is MCP's result of a call.
type result struct {
	Content    []block         `json:"content"`
	Structured json.RawMessage `json:"structuredContent"`
	IsError    bool            `json:"isError"`
}

type block struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Data     []byte `json:"data"`
	MimeType string `json:"mimeType"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Resource *struct {
		URI      string  `json:"uri"`
		MimeType string  `json:"mimeType"`
		Text     string  `json:"text"`
		Blob     *string `json:"blob"`
	} `json:"resource"`
}

// printResult prints the structured content, or else each part of the result.
func (c *command) printResult(raw json.RawMessage, o options) error {
	var r result
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the result cannot be read: %w", err)
	}
	if o.raw {
		_, err := fmt.Fprintf(c.out, "%s\n", raw)
		if err == nil && r.IsError {
			err = errors.New("the tool failed")
		}
		return err
	}
	if r.IsError {
		var words []string
		for _, b := range r.Content {
			words = append(words, b.Text)
		}
		text := strings.TrimSpace(strings.Join(words, "\n"))
		if text == "" {
			text = "the tool failed, and says nothing"
		}
		return errors.New(text)
	}
	if len(r.Structured) > 0 && string(r.Structured) != "null" {
		_, err := fmt.Fprintf(c.out, "%s\n", r.Structured)
		return err
	}
	files := &folder{path: o.folder}
	for _, b := range r.Content {
		if err := c.printBlock(b, files); err != nil {
			return err
		}
	}
	return nil
}

func (c *command) printBlock(b block, files *folder) error {
	switch {
	case b.Type == "image" || b.Type == "audio":
		return c.printFile(b.Data, b.MimeType, b.Type, files)
	case b.Type == "resource_link":
		_, err := fmt.Fprintf(c.out, "%s %s\n", b.URI, b.Name)
		return err
	case b.Type == "resource" && b.Resource != nil:
		if b.Resource.Blob == nil {
			return c.printText(b.Resource.Text)
		}
		data, err := base64.StdEncoding.DecodeString(*b.Resource.Blob)
		if err != nil {
			return err
		}
		return c.printFile(data, b.Resource.MimeType, "file", files)
	}
	return c.printText(b.Text)
}

func (c *command) printText(text string) error {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err := io.WriteString(c.out, text)
	return err
}

// printFile writes data to a file, and prints its path.
func (c *command) printFile(data []byte, mimeType, kind string, files *folder) error {
	path, err := files.write(data, kind, extension(mimeType))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, path)
	return err
}

// folder is where files of a result go. It is made for the first one.
type folder struct {
	path  string
	count int
}

func (f *folder) write(data []byte, kind, extension string) (path string, err error) {
	if f.path == "" {
		f.path, err = os.MkdirTemp("", "mcp-")
	} else if f.count == 0 {
		err = os.MkdirAll(f.path, 0o755)
	}
	for err == nil {
		f.count++
		path = filepath.Join(f.path, kind+"-"+strconv.Itoa(f.count)+extension)
		var file *os.File
		if file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); errors.Is(err, os.ErrExist) {
			err = nil // it is of an earlier call
			continue
		}
		if err == nil {
			_, err = file.Write(data)
			err = errors.Join(err, file.Close())
			break
		}
	}
	return path, err
}

// extensions has those that mime does not know where the system has no table.
var extensions = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif",
	"image/webp": ".webp", "image/svg+xml": ".svg", "audio/wav": ".wav", "audio/mpeg": ".mp3",
	"application/pdf": ".pdf", "text/plain": ".txt", "text/html": ".html", "text/csv": ".csv",
	"application/json": ".json", "application/zip": ".zip"}

func extension(mimeType string) string {
	kind, _, _ := mime.ParseMediaType(mimeType)
	return extensions[kind] // of other types the name says nothing
}
