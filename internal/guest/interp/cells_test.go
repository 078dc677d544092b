package interp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// book is a notebook: a list of cells that share their state.
type book struct {
	Name   string   `json:"name"`
	Folder string   `json:"folder"`
	Cells  []string `json:"cells"`

	differs []string // of each cell: the name of its difference in the table, or ""
}

// jupyterOutput is an output of a cell as a notebook file has it.
type jupyterOutput struct {
	Type      string                     `json:"output_type"`
	Name      string                     `json:"name"` // of a stream
	Text      string                     `json:"text"`
	Data      map[string]json.RawMessage `json:"data"`
	ErrorName string                     `json:"ename"`
	Error     string                     `json:"evalue"`
	Traceback []string                   `json:"traceback"`
}

// shown is what a cell shows, in the form in which two of them are compared.
type shown struct{ Out, Err, Value, Rich, Error string }

func (s shown) String() string {
	var b strings.Builder
	for _, part := range [][2]string{{"out", s.Out}, {"err", s.Err}, {"value", s.Value}, {"rich", s.Rich}, {"error", s.Error}} {
		if part[1] != "" {
			fmt.Fprintf(&b, "  %s: %.1200q\n", part[0], part[1])
		}
	}
	return b.String()
}

// TestCellsBesideJupyter runs the same cells through Jupyter and here. What they show is the same, but for the
// differences of the table. SANDLOT_CELLS=all: all notebooks, and the examples of installed packages' documentation.
func TestCellsBesideJupyter(t *testing.T) {
	cells := cellsFolder(t)
	books := readBooks(t, "testdata/notebooks/*.txt", 40)
	if os.Getenv("SANDLOT_CELLS") == "all" {
		books = append(books, exampleNotebooks(t, cells)...)
	} else {
		books = slices.DeleteFunc(books, func(n book) bool { return !slices.Contains(short, n.Name) })
	}
	if only := os.Getenv("SANDLOT_CELLS_ONLY"); only != "" {
		books = slices.DeleteFunc(books, func(n book) bool { return !strings.Contains(n.Name, only) })
	}
	count := 0
	for i := range books {
		books[i].Folder = t.TempDir()
		count += len(books[i].Cells)
	}
	want := throughJupyter(t, cells, books)
	failed := 0
	for i, n := range books {
		dir := t.TempDir()
		l := newLang(t, "python", filepath.Join(cells, "bin/python"))
		l.config.Dir, l.config.OutputDir = dir, t.TempDir()
		env := l.config.Env
		l.config.Env = func() []string { return append(env(), "MPLCONFIGDIR="+cells, "PYTHONHASHSEED=0") }
		for k, code := range n.Cells {
			o := l.run(code)
			jupyter, here := ofJupyter(want[i][k], n.Folder), ofSandlot(o, dir)
			if here.Error != "" && !strings.Contains(o.Traceback, o.Error) || o.StateLost {
				t.Errorf("%s, cell %d:\n%s\nthe traceback does not have the error: %s\n%s", n.Name, k+1, code, o, o.Traceback)
			}
			name, found := n.differs[k], jupyter != here
			if found && name == "" {
				name = kindOf(code, jupyter, here)
			}
			switch {
			case found && name == "":
				failed++
				t.Errorf("%s, cell %d:\n%s\nJupyter:\n%shere:\n%s", n.Name, k+1, code, jupyter, here)
			case !found && n.differs[k] != "":
				t.Errorf("%s, cell %d does not differ any more: take %q away\n%s", n.Name, k+1, name, code)
			case name != "" && differences[name] == "":
				t.Errorf("%s, cell %d: the table does not have %q", n.Name, k+1, name)
			}
		}
		l.Close()
	}
	t.Logf("%d notebooks, %d cells; %d differ", len(books), count, failed)
}

// short are the notebooks that are run each time.
var short = []string{"values", "long_containers", "errors", "last_expression", "display", "rich", "collections", "shell", "captured",
	"settings", "bare_lines", "reloaded", "own_magics"}

// differences are those that are kept, with the reason. docs/guide/tools.md has them in short form.
var differences = map[string]string{
	// Of kinds of cells: kindOf.
	"commands":           "there is no terminal: lines end with LF, stderr stays stderr, and pip need not say that the kernel may have to be restarted",
	"names of errors":    "an error's name has its module, as in Python's own tracebacks",
	"syntax errors":      "the line is in the traceback, not a file that does not exist; and what was not closed is named",
	"exit":               "sys.exit ends the cell, and its code is the result's",
	"usage errors":       "a wrong magic is an error of the cell, and names the magics that there are",
	"groups":             "an exception group is an error as others are, not output",
	"inspection":         "there is no pager: what ? shows is printed",
	"compiler's warning": "is shown once: a cell is compiled as a whole",
	// Of single cells: testdata/notebooks.
	"no loop without await":  "so that asyncio.run works in such cells",
	"SVG as it is":           "nothing parses and writes it again",
	"short HTML":             "of a frame, which no model loads",
	"one form of a bundle":   "the best one: others say the same",
	"spelling of UTF-8":      "Python runs in its UTF-8 mode",
	"IPython's own objects":  "IPython does not run here; sys.ps1 would promise a prompt, and exit is Python's",
	"IPython's own warnings": "of its own options",
	"missing magics":         "the error names the magics that there are",
	"values without a text":  "a value that cannot be shown does not make its cell fail",
	"empty magics":           "nothing runs, and nothing fails",
}

// kindOf names the difference of a kind of cells whose two outputs differ; "": it is not in the table.
func kindOf(code string, jupyter, here shown) string {
	for _, kind := range []struct {
		name string
		same func(j, h *shown) // takes away what may differ
	}{
		{"commands", func(j, h *shown) {
			j.Out = strings.ReplaceAll(j.Out, "\r\n", "\n")
			j.Out = strings.ReplaceAll(j.Out, "Note: you may need to restart the kernel to use updated packages.\n", "")
			j.Out, j.Err, h.Out, h.Err = j.Out+j.Err, "", h.Out+h.Err, ""
		}},
		{"names of errors", func(_, h *shown) { h.Error = module.ReplaceAllString(h.Error, "") }},
		{"syntax errors", func(j, h *shown) {
			j.Error = place.ReplaceAllString(j.Error, "")
			if j.Error == "SyntaxError: incomplete input" && strings.HasPrefix(h.Error, "SyntaxError: ") {
				j.Error = h.Error
			}
		}},
		{"exit", func(j, h *shown) {
			if strings.HasPrefix(j.Error, "SystemExit") {
				j.Error, j.Err, h.Err = "", "", ""
			}
		}},
		{"usage errors", func(j, h *shown) {
			if strings.HasPrefix(j.Err, "UsageError: ") && strings.HasPrefix(h.Error, "UsageError: ") {
				j.Err, h.Error = "", ""
			}
		}},
		{"groups", func(j, h *shown) {
			if strings.Contains(j.Err, "Exception Group Traceback") && strings.Contains(j.Err, "| "+h.Error+"\n") {
				j.Err, h.Error = "", ""
			}
		}},
		{"inspection", func(_, h *shown) {
			if inspection.MatchString(code) && strings.Contains(h.Out, "Docstring:") || strings.Contains(h.Out, "Source:") {
				h.Out = ""
			}
		}},
		{"compiler's warning", func(j, _ *shown) { j.Err = twice.ReplaceAllString(j.Err, "") }},
	} {
		j, h := jupyter, here
		if kind.same(&j, &h); j == h {
			return kind.name
		}
	}
	return ""
}

var (
	module     = regexp.MustCompile(`^(?:\w+\.)+`)
	place      = regexp.MustCompile(` \([^()]*, line \d+\)$`)
	inspection = regexp.MustCompile(`^\?|\?$`)
	twice      = regexp.MustCompile(`(?m)^<>:.*\n`)
)

// cellsFolder is the virtual environment that test/tools has made for cells.
func cellsFolder(t *testing.T) string {
	t.Helper()
	tools := os.Getenv("SANDLOT_TEST_TOOLS")
	if tools == "" {
		tools = "../../../.tools"
	}
	dir, err := filepath.Abs(filepath.Join(tools, "cells"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "kernel")); err != nil {
		t.Fatalf("%v; run `make tools`", err)
	}
	return dir
}

// readBooks reads the files of a pattern. Lines of --- stand between the cells, with the name of the next cell's
// difference if it has one.
func readBooks(t *testing.T, pattern string, least int) (books []book) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) < least {
		t.Fatalf("%d notebooks, %v", len(paths), err)
	}
	separator := regexp.MustCompile(`(?m)^---(?: differs: (.*))?\n`)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := book{Name: strings.TrimSuffix(filepath.Base(path), ".txt")}
		rest, name := string(text), ""
		for {
			m := separator.FindStringSubmatchIndex(rest)
			cell := rest
			if m != nil {
				cell = rest[:m[0]]
			}
			if cell != "" || m == nil {
				n.Cells, n.differs = append(n.Cells, strings.TrimSuffix(cell, "\n")), append(n.differs, name)
			}
			if m == nil {
				break
			}
			name = ""
			if m[2] >= 0 {
				name = rest[m[2]:m[3]]
			}
			rest = rest[m[1]:]
		}
		books = append(books, n)
	}
	return books
}

// exampleNotebooks are the examples of the documentation of what is installed.
func exampleNotebooks(t *testing.T, cells string) (books []book) {
	t.Helper()
	args := []string{"testdata/examples.py", "440", "collections", "statistics", "textwrap", "difflib", "fractions", "itertools",
		"numpy", "numpy.linalg", "numpy.ma", "numpy.char", "numpy.polynomial.polynomial", "pandas", "pandas.api.types"}
	if err := json.Unmarshal(run(t, exec.Command(filepath.Join(cells, "bin/python"), args...)), &books); err != nil {
		t.Fatal(err)
	}
	count := 0
	for i := range books {
		books[i].differs = make([]string, len(books[i].Cells))
		count += len(books[i].Cells)
	}
	if count < 300 {
		t.Errorf("only %d cells of documentation were found", count)
	}
	return books
}

func run(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%.4000s", cmd.Args, err, errors.String())
	}
	return out
}

func throughJupyter(t *testing.T, cells string, books []book) (outputs [][][]jupyterOutput) {
	t.Helper()
	in, err := json.Marshal(books)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	answer := filepath.Join(home, "outputs.json")
	cmd := exec.Command(filepath.Join(cells, "bin/python"), "testdata/jupyter.py", answer)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Env = []string{"PATH=" + filepath.Join(cells, "bin") + ":/usr/bin:/bin", "HOME=" + home, "IPYTHONDIR=" + home, "LANG=C.UTF-8",
		"PYTHONPATH=" + filepath.Join(cells, "kernel"), "JUPYTER_PATH=" + filepath.Join(cells, "kernel/share/jupyter"),
		"JUPYTER_PLATFORM_DIRS=1", "PYDEVD_DISABLE_FILE_VALIDATION=1", "MPLCONFIGDIR=" + cells, "PYTHONHASHSEED=0"}
	run(t, cmd)
	text, err := os.ReadFile(answer)
	if err == nil {
		err = json.Unmarshal(text, &outputs)
	}
	if err != nil {
		t.Fatal(err)
	}
	return outputs
}

// richTypes are in the order in which the driver prefers them.
var richTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml", "text/html", "text/markdown",
	"text/latex", "application/json"}

// ofJupyter is what the outputs of a cell show. The streams are apart, as a result of a tool has them, and what display
// shows as text is printed.
func ofJupyter(outputs []jupyterOutput, dir string) shown {
	var s shown
	last := len(outputs) - 1
	for last >= 0 && outputs[last].Type != "execute_result" {
		last--
	}
	for i, o := range outputs {
		switch o.Type {
		case "stream":
			if o.Name == "stdout" {
				s.Out += o.Text
			} else {
				s.Err += o.Text
			}
		case "error":
			s.Error = strings.TrimSuffix(o.ErrorName+": "+o.Error, ": ")
		case "display_data", "execute_result":
			var plain string
			_ = json.Unmarshal(o.Data["text/plain"], &plain)
			kind, rich := "", ""
			for _, mime := range richTypes {
				if data, ok := o.Data[mime]; ok {
					kind, rich = mime, textOf(mime, data)
					break
				}
			}
			if kind != "" {
				s.Rich += kind + " " + rich + "\n"
			}
			useful := plain != "" && (kind == "" || kind == "text/html" && !bare.MatchString(plain))
			switch {
			case i == last:
				s.Value = plain
			case useful:
				s.Out += plain + "\n"
			}
		}
	}
	return s.normal(dir)
}

// bare is a text that says no more than the type.
var bare = regexp.MustCompile(`^<[^<>]*(?: object| at 0x)[^<>]*>$`)

// textOf is a form of a value as text: of an image, its size.
func textOf(mime string, data json.RawMessage) string {
	var text string
	if json.Unmarshal(data, &text) != nil {
		var value any
		_ = json.Unmarshal(data, &value)
		b, _ := json.Marshal(value)
		return string(b)
	}
	if mime == "image/png" {
		var raw []byte
		if json.Unmarshal(data, &raw) != nil {
			_ = json.Unmarshal([]byte(`"`+strings.ReplaceAll(text, "\n", "")+`"`), &raw)
		}
		return sizeOf(raw)
	}
	return text
}

func sizeOf(raw []byte) string {
	img, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(img.Bounds().Size())
}

func ofSandlot(o outcome, dir string) shown {
	s := shown{Out: o.out, Err: o.err, Value: o.value(), Error: o.Error}
	for _, r := range o.Rich {
		kind, data := r.MIME, string(r.Data)
		if kind == "text/uri-list" {
			if _, path, ok := strings.Cut(data, "file://"); ok {
				text, _ := os.ReadFile(path)
				kind, data = "text/html", string(text)
			}
		}
		switch kind {
		case "image/png":
			data = sizeOf(r.Data)
		case "application/json":
			var value any
			_ = json.Unmarshal(r.Data, &value)
			b, _ := json.Marshal(value)
			data = string(b)
		case "text/plain": // of a display with an id
			s.Out += data + "\n"
			continue
		}
		s.Rich += kind + " " + data + "\n"
	}
	return s.normal(dir)
}

var (
	address  = regexp.MustCompile(`0x[0-9a-f]{6,}`)
	cellName = regexp.MustCompile(`/tmp/ipykernel_\d+/\d+\.py|<code \d+>|<ipython-input-[^>]*>`)
	duration = regexp.MustCompile(`\b[\d.]+(?:e\+\d+)? (?:ns|[µμ]s|ms|s|min)\b`)
)

// normal takes out what differs from run to run.
func (s shown) normal(dir string) shown {
	for _, text := range []*string{&s.Out, &s.Err, &s.Value, &s.Rich, &s.Error} {
		*text = strings.ReplaceAll(*text, dir, "<folder>")
		*text = address.ReplaceAllString(*text, "0x…")
		*text = cellName.ReplaceAllString(*text, "<cell>")
		*text = duration.ReplaceAllString(*text, "<time>")
	}
	s.Value = strings.TrimRight(s.Value, "\n")
	return s
}
