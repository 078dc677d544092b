package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// eachEra runs a test with a client of each protocol era, and over stdio.
func eachEra(t *testing.T, s *server, test func(*testing.T, *client)) {
	for _, v := range []string{older, newer} {
		t.Run(v, func(t *testing.T) {
			s := *s
			s.t = t
			test(t, s.connect(v, "", nil))
		})
	}
	t.Run("stdio", func(t *testing.T) {
		cmd := exec.Command(binary(t), "--state-dir", s.State, "stdio")
		cmd.Env = s.env
		session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
			Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close()
		test(t, &client{t, session})
	})
}

func TestTools(t *testing.T) {
	t.Parallel()
	s := start(t)
	var first []string
	eachEra(t, s, func(t *testing.T, c *client) {
		var names []string
		for tool, err := range c.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, tool.Name)
			if strings.Contains(tool.Description, "/run/mcp") {
				t.Errorf("%s tells of servers that are not there", tool.Name)
			}
			if len(tool.Description) < 30 || tool.InputSchema == nil {
				t.Errorf("%s lacks a description or a schema", tool.Name)
			}
			if len(tool.Name) > 44 {
				t.Errorf("%s is too long a name", tool.Name)
			}
		}
		want := []string{"execute_code", "execute_command", "get_sessions", "stop_session", "get_volume_path",
			"sandbox_read_file", "sandbox_write_file",
			"sandbox_list_files", "list_processes", "read_process", "write_process", "stop_process", "expose_port",
			"close_port"}
		for _, w := range want {
			if !slices.Contains(names, w) {
				t.Errorf("no tool %s in %v", w, names)
			}
		}
		if first == nil {
			first = names
		} else if !slices.Equal(first, names) {
			t.Errorf("the order of the tools is another: %v", names)
		}
	})
}

func TestCode(t *testing.T) {
	t.Parallel()
	s := start(t)
	eachEra(t, s, func(t *testing.T, c *client) {
		r := c.code("new", "x = 41\nprint('hi')\nx + 1")
		id := r.session()
		if r.Text != "hi" || r.Fields["result"] != "42" || r.Fields["session_created"] != true ||
			r.Fields["code_success"] != true || r.IsError ||
			!strings.Contains(r.All, id) || r.Fields["language"] != "python" || r.Fields["exit_code"] != 0.0 {
			t.Errorf("%q %v", r.All, r.Fields)
		}
		r = c.want(id, "x", "41")
		if r.Fields["session_created"] != false || r.session() != id {
			t.Errorf("%v", r.Fields)
		}
		r = c.code(id, "def f():\n    return 1/0\n\nf()")
		if !r.IsError || r.Fields["code_success"] != false || !strings.Contains(r.Text, "line 4") ||
			!strings.Contains(r.Text, "line 2, in f") || !strings.Contains(r.Text, "ZeroDivisionError") {
			t.Errorf("a traceback: %q %v", r.All, r.Fields)
		}
		r = c.code(id, "import sys; print('w', file=sys.stderr); print('o')")
		if r.IsError || r.Text != "w\no" { // in the order of time
			t.Errorf("a warning on stderr: %q", r.All)
		}
		r = c.code(id, "1 +")
		if !r.IsError || !strings.Contains(r.Text, "SyntaxError") || !strings.Contains(r.Text, "line 1") {
			t.Errorf("what the compiler rejects: %q", r.All)
		}
		for _, n := range []string{"node", "javascript", "JavaScript"} {
			if r := c.call("execute_code", args{"code": "const a = await Promise.resolve(6); a * 7", "language": n,
				"session_id": id}); r.Fields["result"] != "42" {
				t.Errorf("%s: %q %v", n, r.All, r.Fields)
			}
		}
		if r := c.call("execute_code", args{"code": "cd /tmp; v=3; echo $((v * 4))", "language": "bash",
			"session_id": id}); r.Text != "12" {
			t.Errorf("bash: %q", r.All)
		}
		if r := c.call("execute_code", args{"code": "echo $v; pwd", "language": "bash",
			"session_id": id}); r.Text != "3\n/tmp" {
			t.Errorf("bash forgot: %q", r.All)
		}
		// Some clients nest all arguments.
		if r := c.call("execute_code", args{"params": args{"code": "x", "session_id": id}}); r.Text != "41" {
			t.Errorf("nested: %q", r.All)
		}
		picture := smallPNG()
		r = c.code(id, fmt.Sprintf("class P:\n  def _repr_png_(self): return bytes.fromhex('%x')\nP()", picture))
		if len(r.Content) < 2 {
			t.Fatalf("a picture: %q", r.All)
		}
		found := false
		for _, b := range r.Content {
			if i, ok := b.(*mcp.ImageContent); ok && i.MIMEType == "image/png" && bytes.Equal(i.Data, picture) {
				found = true
			}
		}
		if !found {
			t.Errorf("no image in %v", r.Content)
		}
		notebook(t, c, id)
		if r := c.call("stop_session", args{"session_id": id}); r.Text != "Session "+id+" stopped successfully" {
			t.Errorf("%q", r.All)
		}
		if r := c.call("stop_session", args{"session_id": id}); r.Text != "Session "+id+" not found" || r.IsError {
			t.Errorf("%q", r.All)
		}
	})
}

func TestTimeLimit(t *testing.T) {
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "kept = 1").session()
	r := c.call("execute_code", args{"code": "print('before', flush=True)\nimport time\ntime.sleep(100)",
		"session_id": id, "timeout": 1})
	if !r.IsError || r.Fields["exit_code"] != 124.0 || !strings.Contains(r.Text, "before") ||
		!strings.Contains(r.Text, "Execution timed out after 1 seconds") ||
		!strings.Contains(r.Text, "Variables were kept") {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	c.want(id, "kept", "1")
	r = c.call("execute_command", args{"command": "echo before; sleep 100", "session_id": id, "timeout": 1})
	if !r.IsError || r.Fields["exit_code"] != 124.0 || !strings.Contains(r.Text, "before\n") ||
		!strings.Contains(r.Text, "Execution timed out after 1 seconds") {
		t.Errorf("%q %v", r.All, r.Fields)
	}
}

func TestCancellation(t *testing.T) {
	t.Parallel()
	s := start(t)
	eachEra(t, s, func(t *testing.T, c *client) {
		id := c.code("new", "n = 0").session()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.try(ctx, "execute_code",
			args{"code": "import time\nwhile True:\n    n += 1\n    time.sleep(0.01)", "session_id": id}); err == nil {
			t.Fatal("it ended")
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.try(ctx, "execute_command", args{"command": "sleep 7654", "session_id": id}); err == nil {
			t.Fatal("it ended")
		}
		// Both were stopped, and the variables are there.
		r := c.code(id, "import time\na = n\ntime.sleep(0.3)\nn == a and n > 0")
		if r.Text != "True" {
			t.Errorf("%q", r.All)
		}
		for range 50 {
			if r = c.shell(id, "pgrep -f 'sleep 765[4]' || echo none"); r.Text == "none" {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if r.Text != "none" {
			t.Errorf("the command goes on: %q", r.All)
		}
		c.call("stop_session", args{"session_id": id})
	})
}

func TestProgress(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, v := range []string{older, newer} {
		var mu sync.Mutex
		var said []string
		last := 0.0
		c := s.connect(v, "", &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
			r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, r.Params.Message)
			if r.Params.Progress <= last {
				t.Errorf("%s: progress went from %v to %v", v, last, r.Params.Progress)
			}
			last = r.Params.Progress
		}})
		p := &mcp.CallToolParams{Name: "execute_command",
			Arguments: args{"command": "for i in 1 2 3; do echo line $i; sleep 0.5; done", "session_id": "home"}}
		p.SetProgressToken("t1")
		if _, err := c.CallTool(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if all := strings.Join(said, ""); !strings.Contains(all, "line 1") || !strings.Contains(all, "line 3") ||
			len(said) < 2 {
			t.Errorf("%s: progress: %q", v, said)
		}
		mu.Unlock()
	}
}

// smallPNG returns an image of one pixel.
func smallPNG() []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// testLongTexts: errors and rich values are bounded as output is, and the whole is in a file.
func testLongTexts(t *testing.T, c *client, id string) {
	t.Helper()
	for _, code := range []string{"raise ValueError('m' * 100_000)", "class W:\n    def _repr_html_(self): return 'm' * 5_000_000\nW()",
		"from IPython.display import Markdown, display\nfor i in range(15): display(Markdown('m' * 15_000))"} {
		r := c.code(id, code)
		if n := len(r.All); n > 24_000 || r.Fields["truncated"] == false || !strings.Contains(r.All, "whole text, ") {
			t.Errorf("%.60q: %d bytes, truncated %v: %.200q", code, n, r.Fields["truncated"], r.All)
		}
	}
	if r := c.code(id, "class N:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n'\nN()"); r.Fields["images"] != nil && r.Fields["images"] != 0.0 ||
		!strings.Contains(r.All, "not a whole PNG") {
		t.Errorf("a part of an image: %q %v", r.All, r.Fields)
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "1").session()
	r := c.call("execute_command", args{"command": "echo $WHO in $(pwd); cat", "session_id": id, "cwd": "/tmp",
		"env": args{"WHO": "me"}, "stdin": "input"})
	if r.Text != "me in /tmp\ninput" || r.Fields["success"] != true || r.Fields["exit_code"] != 0.0 {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	if r := c.call("execute_command", args{"command": "printf", "args": []string{"%s|", "a b", "$HOME"},
		"session_id": id}); r.Text != "a b|$HOME|" {
		t.Errorf("program and arguments: %q", r.All)
	}
	if r := c.shell(id, "false"); !r.IsError || r.Fields["exit_code"] != 1.0 || r.Fields["success"] != false {
		t.Errorf("%q %v", r.All, r.Fields)
	}
	r = c.shell(id, "head -c 3000000 /dev/zero | tr '\\0' x; echo END")
	if r.Fields["truncated"] != true || !strings.HasSuffix(r.Text, "xEND") || len(r.Text) > 60_000 {
		t.Errorf("truncated %v, %d bytes", r.Fields["truncated"], len(r.Text))
	}
	link, _ := r.Fields["stdout_uri"].(string)
	// One argument of a program may have 128 KiB, a command line more.
	if r := c.shell(id, "cat > big.txt <<'EOF'\n"+strings.Repeat("line of text\n", 12_000)+"EOF\nwc -c < big.txt; "+
		"readlink /proc/self/fd/3 || echo none"); r.Text != "156000\nnone" {
		t.Errorf("a long line: %.300q", r.All)
	}
	for program, says := range map[string]string{"python3": "the arguments or variables are too long", "echo": "too long"} {
		if r, err := c.try(t.Context(), "execute_command", args{"command": program, "args": []string{"-c", strings.Repeat("#", 200_000)},
			"session_id": id}); err == nil && !strings.Contains(r.All, says) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("a long argument of %s: %v %v", program, r, err)
		}
	}
	testLongTexts(t, c, id)
	testCharacters(t, c, id)
	if r := c.code(id, "'x' * 300_000"); r.Fields["truncated"] != true || !strings.Contains(r.All, "left out here") ||
		len(r.All) > 60_000 {
		t.Errorf("a long value: truncated %v, %d bytes", r.Fields["truncated"], len(r.All))
	}
	if link == "" || !strings.Contains(r.Text, link) {
		t.Fatalf("the whole output is in %q: %q", link, r.All[len(r.All)-300:])
	}
	got, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: link})
	if err != nil || len(got.Contents) != 1 || len(got.Contents[0].Text) != 3_000_004 {
		t.Errorf("the whole output: %v", err)
	}
}

// The bound of an output is one of characters: text of several bytes a character
// keeps as many as plain text, in commands, in cells that answer at once, in those
// that last, and in values.
func testCharacters(t *testing.T, c *client, id string) {
	t.Helper()
	const most = 16_000
	write := func(stream, char string, n int) string {
		return fmt.Sprintf("import sys; sys.%s.buffer.write(b'%s' * %d); sys.%[1]s.buffer.flush()", stream, char, n)
	}
	runs := map[string]func(char string, n int) *result{
		"a command": func(char string, n int) *result {
			return c.shell(id, `python3 -c "`+write("stdout", char, n)+`"`)
		},
		"a cell": func(char string, n int) *result { return c.code(id, write("stdout", char, n)) },
		"a long cell": func(char string, n int) *result {
			return c.code(id, "import time; time.sleep(0.3); "+write("stderr", char, n))
		},
	}
	for char, bytes := range map[string]string{"x": "x", "é": `\xc3\xa9`, "語": `\xe8\xaa\x9e`, "😀": `\xf0\x9f\x98\x80`,
		"\uFFFD": `\xff`} {
		head, tail := strings.Repeat(char, most*2/5)+"\n… [", "] …\n"+strings.Repeat(char, most*3/5)
		for name, run := range runs {
			if r := run(bytes, most); r.Fields["truncated"] != false || r.Text != head[:len(char)*most*2/5]+
				tail[len("] …\n"):] {
				t.Errorf("%s, %d of %q: truncated %v, %.300q", name, most, char, r.Fields["truncated"], r.All)
			}
			r := run(bytes, most+1)
			if r.Fields["truncated"] != true || !strings.HasPrefix(r.Text, head) || !strings.HasSuffix(r.Text, tail) {
				t.Errorf("%s, %d of %q: truncated %v, %d characters", name, most+1, char, r.Fields["truncated"],
					utf8.RuneCountInString(r.Text))
			}
		}
	}
	if r := c.code(id, "'語' * 15_998"); r.Fields["truncated"] != false || r.Fields["result"] != "'"+
		strings.Repeat("語", 15_998)+"'" {
		t.Errorf("a value of 16000 characters: truncated %v, %d bytes", r.Fields["truncated"], len(r.All))
	}
}

func TestBackground(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(newer, "", nil)
	r := c.call("execute_command", args{"command": "while read l; do echo \"got $l\"; done; exit 4", "background": true,
		"session_id": "new"})
	id, process := r.session(), r.Fields["process_id"]
	if process == nil {
		t.Fatalf("%q", r.All)
	}
	c.call("write_process", args{"process_id": process, "data": "one\n"})
	r = c.call("read_process", args{"process_id": process, "wait": 10})
	if r.Fields["output"] != "got one\n" || r.Fields["running"] != true {
		t.Errorf("%v", r.Fields)
	}
	cursor := r.Fields["cursor"]
	c.call("write_process", args{"process_id": process, "data": "two\n", "eof": true})
	// It does not wait for the end: there is output.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		r = c.call("read_process", args{"process_id": process, "wait": 10, "cursor": cursor})
		if r.Fields["running"] == false || time.Now().After(deadline) {
			break
		}
	}
	if r.Fields["output"] != "got two\n" || r.Fields["exit_code"] != 4.0 {
		t.Errorf("%v", r.Fields)
	}
	// the first sleep ignores TERM
	r = c.call("execute_command", args{"command": "(trap '' TERM; exec sleep 1000) & sleep 1000", "background": true,
		"session_id": id})
	// one is the interpreter
	if l := c.call("list_processes", args{"session_id": id}); len(l.Fields["processes"].([]any)) != 3 {
		t.Errorf("%v", l.Fields)
	}
	if r := c.call("stop_process", args{"process_id": r.Fields["process_id"]}); r.Fields["running"] != false {
		t.Errorf("%v", r.Fields)
	}
	// What was killed is counted until it is reaped.
	left := "for i in $(seq 50); do n=$(pgrep -c sleep); [ $n = 0 ] && break; " +
		"python3 -c 'import time; time.sleep(.1)'; done; echo $n"
	if r := c.shell(id, left); r.Text != "0" {
		t.Errorf("left: %q", r.All)
	}
}

// TestStopCode stops running code by its interpreter's process.
func TestStopCode(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "x = 1").session()
	ended := make(chan *result, 1)
	go func() {
		r, err := c.try(context.Background(), "execute_code",
			args{"code": "print('began', flush=True)\nimport time\ntime.sleep(100)", "session_id": id})
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	time.Sleep(500 * time.Millisecond)
	process := ""
	for _, p := range c.call("list_processes", args{"session_id": id}).Fields["processes"].([]any) {
		if p := p.(map[string]any); p["kind"] == "interpreter" && p["status"] == "running" {
			process, _ = p["process_id"].(string)
		}
	}
	c.call("stop_process", args{"process_id": process})
	if r := <-ended; r != nil && (!r.IsError || !strings.Contains(r.Text, "began") ||
		!strings.Contains(r.Text, "interrupted")) {
		t.Errorf("%q", r.All)
	}
	c.want(id, "x", "1")
}

func TestFiles(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "1").session()
	r := c.call("sandbox_write_file", args{"path": "/workspace/d/a.txt", "content": "héllo\n", "session_id": id})
	if r.Text != "Wrote 7 bytes to /workspace/d/a.txt" {
		t.Errorf("%q", r.All)
	}
	if r := c.call("sandbox_read_file", args{"path": "d/a.txt", "session_id": id}); r.Text != "héllo\n" {
		t.Errorf("%q", r.All)
	}
	c.call("sandbox_write_file", args{"path": "d/a.txt", "content": "more", "append": true, "session_id": id})
	if r := c.call("sandbox_read_file", args{"path": "d/a.txt", "offset": 7, "session_id": id}); r.Text != "more" {
		t.Errorf("%q", r.All)
	}
	c.call("sandbox_write_file", args{"path": "bin", "content": "AP8BgA==", "encoding": "base64", "session_id": id})
	if r := c.call("sandbox_read_file", args{"path": "bin", "encoding": "base64",
		"session_id": id}); r.Text != "AP8BgA==" {
		t.Errorf("binary: %q", r.All)
	}
	if r := c.call("sandbox_read_file", args{"path": "bin", "session_id": id}); !strings.Contains(r.Text,
		"[bin is not text: application/octet-stream, 4 bytes.") || r.Fields["text"] != nil || r.Fields["uri"] == nil {
		t.Errorf("binary, unasked: %q", r.All)
	}
	c.call("sandbox_write_file", args{"path": "old.txt", "content": "Y2Fm6Q==", "encoding": "base64", "session_id": id})
	if r := c.call("sandbox_read_file", args{"path": "old.txt", "session_id": id}); r.Fields["text"] != "café" ||
		!strings.Contains(r.All, "Windows-1252") {
		t.Errorf("an old encoding: %q", r.All)
	}
	c.call("sandbox_write_file", args{"path": "u.txt", "content": "aéb", "session_id": id})
	if r := c.call("sandbox_read_file", args{"path": "u.txt", "offset": 2, "session_id": id}); r.Fields["text"] != "b" ||
		r.Fields["offset"] != 3.0 {
		t.Errorf("from within a character: %q", r.All)
	}
	if r := c.call("sandbox_list_files", args{"depth": 2, "session_id": id}); !strings.Contains(r.Text, "a.txt") ||
		!strings.Contains(r.Text, "bin") {
		t.Errorf("%q", r.All)
	}
	c.shell(id, "ln -s /etc/passwd l; ln -s /workspace/d/a.txt ok")
	for path, want := range map[string]string{
		"missing": "File not found in sandbox: ", "d": "Path is a directory: ",
		"/etc/passwd": "resolves outside the sandbox workspace", "../etc/passwd": "resolves outside",
		"l": "resolves outside", "/workspace-other": "resolves outside",
	} {
		_, err := c.try(t.Context(), "sandbox_read_file", args{"path": path, "session_id": id})
		r, _ := c.try(t.Context(), "sandbox_read_file", args{"path": path, "session_id": id})
		text := fmt.Sprint(err)
		if r != nil {
			text = r.All
		}
		if !strings.Contains(text, want) {
			t.Errorf("%s: %s", path, text)
		}
	}
}

// A file is edited by its texts: all of them, or none; calls at the same time lose nothing, and who may not read a file
// may not edit it.
func TestEditFile(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "1").session()
	edit := func(edits ...args) *result {
		t.Helper()
		return c.call("sandbox_edit_file", args{"path": "d/a.txt", "session_id": id, "edits": edits})
	}
	c.call("sandbox_write_file", args{"path": "d/a.txt", "content": "one\ntwo\nthree\n", "mode": "0750", "session_id": id})
	r := edit(args{"old_text": "two", "new_text": "2"}, args{"old_text": "2\nthree", "new_text": "2\n3"})
	if want := "--- d/a.txt\n+++ d/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+3\n"; r.Text != want ||
		r.Fields["diff"] != want || r.Fields["replacements"] != 2.0 || r.Fields["size"] != 8.0 {
		t.Errorf("%q", r.All)
	}
	if _, err := c.try(t.Context(), "sandbox_edit_file", args{"path": "d/a.txt", "session_id": id, "edits": []args{
		{"old_text": "one", "new_text": "1"}, {"old_text": "two", "new_text": "2"}}}); err == nil ||
		!strings.Contains(err.Error(), "edits[1].old_text is not in the file") {
		t.Errorf("%v", err)
	}
	if r := c.call("execute_command", args{"command": "stat -c %a d/a.txt; cat d/a.txt; ls -A d", "session_id": id}); r.Text !=
		"750\none\n2\n3\na.txt" {
		t.Errorf("%q", r.Text)
	}
	for path, want := range map[string]string{"/etc/passwd": "outside", "none": "none", "d": "director"} {
		_, err := c.try(t.Context(), "sandbox_edit_file", args{"path": path, "session_id": id,
			"edits": []args{{"old_text": "a", "new_text": "b"}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// Many at once.
	var lines strings.Builder
	for i := range 30 {
		fmt.Fprintf(&lines, "line %02d\n", i)
	}
	c.call("sandbox_write_file", args{"path": "d/a.txt", "content": lines.String(), "session_id": id})
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			_, err := c.try(t.Context(), "sandbox_edit_file", args{"path": "/workspace/d/a.txt", "session_id": id, "edits": []args{
				{"old_text": fmt.Sprintf("line %02d", i), "new_text": fmt.Sprintf("done %02d", i)}}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if r := c.call("sandbox_read_file", args{"path": "d/a.txt", "session_id": id}); r.Text !=
		strings.ReplaceAll(lines.String(), "line", "done") {
		t.Errorf("%q", r.Text)
	}
}

// Who waits for a process is told when what they wait for has come, and not at the first byte.
func TestReadUntil(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "1").session()
	begin := func(command string) (process any) {
		return c.call("execute_command", args{"command": command, "background": true, "session_id": id}).Fields["process_id"]
	}
	read := func(a args) *result { return c.call("read_process", a) }
	lines := `for i in 1 2 3; do echo "line $i"; sleep 0.02; done; `
	r := read(args{"process_id": begin(lines + "sleep 100"), "wait": 60})
	if r.Fields["output"] != "line 1\nline 2\nline 3\n" || r.Fields["running"] != true || r.Fields["until_met"] != nil {
		t.Errorf("at rest: %v", r.Fields)
	}
	r = read(args{"process_id": begin(lines + "sleep 1; echo end; exit 3"), "until": "exit"})
	if r.Fields["output"] != "line 1\nline 2\nline 3\nend\n" || r.Fields["exit_code"] != 3.0 || r.Fields["until_met"] != true {
		t.Errorf("at the exit: %v", r.Fields)
	}
	r = read(args{"process_id": begin("echo one; sleep 1; echo two; sleep 100"), "until": "/^tw/"})
	if r.Fields["output"] != "one\ntwo\n" || r.Fields["running"] != true || r.Fields["until_met"] != true {
		t.Errorf("at a match: %v", r.Fields)
	}
	r = read(args{"process_id": begin("sleep 1; exec python3 -m http.server 8123"), "until": "8123"})
	if r.Fields["until_met"] != true || r.Fields["running"] != true {
		t.Errorf("at a port: %v", r.Fields)
	}
	r = read(args{"process_id": begin("sleep 100"), "until": "never", "wait": 0.5})
	if r.Fields["until_met"] != false || !strings.Contains(r.All, "until: not yet") {
		t.Errorf("never: %v", r.All)
	}
	r = read(args{"process_id": begin("echo a"), "until": "never"})
	if r.Fields["until_met"] != false || r.Fields["exit_code"] != 0.0 {
		t.Errorf("the process ends before: %v", r.All)
	}
	process := begin("seq 1 50000; sleep 100") // 288,894 bytes
	r = read(args{"process_id": process, "until": "\n50000\n", "max_bytes": 100})
	if out, _ := r.Fields["output"].(string); r.Fields["until_met"] != true || len(out) != 100 ||
		!strings.HasSuffix(out, "\n50000\n") || r.Fields["cursor"] != 288894.0 ||
		!strings.Contains(r.All, "[288794 bytes before this are left out: read them without until, with cursor 0]") {
		t.Errorf("much output: %v", r.All)
	}
	r = read(args{"process_id": begin("yes"), "until": "never", "wait": 2})
	if r.Fields["until_met"] != false || r.Fields["running"] != true {
		t.Errorf("a flood: %.500q", r.All)
	}
	if _, err := c.try(t.Context(), "read_process", args{"process_id": process, "until": "/(/"}); err == nil ||
		!strings.Contains(err.Error(), "regular expression") {
		t.Errorf("%v", err)
	}
	// A link that waits.
	c.call("execute_command", args{"command": "sleep 2; exec python3 -m http.server 8124", "background": true,
		"session_id": id})
	if r := c.call("expose_port", args{"port": 8124, "session_id": id}); r.Fields["listening"] != true {
		t.Errorf("%v", r.All)
	}
}

// wantFault checks that a call failed with a fault, and returns its data.
func wantFault(t *testing.T, err error, code int64, name string, words ...string) map[string]any {
	t.Helper()
	var e *jsonrpc.Error
	if !errors.As(err, &e) {
		t.Errorf("no JSON-RPC error: %v", err)
		return nil
	}
	var data map[string]any
	json.Unmarshal(e.Data, &data)
	if e.Code != code || data["error_code"] != name || data["category"] == nil || data["severity"] == nil ||
		data["recovery_suggestions"] == nil || data["context"] == nil {
		t.Errorf("got %d %s %v, want %d %s", e.Code, e.Message, data, code, name)
	}
	for _, w := range words {
		if !strings.Contains(e.Message, w) {
			t.Errorf("%q does not say %q", e.Message, w)
		}
	}
	return data
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	s := start(t)
	eachEra(t, s, func(t *testing.T, c *client) {
		for _, bad := range []struct {
			tool  string
			a     args
			code  int64
			name  string
			words []string
		}{
			{"execute_code", args{}, -32602, "INVALID_PARAMETERS", []string{"code"}},
			{"execute_code", args{"code": 5}, -32602, "INVALID_PARAMETERS", []string{"code"}},
			{"execute_code", args{"code": "1", "templte": "python"}, -32602, "INVALID_PARAMETERS",
				[]string{"templte", "template"}},
			{"execute_code", args{"code": "1", "template": "pyhton"}, -32602, "INVALID_PARAMETERS",
				[]string{"pyhton", "python"}},
			{"execute_code", args{"code": "1", "language": "cobol"}, -32602, "INVALID_PARAMETERS",
				[]string{"cobol", "python", "bash"}},
			{"execute_code", args{"code": "1", "flavor": "huge"}, -32602, "INVALID_PARAMETERS",
				[]string{"huge", "small"}},
			{"execute_code", args{"code": "1", "timeout": 0}, -32602, "INVALID_PARAMETERS", []string{"timeout"}},
			{"execute_code", args{"code": "1", "timeout": 301}, -32602, "INVALID_PARAMETERS",
				[]string{"timeout", "300"}},
			{"execute_code", args{"code": "1", "timeout": 1.5}, -32602, "INVALID_PARAMETERS", []string{"timeout"}},
			{"execute_code", args{"code": "1", "session_id": "nobodys"}, -32602, "SESSION_NOT_FOUND",
				[]string{"Session not found: nobodys"}},
			{"execute_code", args{"code": "1", "language": "node", "template": "python"}, -32602, "INVALID_PARAMETERS",
				[]string{"node", "python"}},
			{"execute_command", args{"command": "ls", "cwd": 5}, -32602, "INVALID_PARAMETERS", []string{"cwd"}},
			{"execute_command", args{"command": ""}, -32602, "INVALID_PARAMETERS", []string{"command"}},
			{"sandbox_write_file", args{"path": "a", "content": "*", "encoding": "base64"}, -32602,
				"INVALID_PARAMETERS", []string{"base64"}},
			{"read_process", args{"process_id": "nothing"}, -32602, "", nil},
			{"stop_process", args{"process_id": "nothing", "signal": "BOGUS"}, -32602, "", nil},
		} {
			_, err := c.try(t.Context(), bad.tool, bad.a)
			if bad.name != "" {
				wantFault(t, err, bad.code, bad.name, bad.words...)
			} else if err == nil {
				t.Errorf("%s %v went well", bad.tool, bad.a)
			}
		}
		if _, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "no_such_tool"}); err == nil {
			t.Error("an unknown tool went well")
		}
		for range 2 { // by the SDK, and by the fast path
			r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_read_file", Arguments: args{"path": "none"}})
			if err != nil || !r.IsError {
				t.Fatalf("what a model can mend is no result: %+v, %v", r, err)
			}
			fields, _ := r.StructuredContent.(map[string]any)
			if text := r.Content[0].(*mcp.TextContent).Text; fields["error_code"] != "NOT_FOUND" ||
				!strings.Contains(text, "none") || !strings.Contains(text, "\n- ") {
				t.Errorf("%q %v", text, fields)
			}
		}
	})
	r := s.connect(older, "", nil).code("new", "1")
	data := wantFault(t, func() error {
		_, err := s.connect(older, "", nil).
			try(t.Context(), "execute_code", args{"code": "1", "session_id": r.session(), "flavor": "large"})
		return err
	}(), -32602, "INVALID_PARAMETERS", "small", "large")
	_ = data
}

// TestBare makes the plain calls that older clients make.
func TestBare(t *testing.T) {
	t.Parallel()
	s := start(t)
	for body, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`:   `"execute_code"`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}`: `"execute_code"`,
		`{"jsonrpc":"2.0","id":"a","method":"ping"}`:                   `"result":{}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"print(\"Hello from MCP!\")","template":"python"}}}`: `"session_created":true`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_sessions","arguments":{}}}`:                                                        `"sessions":[`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_volume_path","arguments":{}}}`:                                                     `"volume_mappings"`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"get_volume_mappings"}}`:                                                                `"volume_mappings"`,
		`nonsense`: `-32700`,
		`[]`:       `-32600`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`: `-32600`,
		`5`: `-32600`,
		`{"jsonrpc":"1.0","id":1,"method":"ping"}`:                                   `-32600`,
		`{"jsonrpc":"2.0","id":1}`:                                                   `-32600`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}`:                 `-32602`,
		`{"jsonrpc":"2.0","id":1,"method":"nothing"}`:                                `-32601`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nothing"}}`: `-32601`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"1","session_id":"x"}}}`: `"error_code":"SESSION_NOT_FOUND"`,
	} {
		code, header, text := s.post("/mcp", body)
		if code != 200 || !strings.Contains(strings.ReplaceAll(text, ": ", ":"), want) ||
			!strings.HasPrefix(header.Get("Content-Type"), "application/json") {
			t.Errorf("%s: HTTP %d %s: %s", body, code, header.Get("Content-Type"), text)
		}
	}
	if code, _, text := s.post("/mcp",
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"execute_code","arguments":{"code":"1"}}}`); code != 202 || text != "" {
		t.Errorf("a notification: HTTP %d %q", code, text)
	}
	first := s.bare("execute_code", args{"code": "x = 1\nprint('a')"})
	id, _ := first.Result["session_id"].(string)
	if id == "" || first.Result["session_created"] != true || first.Result["code_success"] != true ||
		first.Result["isError"] != false {
		t.Errorf("%v", first.Result)
	}
	second := s.bare("execute_code", args{"code": "x", "session_id": id})
	if second.Result["session_id"] != id || second.Result["session_created"] != false ||
		second.Result["result"] != "1" {
		t.Errorf("%v", second.Result)
	}
	if third := s.bare("execute_code", args{"code": "x"}); third.Result["session_id"] == id ||
		third.Result["isError"] != true {
		t.Errorf("a call without session met another's: %v", third.Result)
	}
	// A call that fails names the session that it has made, in which the next one goes on.
	for tool, arguments := range map[string]args{"sandbox_read_file": {"path": "none"},
		"sandbox_list_files": {"path": "none"}, "sandbox_write_file": {"path": "/etc/none/x", "content": ""},
		"execute_command": {"command": "none", "args": []string{"x"}}, "execute_code": {"code": "1", "language": "node",
			"template": "python"}} {
		failed := s.bare(tool, arguments)
		if failed.Error == nil {
			t.Logf("%s is a result: %v", tool, failed.Result)
			continue
		}
		about, _ := failed.Error.Data["context"].(map[string]any)
		made, _ := about["session_id"].(string)
		if made == "" || !strings.Contains(failed.Error.Message, made) ||
			!strings.Contains(failed.Error.Message, "pass session_id") {
			t.Errorf("%s: %+v", tool, failed.Error)
		}
		if next := s.bare("sandbox_list_files", args{"session_id": made}); next.Result["session_id"] != made {
			t.Errorf("%s: the session that was made: %+v", tool, next)
		}
		if named := s.bare(tool, args{"path": "none", "session_id": made}); tool == "sandbox_read_file" &&
			(named.Error == nil || strings.Contains(named.Error.Message, made)) {
			t.Errorf("a call that names its session: %+v", named.Error)
		}
		s.bare("stop_session", args{"session_id": made})
	}
	var listed struct{ Result struct{ Tools []any } }
	_, _, list := s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if err := json.Unmarshal([]byte(list), &listed); err != nil {
		t.Fatal(err)
	}
	code, _, text := s.request("GET", "/", nil)
	var health map[string]any
	if json.Unmarshal([]byte(text), &health); code != 200 || health["status"] != "healthy" ||
		health["server"] != "Sandlot" || health["wrapper_status"] != "connected" || health["tools_count"] != float64(len(listed.Result.Tools)) {
		t.Errorf("health: %d %s, and %d tools are listed", code, text, len(listed.Result.Tools))
	}
	if code, _, again := s.request("GET", "/mcp", nil); code != 200 || again != text {
		t.Errorf("GET /mcp: %d %s", code, again)
	}
	if code, _, _ := s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"`+
		strings.Repeat("x", 17<<20)+`"}}`); code != 413 {
		t.Errorf("17 MB: HTTP %d", code)
	}
	for _, h := range [][]string{{"Origin", "https://evil.example"}, {"Host", "evil.example"},
		{"Sec-Fetch-Site", "cross-site"}} {
		if code, _, _ := s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, h...); code != 403 {
			t.Errorf("%v: HTTP %d", h, code)
		}
	}
	if code, header, _ := s.request("OPTIONS", "/mcp", nil, "Origin", "https://evil.example",
		"Access-Control-Request-Method", "POST"); header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("CORS is off, and: HTTP %d %v", code, header)
	}
}

// TestCORS: pages of any origin come in with a token alone; without one they are
// listed, or of this machine, or the server does not start.
func TestCORS(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	for _, settings := range [][]string{{"MCP_ENABLE_CORS=true", "SANDLOT_CORS_ORIGINS=*"},
		{"SANDLOT_CORS_ENABLED=true", "SANDLOT_CORS_ORIGINS=*", "SANDLOT_AUTH=off"}} {
		cmd := exec.CommandContext(t.Context(), binary(t), "serve", "--state-dir", state, "--port",
			strconv.Itoa(freePort(t)))
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "SANDLOT_NETWORK_REGISTRIES=none",
			"SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false"}, settings...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), "cors.origins") ||
			!strings.Contains(string(out), "auth: required") {
			t.Errorf("%v: exit code %d\n%s", settings, code, out)
		}
	}
	ask := func(s *server, origin string, headers ...string) (int, http.Header) {
		t.Helper()
		code, header, _ := s.request("OPTIONS", "/mcp", nil, "Origin", origin, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "content-type")
		code2, header2, _ := s.post("/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
			append(headers, "Origin", origin)...)
		if (code/100 == 2) != (code2 == 200) ||
			header.Get("Access-Control-Allow-Origin") != header2.Get("Access-Control-Allow-Origin") {
			t.Errorf("%s: asked for HTTP %d %v, got HTTP %d %v", origin, code, header, code2, header2)
		}
		return code2, header2
	}
	s := start(t, "MCP_ENABLE_CORS=true")
	for origin, want := range map[string]int{"http://localhost:3000": 200, "http://127.0.0.1:5173": 200,
		"http://evil.example:3000": 403, "http://evil.localhost:3000": 403, "https://localhost:3000": 403, "null": 403} {
		if code, header := ask(s, origin); code != want ||
			(header.Get("Access-Control-Allow-Origin") == origin) != (want == 200) {
			t.Errorf("without a list, %s: HTTP %d %v", origin, code, header)
		}
	}
	token := s.token("ann") // from now on a token is required
	if code, header := ask(s, "https://app.example", "Authorization", "Bearer "+token); code != 200 ||
		header.Get("Access-Control-Allow-Origin") != "*" || header.Get("Access-Control-Allow-Credentials") != "" ||
		!strings.Contains(header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") {
		t.Errorf("HTTP %d %v", code, header)
	}
	if code, _ := ask(s, "null", "Authorization", "Bearer "+token); code != 403 {
		t.Errorf("null: HTTP %d", code)
	}
	s = start(t, "MCP_ENABLE_CORS=true", "SANDLOT_CORS_ORIGINS=https://app.example")
	for origin, want := range map[string]int{"https://app.example": 200, "https://evil.example": 403, "null": 403} {
		if code, header := ask(s, origin); code != want ||
			(header.Get("Access-Control-Allow-Origin") == origin) != (want == 200) {
			t.Errorf("%s: HTTP %d %v", origin, code, header)
		}
	}
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "n = 0").session()
	a := args{"code": "import time\nn += 1\ntime.sleep(0.5)\nn", "session_id": id, "idempotency_key": "k1"}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if r, err := c.try(t.Context(), "execute_code", a); err != nil || r.Text != "1" {
				t.Errorf("%v %v", r, err)
			}
		})
	}
	both.Wait()
	c.want(id, "n", "1")
}

func TestTurns(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.connect(older, "", nil)
	id := c.code("new", "order = []").session()
	var all sync.WaitGroup
	for i := range 5 {
		all.Go(func() {
			if r, err := c.try(t.Context(), "execute_code",
				args{"code": fmt.Sprintf("order.append('s%d'); import time; time.sleep(0.1); order.append('e%d')", i,
					i), "session_id": id}); err != nil || r.IsError {
				t.Errorf("%v %v", r, err)
			}
		})
	}
	all.Wait()
	r := c.code(id, "all(order[i][1:] == order[i+1][1:] for i in range(0, 10, 2)) and len(order) == 10")
	if r.Text != "True" {
		t.Errorf("cells ran together: %q", c.code(id, "order").All)
	}
	// A cell that holds the interpreter holds nothing else.
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.try(t.Context(), "execute_code", args{"code": "import time; time.sleep(3)", "session_id": id})
	}()
	time.Sleep(300 * time.Millisecond)
	if r := c.shell(id, "echo free"); r.Text != "free" {
		t.Errorf("%q", r.All)
	}
	if r := c.call("execute_code", args{"code": "6*7", "language": "node", "session_id": id}); r.Text != "42" {
		t.Errorf("%q", r.All)
	}
	select {
	case <-done:
		t.Error("the others waited")
	default:
	}
	<-done
}

// notebook runs cells as they are written for Jupyter, and values with HTML.
func notebook(t *testing.T, c *client, id string) {
	t.Helper()
	r := c.code(id, "n = 3\nlines = !seq $n\n!echo {len(lines)} lines\n%cd -q /tmp\n!pwd\nlines")
	if r.IsError || !strings.Contains(r.Text, "3 lines\n/tmp") || r.Fields["result"] != "['1', '2', '3']" {
		t.Errorf("a cell: %q %v", r.All, r.Fields)
	}
	r = c.code(id, "%nothing")
	if !r.IsError || !strings.Contains(r.Text, "there is no magic %nothing here") ||
		!strings.Contains(r.Text, "%%bash") {
		t.Errorf("an unknown magic: %q", r.All)
	}
	r = c.code(id, "from IPython.display import HTML\nHTML('<b>alone</b>')")
	if len(r.Content) == 0 || !strings.Contains(string(must(json.Marshal(r.Content[0]))), "alone") ||
		strings.Contains(r.All, "object") {
		t.Errorf("HTML alone: %s", must(json.Marshal(r.Content)))
	}
	r = c.code(id, "class Frame:\n  def _repr_html_(self): return '<table>'\n  def __repr__(self): return 'a "+
		"b'\nFrame()")
	_, link, _ := strings.Cut(r.All, "[The value as HTML: the resource ")
	link, _, _ = strings.Cut(link, "]")
	if r.Text != "a b" || link == "" || strings.Contains(string(must(json.Marshal(r.Content))), "table>") {
		t.Fatalf("a value with text and HTML: %s", must(json.Marshal(r.Content)))
	}
	_, path, _ := strings.Cut(link, "/files")
	if r := c.call("sandbox_read_file", args{"path": path, "session_id": id}); r.Text != "<table>" {
		t.Errorf("behind the link %s: %q", link, r.All)
	}
	if r := c.code(id,
		"!which fc-match >/dev/null && fc-match sans 2>&1 | grep -c Fontconfig"); strings.HasPrefix(r.Text, "1") {
		t.Errorf("fontconfig complains: %q", r.All)
	}
	r = c.code(id, "input('Name? ')")
	if !r.IsError || !strings.Contains(r.Text, "nobody to answer it here") {
		t.Errorf("a question: %q", r.All)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
