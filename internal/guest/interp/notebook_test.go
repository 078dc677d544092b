package interp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Cells as they are written for Jupyter.
func TestNotebookCells(t *testing.T) {
	l := python(t)
	dir, err := filepath.EvalSymlinks(l.config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ code, value, out string }{
		{"!echo hello", "", "hello\n"},
		{"print('a')\n!echo b; echo c\nprint('d')", "", "a\nb\nc\nd\n"},
		{"x = !printf 'one two\\nthree four\\n'", "", ""},
		{"x", "['one two', 'three four']", ""},
		{"x.s, x.n, x.fields(0), x.grep('thr')",
			`('one two three four', 'one two\nthree four', ['one', 'three'], ['three four'])`, ""},
		{"n = 3; name = 'a b'\n!echo {n + 1} $n '{name}' ${HOME} $NOWHERE {1,2} {} $$HOME", "",
			"4 3 a b /nonexistent 1 2 {} /nonexistent\n"},
		{"for f in ['p', 'q']:\n    !echo {f}\nprint('end')", "", "p\nq\nend\n"},
		{"def f(local):\n    !echo $local\n\nf('inner')", "", "inner\n"},
		{"!echo a \\\n  b\nimport sys; sys._getframe().f_lineno", "3", "a b\n"},
		{"if True:\n    y = !echo deep\ny[0]", "'deep'", ""},
		{"!exit 3\n_exit_code", "3", ""},
		{"!!echo shown", "['shown']", ""},
		// What is Python stays Python.
		{"s = '''\n!echo no\n%cd /\n'''\ns", `'\n!echo no\n%cd /\n'`, ""},
		{"s = '''\n%cd /\n'''\n!echo yes\ns", `'\n%cd /\n'`, "yes\n"},
		{"z = (7\n%4\n)\n!echo yes\nz", "3", "yes\n"},
		{"z = 7 \\\n% 4\n!echo yes\nz", "3", "yes\n"},
		{"x != 1, 7 % 4", "(True, 3)", ""},
		// lines
		{"%cd -q /tmp", "", ""},
		{"%cd -", "", dir + "\n"},
		{"%pwd", "'" + dir + "'", ""},
		{"%env GREETING=hi there", "", "env: GREETING=hi there\n"},
		{"%env GREETING", "'hi there'", ""},
		{"!echo $GREETING", "", "hi there\n"},
		{"%matplotlib inline\n%load_ext autoreload\n%autoreload 2\n%config InlineBackend.figure_format = 'retina'",
			"", ""},
		{"here = %pwd\nhere == '" + dir + "'", "True", ""},
		{"%%writefile made.py\nprint('made', __name__)\nvalue = 5\n", "", "Writing made.py\n"},
		{"%run made.py\nvalue", "5", "made __main__\n"},
		{"%%writefile -a made.py\n# more", "", "Appending to made.py\n"},
		{"%%bash\nfor i in 1 2; do echo $i; done\ncd /; pwd", "", "1\n2\n/\n"},
		{"%%bash --out said\necho kept", "", ""},
		{"said", `'kept\n'`, ""},
		{"%%sh\necho plain", "", "plain\n"},
		{"%%script cat\nas it is", "", "as it is"},
		{"# a comment before\n%%bash\necho after", "", "after\n"},
		{"%%capture got\nprint('hidden')\n!echo too", "", ""},
		{"got.stdout", `'hidden\ntoo\n'`, ""},
		{"get_ipython().run_line_magic('pwd', '') == '" + dir + "'", "True", ""},
		{"from IPython import get_ipython\nget_ipython().system('echo by name')", "", "by name\n"},
		{"len?;", "", ""},
	} {
		if strings.HasPrefix(tt.code, "len?") {
			if o := l.run("len?"); !o.OK || !strings.Contains(o.out, "number of items") {
				t.Errorf("help: %s", o)
			}
			continue
		}
		l.want(tt.code, tt.value, tt.out)
	}
	for code, words := range map[string][]string{
		"%time sum(range(10))":             {"CPU times: user ", "\nWall time: "},
		"%%time\nt = 1\nprint('timed', t)": {"timed 1", "CPU times", "Wall time"},
		"%timeit -n 5 -r 2 sum(range(5))":  {"per loop (mean ± std. dev. of 2 runs, 5 loops each)"},
		"%%timeit -n 5 -r 2\nsum([1])":     {"per loop"},
		"%who":                             {"name\t ", "here\t "},
		"%whos":                            {"Variable", "SList"},
		"%pip --version":                   {"pip "},
	} {
		o := l.run(code)
		for _, w := range words {
			if !o.OK || !strings.Contains(o.out, w) {
				if w == "pip " && strings.Contains(o.Error, "no pip") {
					continue
				}
				t.Errorf("%q does not say %q: %s", code, w, o)
			}
		}
	}
	l.want("t", "1", "")
	if o := l.run("%time 6 * 7"); o.value() != "42" {
		t.Errorf("the value of what was timed: %s", o)
	}
}

func TestNotebookErrors(t *testing.T) {
	l := python(t)
	l.fails("%nonsense x", 1, "UsageError: there is no magic %nonsense here", "%cd", "%%bash", "line 1, in <module>")
	l.fails("%%nonsense\nx", 1, "there is no magic %%nonsense here")
	l.fails("!echo a\n\n1/0", 1, "line 3, in <module>", "1/0", "ZeroDivisionError")
	l.fails("!echo a \\\n b\n1/0", 1, "line 3, in <module>")
	l.fails("%%time\nx = 1\n1/0", 1, "line 3, in <module>", "ZeroDivisionError")
	l.fails("!echo a\nx = = 1", 1, "SyntaxError", "line 2", "x = = 1")
	l.fails("%%bash\nexit 4", 1, "CalledProcessError", "4")
	l.fails("x = 1\nfoo bar", 1, "SyntaxError", "line 2")
	l.fails("%env NO_SUCH_VARIABLE", 1, "no variable NO_SUCH_VARIABLE")
}

// The names of IPython are there without IPython.
func TestIPythonDisplay(t *testing.T) {
	l := python(t)
	if err := os.WriteFile(filepath.Join(l.config.Dir, "p.png"), []byte("\x89PNG\r\n\x1a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := l.run("from IPython.display import display, Image, HTML, Markdown, SVG, JSON, clear_output\n" +
		"display(HTML('<i>gone</i>'))\nclear_output(wait=True)\n" +
		"display(HTML('<b>x</b>'), " +
		"Markdown('*m*'))\ndisplay(Image('p.png'))\n" +
		"display(Image(data=b'\\xff\\xd8\\xffjpeg'))\ndisplay(SVG('<svg/>'))\ndisplay(JSON({'a': 1}))\n" +
		"display({'text/html': '<u>raw</u>', 'text/plain': 'raw'}, raw=True)\nh = display(HTML('h'), " +
		"display_id=True)\nh.update(HTML('updated'))\nHTML('<p>last</p>')")
	want := []string{"text/html <b>x</b>", "text/markdown *m*", "image/png \x89PNG\r\n\x1a\n",
		"image/jpeg \xff\xd8\xffjpeg", "image/svg+xml <svg/>",
		`application/json {"a": 1}`, "text/html <u>raw</u>", "text/html updated",
		"text/html <p>last</p>"}
	var got []string
	for _, r := range o.Rich {
		got = append(got, r.MIME+" "+string(r.Data))
	}
	if !o.OK || o.out != "" || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q\n%s", got, o)
	}
	l.want("import IPython; IPython.display.display('text')", "", "'text'\n")
	l.fails("import IPython.nowhere", 1, "ModuleNotFoundError")
}

// With IPython installed its display comes here too.
func TestRealIPython(t *testing.T) {
	l := python(t)
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(l.config.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Made like the real one, whose display prints where no shell of its own runs.
	write("IPython/__init__.py", "from .core.display_functions import display\nreal = True\n")
	write("IPython/core/__init__.py", "")
	write("IPython/core/display_functions.py",
		"def display(*objs, **_): print(*objs)\ndef clear_output(wait=False): print('clear')\n")
	write("IPython/display.py",
		"from IPython.core.display_functions import *\nclass HTML:\n    def __init__(self, data): self.data = "+
			"data\n    def _repr_html_(self): return self.data\n")
	o := l.run("import IPython\nfrom IPython.display import display, HTML, " +
		"clear_output\ndisplay(HTML('<b>'))\nIPython.real")
	if !o.OK || o.out != "" || o.value() != "True" || len(o.Rich) != 1 || string(o.Rich[0].Data) != "<b>" {
		t.Errorf("got %s, %d rich values", o, len(o.Rich))
	}
}

// A value with a text of its own has its HTML behind a link.
func TestTextOrHTML(t *testing.T) {
	l := python(t)
	l.config.OutputDir = t.TempDir()
	o := l.run("class Frame:\n    def _repr_html_(self): return '<table>'\n    def __repr__(self): return 'a " +
		"b\\n1 2'\nFrame()")
	if !o.OK || len(o.Rich) != 1 || o.Rich[0].MIME != "text/uri-list" || o.value() != "a b\n1 2" {
		t.Fatalf("%d rich values: %s", len(o.Rich), o)
	}
	path, ok := strings.CutPrefix(string(o.Rich[0].Data), "# 7 bytes\nfile://")
	if !ok {
		t.Fatalf("the link is %q", o.Rich[0].Data)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "<table>" ||
		filepath.Dir(path) != l.config.OutputDir {
		t.Errorf("%s holds %q, %v", path, text, err)
	}
	if o := l.run("display(Frame())"); o.out != "a b\n1 2\n" || len(o.Rich) != 1 {
		t.Errorf("displayed: %s", o)
	}
	for range 40 {
		l.run("Frame()")
	}
	if files, err := os.ReadDir(l.config.OutputDir); err != nil || len(files) > 32 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
}

// Figures come in their order, also those that are shown on the way.
func TestFigures(t *testing.T) {
	l := python(t)
	if err := os.MkdirAll(filepath.Join(l.config.Dir, "matplotlib"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"__init__.py": "", "pyplot.py": `import warnings
figs = {}
class Figure:
    def __init__(self, n): self.n = n
    def savefig(self, f, **_): f.write(b'figure %d' % self.n)
def figure(n=None):
    n = n or max(figs, default=0) + 1
    return figs.setdefault(n, Figure(n))
def get_fignums(): return sorted(figs)
def close(f): figs.pop(f.n, None) if f != 'all' else figs.clear()
def show(*a, **k): warnings.warn('FigureCanvasAgg is non-interactive')
`} {
		if err := os.WriteFile(filepath.Join(l.config.Dir, "matplotlib", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := l.run("import matplotlib.pyplot as plt\nplt.figure(); plt.figure(); plt.show()\ndisplay({'text/html': " +
		"'<b>'}, raw=True)\nf = plt.figure(7); plt.figure(9)\ndisplay(f)\nplt.figure(8)")
	var got []string
	for _, r := range o.Rich {
		got = append(got, string(r.Data))
	}
	if want := "figure 1,figure 2,<b>,figure 7,figure 8,figure 9"; !o.OK || o.err != "" ||
		strings.Join(got, ",") != want {
		t.Errorf("got %q: %s", got, o)
	}
}

// What is installed while the interpreter runs can be imported.
func TestInstalledMeanwhile(t *testing.T) {
	base := t.TempDir()
	l := newLang(t, "python", program(t, "python3"))
	env := l.config.Env
	l.config.Env = func() []string { return append(env(), "PYTHONUSERBASE="+base) }
	// An interpreter that started without its site module, as warm ones do, imports it for that.
	l.want("import sys; sys.modules.pop('site', None) is None", "False", "")
	// A finder of before Python 3.4 is passed over, as Python does.
	l.want("sys.meta_path.append(type('Old', (), {'find_module': lambda self, name, path=None: None})())", "", "")
	l.fails("import sandlot_test_new", 1, "ModuleNotFoundError")
	dir := strings.Trim(l.run("import site; site.getusersitepackages()").value(), "'")
	if !strings.HasPrefix(dir, base) {
		t.Fatalf("the user's folder is %s", dir)
	}
	if err := os.MkdirAll(filepath.Join(dir, "elsewhere"), 0o700); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "sandlot_test_new.py"), []byte("x = 1"), 0o600)
	l.want("import sandlot_test_new; sandlot_test_new.x", "1", "")
	l.want("import sys\nsys.path.index("+"site.getusersitepackages()) < min([n for n, p in enumerate(sys.path) "+
		"if 'dist-packages' in p] + [99])", "True", "")
	// One that is linked to, as by pip install -e.
	os.WriteFile(filepath.Join(dir, "elsewhere", "sandlot_test_linked.py"), []byte("x = 2"), 0o600)
	l.fails("import sandlot_test_linked", 1, "ModuleNotFoundError")
	os.WriteFile(filepath.Join(dir, "linked.pth"), []byte(filepath.Join(dir, "elsewhere")+"\n"), 0o600)
	l.want("import sandlot_test_linked; sandlot_test_linked.x", "2", "")
}

func TestNobodyAnswers(t *testing.T) {
	l := python(t)
	if o := l.fails("input('Name? ')", 1, "EOFError: input() has nobody to answer it here"); o.out != "Name? " {
		t.Errorf("the question is lost: %s", o)
	}
	l.fails("import getpass\ngetpass.getpass()", 1, "nobody to answer it here")
	l.want("import sys; sys.stdin.read()", "''", "")
	l.want("import io; sys.stdin = io.StringIO('given\\n')\ninput()", "'given'", "")
	l.want("sys.stdin = sys.__stdin__", "", "")

	// However the code loses its input, the next cell has one that nobody answers.
	for _, loses := range []string{"exit()", "quit()", "raise SystemExit", "sys.stdin.close()", "import os; os.close(0)",
		"sys.stdin = None", "del sys.stdin", "sys.stdin.detach()", "sys.stdin.buffer.close()", "sys.__stdin__.close(); sys.stdin = None"} {
		l.run(loses)
		l.fails("input()", 1, "EOFError: input() has nobody to answer it here")
		l.want("import sys; sys.stdin.read()", "''", "")
		l.fails("try: exit()\nexcept SystemExit: pass\ninput()", 1, "EOFError: input() has nobody to answer it here")
	}
	// Input of the code's own stays the code's own.
	l.fails("import io; mine = sys.stdin = io.StringIO(); mine.close(); input()", 1, "ValueError: I/O operation on closed file")
	l.want("with open('bytes', 'wb') as f: f.write(b'\\xff\\n')\nsys.stdin = open('bytes', encoding='utf-8')", "", "")
	l.fails("input()", 1, "UnicodeDecodeError")
	l.want("sys.stdin = sys.__stdin__", "", "")
}
