package interp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestNodeCellsBesideREPL runs the same cells in Node's REPL and here. What they show is the same, but for the
// differences that docs/guide/tools.md has.
func TestNodeCellsBesideREPL(t *testing.T) {
	compareBooks(t, reference{driver: "node", program: program(t, "node"), books: "testdata/node/*.txt",
		table: "Cells in Node show what they show in Node's REPL, with these differences.",
		run:   throughREPL, here: nodeHere})
}

// TestBashCellsBesideBash runs the same cells here and in one bash, which reads them one after another.
func TestBashCellsBesideBash(t *testing.T) {
	compareBooks(t, reference{driver: "bash", program: program(t, "bash"), books: "testdata/bash/*.txt",
		table: "Cells in bash do what they do in one bash that reads them one after another, with these differences.",
		run:   throughBash, here: bashHere})
}

// reference is a program beside which cells of a language are tested.
type reference struct {
	driver, program, books string
	table                  string // the line of docs/guide/tools.md before the table of differences
	run                    func(t *testing.T, program string, b book) []shown
	here                   func(o outcome, dir string) shown
}

const leastCells = 60

// environmentOfCells is that of newLang.
var environmentOfCells = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8"}

func compareBooks(t *testing.T, r reference) {
	kept := tableOf(t, r.table)
	count, found := 0, map[string]bool{}
	for _, b := range readBooks(t, r.books, 5) {
		count += len(b.Cells)
		b.Folder = folder(t)
		want := r.run(t, r.program, b)
		l := newLang(t, r.driver, r.program)
		l.config.Dir = folder(t)
		for i, code := range b.Cells {
			here, there, name := r.here(l.run(code), l.config.Dir), shown{}, b.differs[i]
			if i < len(want) {
				there = want[i]
			}
			switch {
			case here != there && name == "":
				t.Errorf("%s, cell %d:\n%s\n%s:\n%shere:\n%s", b.Name, i+1, code, r.driver, there, here)
			case here == there && name != "":
				t.Errorf("%s, cell %d does not differ any more: take %q away\n%s\n%s", b.Name, i+1, name, code, here)
			case name != "" && !slices.Contains(kept, name):
				t.Errorf("%s, cell %d: the table in tools.md does not have %q", b.Name, i+1, name)
			}
			found[name] = true
		}
		l.Close()
	}
	for _, name := range kept {
		if !found[name] {
			t.Errorf("tools.md has the difference %q, which no cell shows", name)
		}
	}
	if count < leastCells {
		t.Errorf("only %d cells", count)
	}
	t.Logf("%d cells, %d kinds of differences", count, len(kept))
}

// folder is an empty one, by the name that programs give it.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// tableOf returns the first column of the table behind a line of docs/guide/tools.md.
func tableOf(t *testing.T, line string) (names []string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/guide/tools.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), line)
	if !ok {
		t.Fatalf("tools.md does not have the line %q", line)
	}
	for row := range strings.Lines(rest) {
		cells := strings.Split(row, "|")
		if len(cells) < 4 && len(names) == 0 {
			continue
		} else if len(cells) < 4 {
			break
		}
		if name := strings.TrimSpace(cells[1]); name != "" && !strings.HasPrefix(name, "-") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Fatalf("tools.md has no table after %q", line)
	}
	return names
}

// throughREPL runs a book in Node's REPL.
func throughREPL(t *testing.T, node string, b book) []shown {
	t.Helper()
	home := t.TempDir()
	file := func(name string) string { return filepath.Join(home, name) }
	in, err := json.Marshal(b.Cells)
	if err == nil {
		err = os.WriteFile(file("cells"), in, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	driver, err := filepath.Abs("testdata/repl.js")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node, "--no-warnings", driver, file("cells"), file("answer"), file("out"), file("err"))
	cmd.Dir, cmd.Env = b.Folder, environmentOfCells
	defer outputFiles(t, cmd, file("out"), file("err"))()
	runErr := cmd.Run()
	text, err := os.ReadFile(file("answer"))
	var cells []replCell
	if err == nil {
		err = json.Unmarshal(text, &cells)
	}
	if err != nil {
		printed, _ := os.ReadFile(file("err"))
		t.Fatalf("%s: %v, %v\n%s", b.Name, runErr, err, printed)
	}
	if len(cells) < len(b.Cells) && !strings.Contains(b.Cells[len(cells)-1], "exit") {
		t.Fatalf("%s: the REPL ended in cell %d: %v", b.Name, len(cells), runErr)
	}
	all := make([]shown, len(cells))
	for i, c := range cells {
		all[i] = c.shown(b.Folder)
	}
	return all
}

// outputFiles makes the output of a program go to files, and returns what closes them.
func outputFiles(t *testing.T, cmd *exec.Cmd, out, err string) (end func()) {
	t.Helper()
	open := func(name string) *os.File {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	o, e := open(out), open(err)
	cmd.Stdout, cmd.Stderr = o, e
	return func() { o.Close(); e.Close() }
}

// replCell is what testdata/repl.js says of a cell.
type replCell struct {
	Value, Out, Err string
	Errors          []string
	Ended           bool // without an error of its own
	Exit            int
}

func (c replCell) shown(dir string) shown {
	s := shown{Out: c.Out, Err: c.Err, Value: c.Value}
	if n := len(c.Errors); n > 0 && !c.Ended {
		s.Value, s.Error, c.Errors = "", c.Errors[n-1], c.Errors[:n-1]
	}
	for _, late := range c.Errors {
		s.Err += "Uncaught " + errorOfNode(late) + "\n"
	}
	if c.Exit != 0 {
		s.Error = fmt.Sprint("exit ", c.Exit)
	}
	return s.ofNode(dir)
}

func nodeHere(o outcome, dir string) shown {
	s := shown{Out: o.out, Err: uncaught.ReplaceAllString(o.err, "Uncaught "), Value: o.value(), Error: o.Traceback}
	if o.StateLost {
		s.Error += "lost: " + o.Reason
	}
	if o.Traceback == "" && o.Exit != 0 {
		s.Error = fmt.Sprint("exit ", o.Exit)
	}
	if text := errorOfNode(o.Traceback); text != "" && !strings.HasPrefix(text, o.Error) {
		s.Error = fmt.Sprintf("two errors: %q, %q", o.Error, text)
	}
	return s.ofNode(dir)
}

var (
	uncaught   = regexp.MustCompile(`Uncaught \(in a callback or promise\) `)
	frames     = regexp.MustCompile(`\n\s+(?:at |\.\.\. \d+ lines matching )[^\n]*?((?:,| \{| \]|\])?(?:\n|$))`)
	decoration = regexp.MustCompile(`(?s)^.*\n((?:Uncaught )?SyntaxError: )`)
	bracketed  = regexp.MustCompile(`^\[([^\n]*?Error[^\n]*)\]`)
	domains    = regexp.MustCompile(`,?\s*\[Symbol\((?:trigger_)?async_id_symbol\)\]: \d+`)
	promised   = regexp.MustCompile(`(?s)Promise \{\s+(.*?)\s+\}`)
	measured   = regexp.MustCompile(`\b[\d.]+ms\b`)
)

// errorOfNode is the text of an error without where it was thrown.
func errorOfNode(text string) string {
	text = withoutFrames(strings.TrimRight(text, "\n"))
	text = decoration.ReplaceAllString(text, "$1")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "Uncaught:\n"), "Uncaught ")
	return bracketed.ReplaceAllString(text, "$1")
}

func withoutFrames(text string) string {
	for {
		shorter := frames.ReplaceAllString(text, "$1")
		if shorter == text {
			return text
		}
		text = shorter
	}
}

func (s shown) ofNode(dir string) shown {
	s.Error = errorOfNode(s.Error)
	s.Value = promised.ReplaceAllString(domains.ReplaceAllString(withoutFrames(s.Value), ""), "Promise { $1 }")
	s.Out, s.Err = measured.ReplaceAllString(withoutFrames(s.Out), "<time>"), withoutFrames(s.Err)
	return s.normal(dir)
}

func bashHere(o outcome, dir string) shown {
	s := shown{Out: o.out, Err: ownCell.ReplaceAllString(o.err, "<cell>: "), Value: o.value()}
	if o.Exit != 0 {
		s.Error = fmt.Sprint("exit ", o.Exit)
	}
	return s.ofBash(dir)
}

var (
	ownCell  = regexp.MustCompile(`/tmp/\.sandlot-bash-0x[0-9a-f]+\.code: `)
	ofScript = regexp.MustCompile(`(/dev/fd/3: (?:eval: )?(?:line )?|here-document at line )(\d+)?`)
	jobEnds  = regexp.MustCompile(`(line \d+: +)\d+( (?:Terminated|Killed|Hangup))`)
)

func (s shown) ofBash(dir string) shown {
	s.Err = jobEnds.ReplaceAllString(s.Err, "${1}<pid>$2")
	return s.normal(dir)
}

// throughBash runs a book in one bash, and in a new one after that has ended.
func throughBash(t *testing.T, bash string, b book) (all []shown) {
	t.Helper()
	for rest := b.Cells; len(rest) > 0; rest = b.Cells[len(all):] {
		done := throughOneBash(t, bash, b.Folder, rest)
		if len(done) == 0 {
			t.Fatalf("%s: bash runs no cell", b.Name)
		}
		all = append(all, done...)
	}
	return all
}

// A cell in the script of a bash is followed by a line that tells its end, on a descriptor that no cell uses, and keeps
// its status.
const (
	scriptBegins = "exec 251>&4 3<&- 4>&-; __end() { builtin echo \"$1\" >&251; return \"$1\"; }\n"
	cellEnds     = "\n{ __end $? && :; } >/dev/null 2>&1\n"
)

// throughOneBash runs cells until the shell ends. The script ends behind the last cell.
func throughOneBash(t *testing.T, bash, dir string, cells []string) (all []shown) {
	t.Helper()
	home := t.TempDir()
	out, errOut := filepath.Join(home, "out"), filepath.Join(home, "err")
	scriptRead, script, e1 := os.Pipe()
	marks, marksWrite, e2 := os.Pipe()
	if err := errors.Join(e1, e2); err != nil {
		t.Fatal(err)
	}
	defer marks.Close()
	cmd := exec.Command(bash, "--norc", "--noprofile", "-O", "expand_aliases", "/dev/fd/3")
	cmd.Dir, cmd.Env, cmd.ExtraFiles = dir, environmentOfCells, []*os.File{scriptRead, marksWrite}
	end := outputFiles(t, cmd, out, errOut)
	err := cmd.Start()
	end()
	scriptRead.Close()
	marksWrite.Close()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		ended <- cmd.ProcessState.ExitCode()
	}()
	statuses := make(chan int, 1)
	go func() {
		var status int
		for {
			if _, err := fmt.Fscan(marks, &status); err != nil {
				return
			}
			statuses <- status
		}
	}()
	io.WriteString(script, scriptBegins)
	lines, seen := strings.Count(scriptBegins, "\n"), map[string]int{}
	added := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		from := seen[name]
		seen[name] = len(text)
		return string(text[from:])
	}
	for i, code := range cells {
		text := code + cellEnds
		if last := i == len(cells)-1; last {
			text = code + "\n"
		}
		if _, err := io.WriteString(script, text); err != nil {
			t.Fatal(err)
		}
		if i == len(cells)-1 {
			script.Close()
		}
		s, alive := shown{}, true
		var status int
		select {
		case status = <-statuses:
		case status = <-ended:
			alive = false
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			t.Fatalf("bash does not end the cell %q", code)
		}
		s.Out = added(out)
		s.Err = ofScript.ReplaceAllStringFunc(added(errOut), func(place string) string {
			parts := ofScript.FindStringSubmatch(place)
			begins := strings.Replace(parts[1], "/dev/fd/3", "<cell>", 1)
			if n, err := strconv.Atoi(parts[2]); err == nil {
				return begins + strconv.Itoa(n-lines)
			}
			return begins
		})
		if status != 0 {
			s.Error = fmt.Sprint("exit ", status)
		}
		all = append(all, s.ofBash(dir))
		lines += strings.Count(text, "\n")
		if !alive {
			break
		}
	}
	script.Close()
	return all
}
