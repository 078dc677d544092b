# The additions of Jupyter to Python: lines that begin with ! or %, cells that begin
# with %%, and IPython.display. The driver (python.py) loads this file when a cell does
# not compile, or imports IPython, and passes its own functions in `kernel`.
import builtins, os, re, shlex, subprocess, sys, time

ns, shell = kernel.ns, next((s for s in ("/bin/bash", "/usr/bin/bash", "/bin/sh") if os.path.exists(s)), "sh")


class UsageError(Exception):
    """An unknown magic, or one with wrong arguments."""


UsageError.__module__ = "builtins"  # shown without a module


class SList(list):
    """The lines that a command printed."""
    l = list = property(lambda self: self)
    s = spstr = property(" ".join)
    n = nlstr = property("\n".join)

    @property
    def p(self):
        import pathlib
        return [pathlib.Path(line) for line in self]

    paths = p

    def grep(self, pattern, prune=False, field=None):
        """The lines in which a regular expression, or a function, finds something."""
        found = pattern if callable(pattern) else lambda text: re.search(pattern, text, re.IGNORECASE)
        part = (lambda line: line) if field is None else (lambda line: (line.split() + [""] * (field + 1))[field])
        return SList(line for line in self if bool(found(part(line))) != prune)

    def fields(self, *numbers):
        """The words of each line, or those with the numbers."""
        if not numbers:
            return [line.split() for line in self]
        return SList(" ".join(words[n] for n in numbers if -len(words) <= n < len(words)) for words in map(str.split, self))


# Finding the lines that are not Python.

ASSIGN = re.compile(r"([A-Za-z_][\w.\[\]'\", *]*?)\s*=\s*([!%])(?![=\s])(.*)", re.S)
BARE_PIP = re.compile(r"pip3?\s+(install|uninstall|list|show|freeze|download|check)\b")
HELP = re.compile(r"(\?{1,2})\s*([\w.]+)|([\w.]+)(\?{1,2})")


PROMPT = re.compile(r"(>>>|\.\.\.|In \[\d+\]:|\s*\.{3,}:)( |$)")


def unpasted(code):
    """A cell without the indentation and the prompts with which it was pasted; the same text if it has none."""
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[:len(first) - len(first.lstrip())]
    if indent:
        lines = [line[len(indent):] if line.startswith(indent) else line for line in lines]
        first = first[len(indent):]
    if PROMPT.match(first) and not first.startswith("..."):
        prompted = [PROMPT.match(line) for line in lines]
        # Lines without a prompt are what the code printed.
        lines = [line[m.end():] if m else "" if line.strip() else line for line, m in zip(lines, prompted)]
    return "\n".join(lines)


def translate(code):
    """A cell with magics, indentation or prompts as Python, with the same line numbers; None: it has none of them."""
    pasted, code = code, unpasted(code)
    lines = code.split("\n")
    first = next((n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)
    if first is not None and re.match(r"%%[\w!]", lines[first]):
        head, body = lines[first][2:], "\n".join(lines[first + 1:])
        name, _, args = head.strip().partition(" ")
        return "\n" * first + "__sandlot__.cell(%r, %r, %r, %d)" % (name, args.strip(), body, first + 1)
    out, found, n, inside = [], False, 0, Reader()
    while n < len(lines):
        line = lines[n]
        python = magic(line) if inside.at_statement() else None
        if python is None:
            inside.read(line)
            out.append(line)
            n += 1
            continue
        found, rest = True, 1
        while line.endswith("\\") and n + rest < len(lines):
            line += "\n" + lines[n + rest]
            rest += 1
        out += [magic(line)] + [""] * (rest - 1)
        n += rest
    return "\n".join(out) if found or code != pasted else None


def magic(line):
    """A line with a magic as Python; None: it has none."""
    text = line.lstrip()
    indent, text = line[:len(line) - len(text)], text.rstrip()
    if text.startswith("!!"):
        return indent + "__sandlot__.getoutput(%r)" % text[2:]
    if text.startswith("!"):
        return indent + "__sandlot__.system(%r)" % text[1:]
    if re.match(r"%\w", text):
        return indent + line_call(text[1:])
    if BARE_PIP.match(text):
        return indent + line_call(text)
    m = ASSIGN.fullmatch(text)
    if m and m[2] == "!":
        return "%s%s = __sandlot__.getoutput(%r)" % (indent, m[1], m[3])
    if m and m[3][:1].isidentifier():
        return "%s%s = %s" % (indent, m[1], line_call(m[3]))
    m = HELP.fullmatch(text)
    if m:
        return indent + "__sandlot__.help(%r, %r)" % (m[2] or m[3], len(m[1] or m[4]) > 1)
    return None


def with_sign(code):
    """A cell of one line that begins with the name of a magic, with the % that it lacks; as it is where the name means something else."""
    word, *rest = code.split(None, 1)
    if "\n" in code.strip() or word in ns or hasattr(builtins, word) or rest and rest[0][0] in "=," or not rest and word not in SHOWING:
        return code
    return "%" + code.strip()


SHOWING = {"cd", "ls", "pwd", "who", "who_ls", "whos"}  # these need no arguments


def choose(tree, mode):
    """Make a cell show the expressions that IPython's setting ast_node_interactivity names, beside the last one."""
    import ast
    if mode == "all":
        def expressions(nodes):
            for node in nodes:
                if isinstance(node, ast.Expr):
                    yield node
                elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
                        yield from expressions(getattr(node, part, ()))

        for node in expressions(tree.body):
            if node is not tree.body[-1]:
                call = ast.parse("__sandlot__.shown(0)").body[0].value
                call.args = [node.value]
                for part in (call, call.func, call.func.value):
                    ast.copy_location(part, node)
                node.value = call
    elif mode == "last_expr_or_assign" and tree.body:
        last = tree.body[-1]
        targets = last.targets if isinstance(last, ast.Assign) else [last.target] if isinstance(last, (ast.AugAssign, ast.AnnAssign)) else []
        if len(targets) == 1 and isinstance(targets[0], ast.Name):
            name = ast.copy_location(ast.Name(targets[0].id, ast.Load()), last)
            tree.body.append(ast.copy_location(ast.Expr(name), last))


def line_call(text):
    name, _, args = text.partition(" ")
    end = ""
    if name not in ("time", "timeit", "env", "set_env") and args.endswith(";"):
        args, end = args[:-1], ";"
    return "__sandlot__.line(%r, %r)%s" % (name, args.strip(), end)


class Reader:
    """Knows whether a statement may begin in a line: it follows brackets, strings and continued lines."""

    def __init__(self):
        self.quote, self.depth, self.continued = "", 0, False

    def at_statement(self):
        return not (self.quote or self.depth or self.continued)

    def read(self, line):
        n, self.continued = 0, False
        while n < len(line):
            c = line[n]
            if self.quote:
                if c == "\\":
                    n += 1
                elif line.startswith(self.quote, n):
                    n += len(self.quote) - 1
                    self.quote = ""
            elif c == "#":
                return
            elif c in "'\"":
                self.quote = c * 3 if line.startswith(c * 3, n) else c
                n += len(self.quote) - 1
            elif c in "([{":
                self.depth += 1
            elif c in ")]}":
                self.depth = max(self.depth - 1, 0)
            elif c == "\\" and n == len(line) - 1:
                self.continued = True
            n += 1
        if len(self.quote) == 1 and not line.endswith("\\"):
            self.quote = ""  # an unterminated string: it ends with the line, and Python reports it


# Running magics.

def expand(text, local):
    """Replaces {expressions} and $names by their values. What is no expression or variable of the code stays for the shell."""
    import ast

    def value(source):
        tree = ast.parse(source.strip(), mode="eval").body
        if isinstance(tree, (ast.Tuple, ast.Constant)):
            raise ValueError  # braces of the shell, such as {a,b}
        if isinstance(tree, ast.Name) and tree.id not in local and tree.id not in ns:
            raise NameError(tree.id)
        return str(eval(source.strip(), ns, local))

    def put(m):
        if m[0] in ("{{", "}}", "$$"):
            return m[0][0]
        try:
            if m[1] is not None:
                return value(m[1])
            name = m[2]
            return str(local[name] if name in local else ns[name])
        except kernel.interrupts:
            raise
        except Exception:
            return m[0]

    return re.sub(r"\{\{|\}\}|\$\$(?=[A-Za-z_{])|(?<!\$)\{([^{}\n]+)\}|\$([A-Za-z_]\w*)", put, text)


def run(argv, stdin=None):
    """Runs a program, with its output as the cell's; returns its exit code."""
    if kernel.own_output():
        return subprocess.run(argv, input=stdin, text=stdin is not None).returncode
    done = subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


class Shell:
    """The functions that a cell with magics calls. get_ipython() returns it, too."""
    config = {}
    kernel = None  # by the name alone, pandas sees that this is not a terminal: it breaks wide frames, and leaves out no columns
    user_ns = ns
    ast_node_interactivity = "last_expr"

    def shown(self, value):
        if value is not None:
            kernel.remember_value(value)
            kernel.display(value)

    def register_magic_function(self, func, magic_kind="line", magic_name=None):
        """Make a function a magic: it gets the rest of the line, and as the magic of a cell its body, too."""
        name = magic_name or func.__name__
        if "line" in magic_kind:
            LINES[name] = func
        if "cell" in magic_kind:
            CELLS[name] = lambda args, body, offset: func(args, body if body.endswith("\n") else body + "\n")

    def system(self, command, depth=0):
        frame = sys._getframe(1 + depth)
        ns["_exit_code"] = run([shell, "-c", expand(command, frame.f_locals)])

    def getoutput(self, command, depth=0):
        frame = sys._getframe(1 + depth)
        done = subprocess.run([shell, "-c", expand(command, frame.f_locals)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              encoding="utf-8", errors="replace")
        ns["_exit_code"] = done.returncode
        return SList(done.stdout.splitlines())

    def line(self, name, args, depth=0):
        frame = sys._getframe(1 + depth)
        do = LINES.get(name)
        if do is None:
            raise unknown("%", name)
        if name not in ("time", "timeit"):
            args = expand(args, frame.f_locals)
        return do(args)

    def cell(self, name, args, body, offset=0):
        do = CELLS.get(name)
        if do is None:
            raise unknown("%%", name)
        return do(args, body, offset)

    def run_line_magic(self, name, line, _stack_depth=1):
        return self.line(name, line, 1)

    def run_cell_magic(self, name, line, cell):
        return self.cell(name, line, cell)

    def magic(self, text):
        name, _, args = text.lstrip("%").partition(" ")
        return self.line(name, args, 1)

    def help(self, name, source=False):
        """Print what there is to know of an object, as IPython's ? does; with source, as ?? does."""
        import inspect
        try:
            value = eval(name, ns)
        except kernel.interrupts:
            raise
        except Exception:
            print("Object `%s` not found." % name)
            return
        rows = []
        if callable(value):
            try:
                signature = str(inspect.signature(value))
                rows.append(("Init signature" if isinstance(value, type) else "Signature", name.rpartition(".")[2] + signature))
            except (TypeError, ValueError):
                pass
        else:
            rows += [("Type", type(value).__name__), ("String form", str(value)[:500])]
            if hasattr(value, "__len__"):
                rows.append(("Length", str(len(value))))
        code = None
        if source:
            try:
                code = inspect.getsource(value)
            except (TypeError, OSError):
                pass
        rows.append(("Docstring", inspect.getdoc(value) or "<no docstring>") if code is None else ("Source", code))
        if callable(value):
            rows.append(("Type", type(value).__name__))
        wide = max(len(label) for label, text in rows if "\n" not in text) + 2 if any("\n" not in text for _, text in rows) else 0
        for label, text in rows:
            print("%s:\n%s" % (label, text.rstrip()) if "\n" in text else (label + ":").ljust(wide) + text)


def unknown(sign, name):
    return UsageError("there is no magic %s%s here. There are %s; and for whole cells %s. Shell commands begin with !" % (
        sign, name, ", ".join("%" + n for n in sorted(LINES)), ", ".join("%%" + n for n in sorted(CELLS))))


def do_cd(args):
    words = [w for w in shlex.split(args) if w != "-q"]
    to = words[0] if words else "~"
    if to == "-":
        to = kernel.state.get("last_dir", os.getcwd())
    kernel.state["last_dir"], _ = os.getcwd(), os.chdir(os.path.expanduser(to))
    ns.setdefault("_dh", []).append(os.getcwd())
    if "-q" not in args.split():
        print(os.getcwd())


def do_env(args):
    name, sign, value = args.partition("=")
    if not sign:
        name, sign, value = args.partition(" ")
    name, value = name.strip(), value.strip()
    if not name:
        return dict(os.environ)
    if not sign:
        if name not in os.environ:
            raise UsageError("the environment has no variable %s" % name)
        return os.environ[name]
    os.environ[name] = value
    print("env: %s=%s" % (name, value))


PIP = "/var/lib/sandlot/pip-by-uv"  # of the agent's (guest/pip_by_uv.py)


def do_pip(args):
    import importlib.util
    kernel.follow_user_site()
    program = [sys.executable, PIP] if os.path.exists(PIP) else [sys.executable, "-m", "pip"]
    if program[1] != PIP and importlib.util.find_spec("pip") is None:
        raise UsageError("this Python has no pip")
    if re.search(r"\||;|&&|\s>", args):
        Shell.system(SHELL, shlex.join(program) + " " + args)
    else:
        ns["_exit_code"] = run(program + shlex.split(args))
    kernel.follow_user_site()


def format_time(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return "%.3g %s" % (seconds / size, unit)
    return "%.3g ns" % (seconds * 1e9)


def do_time(code, offset=0):
    body, last, quiet = kernel.compile("\n" * offset + (translate(code) or code), kernel.state["name"])
    before, start = os.times(), time.perf_counter()
    value = None
    try:
        codes = [part for part in (body, last) if part is not None]
        value = kernel.run(*codes) if codes else None
        if last is None:
            value = None
    finally:
        wall, after = time.perf_counter() - start, os.times()
        user, system = after[0] - before[0] + after[2] - before[2], after[1] - before[1] + after[3] - before[3]
        print("CPU times: user %s, sys: %s, total: %s\nWall time: %s" % (format_time(user), format_time(system), format_time(user + system), format_time(wall)))
    return None if quiet else value


def do_timeit(args, body=None, offset=0):
    import timeit
    number, repeat, words = 0, 7, args.split(" ")
    while words and re.match(r"-[nrtcpqo]", words[0]):
        word = words.pop(0)
        if word[:2] in ("-n", "-r"):
            count = int(word[2:] or words.pop(0))
            number, repeat = (count, repeat) if word[1] == "n" else (number, count)
    line = " ".join(words).strip()
    timer = timeit.Timer(body, line or "pass", globals=ns) if body is not None else timeit.Timer(line, globals=ns)
    number = number or timer.autorange()[0]
    each = [t / number for t in timer.repeat(repeat, number)]
    mean = sum(each) / len(each)
    deviation = (sum((t - mean) ** 2 for t in each) / len(each)) ** 0.5
    print("%s ± %s per loop (mean ± std. dev. of %d run%s, %s loop%s each)" % (
        format_time(mean), format_time(deviation), repeat, "s" * (repeat != 1), format(number, ","), "s" * (number != 1)))


OWN_NAMES = {"In", "Out", "get_ipython"}


def variables(kinds=""):
    """The names of the code's variables, or of those whose types have these names."""
    return sorted(n for n, v in ns.items() if not n.startswith("_") and n not in OWN_NAMES and (not kinds or type(v).__name__ in kinds.split()))


def no_variables(kinds):
    print("No variables match your requested type." if kinds else "Interactive namespace is empty.")


def do_who(kinds):
    names = variables(kinds)
    if not names:
        return no_variables(kinds)
    for n in range(0, len(names), 9):
        print("".join(name + "\t " for name in names[n:n + 9]))


def do_whos(kinds):
    rows = [(n, type(ns[n]).__name__, about(ns[n])) for n in variables(kinds)]
    if not rows:
        return no_variables(kinds)
    wide = [max(len(r[i]) for r in [*rows, ("Variable", "Type")]) + 3 for i in (0, 1)]
    print("Variable".ljust(wide[0]) + "Type".ljust(wide[1]) + " Data/Info\n" + "-" * (sum(wide) + 10))
    for name, kind, text in rows:
        print(name.ljust(wide[0]) + kind.ljust(wide[1]) + " " + text)


def about(value):
    if type(value).__name__ in ("dict", "list", "tuple"):
        return "n=%d" % len(value)
    if type(value).__name__ == "ndarray":
        return "%s: %s elems, type `%s`, %s bytes" % ("x".join(map(str, value.shape)), value.size, value.dtype, value.nbytes)
    if type(value).__name__ == "DataFrame":
        return "Shape: %s" % (value.shape,)
    try:
        text = str(value).replace("\n", "\\n")
    except Exception:
        return "<object with id %d (str() failed)>" % id(value)
    return text if len(text) < 50 else text[:25] + "<...>" + text[-25:]


def do_reset(args):
    if "-f" not in args.split():
        raise UsageError("%reset asks, and nobody can answer: %reset -f")
    for name in [n for n in ns if n not in OWN_NAMES and (not n.startswith("_") or re.fullmatch(r"_\d+", n))]:
        del ns[name]
    ns["Out"].clear()


def do_xdel(args):
    for name in args.split():
        if name not in ns:
            raise NameError("name %r is not defined" % name)
        del ns[name]


def do_history(args):
    numbers, chosen = False, []
    for word in args.split():
        m = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if word == "-n":
            numbers = True
        elif m:
            chosen += range(int(m[1]), int(m[2] or m[1]) + 1)
        else:
            raise UsageError("%history takes -n and the numbers of cells, such as 1-3 5")
    for n in chosen or range(1, len(ns["In"])):
        if n < len(ns["In"]) and ns["In"][n]:
            text = ns["In"][n]
            print("%s%s" % ("%4d:%s" % (n, "\n" if "\n" in text else " ") if numbers else "", text))


def do_load_ext(args):
    if args in ("autoreload", "storemagic"):
        return  # the first is a magic here already, the other changes nothing
    import importlib
    load = getattr(importlib.import_module(args), "load_ipython_extension", None)
    if load is None:
        print("The %s module is not an IPython extension." % args)
    else:
        load(SHELL)


def do_run(args):
    words, flags = shlex.split(args), []
    while words and words[0].startswith("-") and len(words[0]) == 2:
        flags.append(words.pop(0))
    if not words:
        raise UsageError("%run needs the name of a file")
    if "-m" in flags:
        import runpy
        old, sys.argv = sys.argv, list(words)
        try:
            ns.update((n, v) for n, v in runpy.run_module(words[0], run_name="__main__", alter_sys=False).items() if not n.startswith("__"))
        finally:
            sys.argv = old
        return
    path = words[0] if os.path.exists(words[0]) else words[0] + ".py"
    with open(path, encoding="utf-8") as f:
        code = compile(f.read(), path, "exec")
    old, sys.argv, had = sys.argv, [path, *words[1:]], ns.get("__file__")
    ns["__file__"] = path
    try:
        exec(code, ns)
    except SystemExit as e:
        if e.code not in (None, 0) and "-e" not in flags:
            raise
    finally:
        sys.argv = old
        ns.pop("__file__", None) if had is None else ns.update(__file__=had)


def do_nothing(args):
    """A magic about displays, which changes nothing here."""


def do_writefile(args, body, offset):
    words = shlex.split(args)
    more = "-a" in words or "--append" in words
    words = [w for w in words if not w.startswith("-")]
    if len(words) != 1:
        raise UsageError("%%writefile needs the name of one file")
    path = os.path.expanduser(expand(words[0], {}))
    there = os.path.exists(path)
    with open(path, "a" if more else "w", encoding="utf-8") as f:
        f.write(body if body.endswith("\n") or not body else body + "\n")
    print("%s %s" % ("Appending to" if more and there else "Overwriting" if there else "Writing", path))


def script(*program):
    def do(args, body, offset):
        words, keep, argv = shlex.split(args), {}, list(program)
        while words:
            word = words.pop(0)
            if word in ("--out", "--err", "--proc") and words:
                keep[word] = words.pop(0)
            elif word not in ("--no-raise-error", "--raise-error", "--bg"):
                argv.append(word)
        if not argv:
            raise UsageError("%%script needs the name of a program")
        if keep:
            done = subprocess.run(argv, input=body, capture_output=True, encoding="utf-8", errors="replace")
            for flag, text in (("--out", done.stdout), ("--err", done.stderr)):
                if flag in keep:
                    ns[keep[flag]] = text
                else:
                    (sys.stdout if flag == "--out" else sys.stderr).write(text)
            code = done.returncode
        elif os.path.basename(argv[0]) in ("bash", "sh") and "-s" not in argv:
            code = run([*argv, "-c", body])
        else:
            code = run(argv, stdin=body)
        if code and "--no-raise-error" not in args:
            raise subprocess.CalledProcessError(code, (body + "\n").encode("utf-8", "replace"))
    return do


class RichOutput:
    """A value that was shown while it was caught, in its forms."""
    def __init__(self, data=None, metadata=None, transient=None, update=False):
        self.data, self.metadata = data or {}, metadata or {}

    def display(self):
        kernel.publish(self.data)

    def _repr_mimebundle_(self, include=None, exclude=None):
        return self.data, self.metadata


class CapturedIO:
    """What %%capture has caught."""
    def __init__(self, stdout, stderr, outputs=None):
        self.out, self.err, self.shown = stdout, stderr, outputs or []

    stdout = property(lambda self: self.out.getvalue() if self.out else "")
    stderr = property(lambda self: self.err.getvalue() if self.err else "")
    outputs = property(lambda self: [RichOutput(forms) for forms in self.shown])

    def __str__(self):
        return self.stdout

    def show(self):
        sys.stdout.write(self.stdout)
        sys.stderr.write(self.stderr)
        for output in self.outputs:
            output.display()

    __call__ = show


class capture_output:
    """Catches what is printed and shown."""
    def __init__(self, stdout=True, stderr=True, display=True):
        self.wanted = stdout, stderr, display

    def __enter__(self):
        import io
        self.before = sys.stdout, sys.stderr, kernel.state["captured"]
        out, err = (io.StringIO() if wanted else None for wanted in self.wanted[:2])
        caught = CapturedIO(out, err)
        sys.stdout, sys.stderr = out or sys.stdout, err or sys.stderr
        if self.wanted[2]:
            kernel.state["captured"] = caught.shown
        return caught

    def __exit__(self, *_):
        sys.stdout, sys.stderr, kernel.state["captured"] = self.before


for part in (RichOutput, CapturedIO, capture_output):
    part.__module__ = "IPython.utils.capture"


def do_capture(args, body, offset):
    words = args.split()
    names = [w for w in words if not w.startswith("-")]
    with capture_output(*("--no-" + what not in words for what in ("stdout", "stderr", "display"))) as caught:
        body_, last, quiet = kernel.compile("\n" * offset + (translate(body) or body), kernel.state["name"])
        codes = [code for code in (body_, last) if code is not None]
        value = kernel.run(*codes) if codes else None
        if last is not None and value is not None and not quiet:
            kernel.display(value)
        kernel.add_figures()
    if names:
        ns[names[0]] = caught


class Reloader:
    """Imports modules again whose files have changed, before the next cell. What code has got from them changes with them."""
    mode, times = "0", {}

    def changed(self, follow):
        """The modules whose files have changed since the last look."""
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if name == "__main__" or not isinstance(path, str) or not path.endswith(".py"):
                continue
            try:
                now = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if self.times.setdefault(path, now) != now and follow(name):
                self.times[path] = now
                yield module

    def check(self, mode=None):
        follow = MARKED.__contains__ if (mode or self.mode) in ("1", "explicit") else lambda name: True
        for module in self.changed(follow):
            try:
                self.reload(module)
            except kernel.interrupts:
                raise
            except BaseException:
                import traceback
                print("[autoreload of %s failed: %s]" % (module.__name__, traceback.format_exc(10)), file=sys.stderr)

    def reload(self, module):
        import importlib.util
        old, compiled = dict(vars(module)), importlib.util.cache_from_source(module.__file__)
        if os.path.exists(compiled):  # its time is in seconds
            os.remove(compiled)
        importlib.reload(module)
        for name, before in old.items():
            update(before, vars(module).get(name))


MARKED, FUNCTION_PARTS = set(), ("__code__", "__defaults__", "__kwdefaults__", "__doc__", "__dict__", "__annotations__")


def update(old, new):
    """Make a function or a class what the new one of its name is."""
    if old is new or type(old) is not type(new):
        return
    if type(old) is type(update):
        if old.__closure__ is None and new.__closure__ is None:
            for part in FUNCTION_PARTS:
                setattr(old, part, getattr(new, part))
    elif isinstance(old, (staticmethod, classmethod)):
        update(old.__func__, new.__func__)
    elif isinstance(old, type):
        there = vars(new)
        for name, value in list(vars(old).items()):
            if name in ("__dict__", "__weakref__"):
                continue
            try:
                if name not in there:
                    delattr(old, name)
                elif type(value) is type(update):
                    update(value, there[name])
                else:
                    setattr(old, name, there[name])
            except (AttributeError, TypeError):
                pass  # it cannot be set
        for name in there.keys() - vars(old).keys():
            setattr(old, name, there[name])


RELOADER = Reloader()


def do_autoreload(args):
    mode = next((w.lower() for w in args.split() if not w.startswith("-")), "now")
    if mode == "now":
        return RELOADER.check("2")
    RELOADER.mode = mode
    kernel.state["before"] = None if mode in ("0", "off") else RELOADER.check
    list(RELOADER.changed(lambda name: False))  # from now on


def do_aimport(args):
    import importlib
    for name in args.replace(",", " ").split():
        if name.startswith("-"):
            MARKED.discard(name[1:])
        else:
            ns[name.partition(".")[0]] = importlib.import_module(name) if "." not in name else __import__(name)
            MARKED.add(name)


def do_config(args):
    m = re.fullmatch(r"InteractiveShell\.(\w+)\s*=\s*(.+)", args.strip())
    if m:
        setattr(SHELL, m[1], eval(m[2], ns))


def shown_as(mime):
    return lambda args, body, offset: kernel.add_rich(mime, body + "\n")


def command(name):
    return lambda args: Shell.system(SHELL, name + " " + args)


LINES = {"cd": do_cd, "pwd": lambda args: os.getcwd(), "env": do_env, "set_env": do_env, "pip": do_pip, "pip3": do_pip, "time": do_time, "timeit": do_timeit,
         "who": do_who, "whos": do_whos, "run": do_run, "who_ls": variables, "reset": do_reset, "xdel": do_xdel, "history": do_history, "hist": do_history,
         "load_ext": do_load_ext, "reload_ext": do_load_ext, "system": lambda args: Shell.getoutput(SHELL, args), "sx": lambda args: Shell.getoutput(SHELL, args),
         "lsmagic": lambda args: print(str(unknown("%", "")).split(". ", 1)[1])}
LINES.update(matplotlib=do_nothing, autoreload=do_autoreload, aimport=do_aimport, config=do_config)
LINES.update((name, command(name)) for name in ("ls", "cat", "mkdir", "rmdir", "rm", "cp", "mv"))
CELLS = {"bash": script(shell), "sh": script("/bin/sh"), "script": script(), "python": script(sys.executable), "python3": script(sys.executable),
         "time": lambda args, body, offset: do_time(args + "\n" + body if args else body, offset - 1 if args else offset),
         "timeit": do_timeit, "writefile": do_writefile, "file": do_writefile, "capture": do_capture,
         "html": shown_as("text/html"), "HTML": shown_as("text/html"), "markdown": shown_as("text/markdown"), "latex": shown_as("text/latex"), "svg": shown_as("image/svg+xml"),
         "javascript": lambda args, body, offset: kernel.display(Javascript(body)), "js": lambda args, body, offset: kernel.display(Javascript(body))}
SHELL = Shell()


# IPython.display, for when IPython is not installed.

class DisplayObject:
    mime = None

    def __init__(self, data=None, url=None, filename=None, metadata=None, **_):
        if data is not None and isinstance(data, (str, os.PathLike)) and filename is None and url is None:
            data, url, filename = self.find(os.fspath(data))
        self.data, self.url, self.filename, self.metadata = data, url, filename, metadata or {}
        if filename is not None:
            with open(filename, "rb") as f:
                self.data = f.read()
        elif url is not None:
            import urllib.request
            with urllib.request.urlopen(url) as r:
                self.data = r.read()

    def __repr__(self):
        return "<%s.%s object>" % (type(self).__module__, type(self).__name__)

    def find(self, data):
        """The data, URL and file name that a string means: the data itself, except in subclasses."""
        if data.startswith(("http://", "https://")) and "\n" not in data and " " not in data:
            return None, data, None
        return data, None, None

    def _repr_mimebundle_(self, include=None, exclude=None):
        data = self.data
        if isinstance(data, bytes) and not self.mime.startswith("image/"):
            data = data.decode("utf-8", "replace")
        return {self.mime: data}


class Image(DisplayObject):
    def find(self, data):
        url = data.startswith(("http://", "https://"))
        return None, data if url else None, None if url else data

    @property
    def mime(self):
        data = self.data or b""
        for magic_, mime in ((b"\xff\xd8", "image/jpeg"), (b"GIF8", "image/gif"), (b"RIFF", "image/webp")):
            if bytes(data[:4]).startswith(magic_):
                return mime
        return "image/png"


class SVG(DisplayObject):
    mime = "image/svg+xml"

    def find(self, data):
        return super().find(data) if data.startswith("http") or "<" in data else (None, None, data)


class JSON(DisplayObject):
    mime = "application/json"

    def find(self, data):
        return data, None, None


def display_class(name, mime):
    return type(name, (DisplayObject,), {"mime": mime, "__module__": "IPython.core.display", "__doc__": "Data to show as %s." % mime})


Javascript = display_class("Javascript", "application/javascript")


class Math(DisplayObject):
    mime = "text/latex"

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {self.mime: "$\\displaystyle %s$" % self.data.strip("$")}


class IFrame:
    def __init__(self, src, width="100%", height=400, extras=(), **params):
        self.src, self.width, self.height, self.params = src, width, height, params

    def _repr_html_(self):
        import html
        if self.params:
            from urllib.parse import urlencode
            return IFrame("%s?%s" % (self.src, urlencode(self.params)), self.width, self.height)._repr_html_()
        return '<iframe src="%s" width="%s" height="%s"></iframe>' % (html.escape(str(self.src)), self.width, self.height)


def frame_class(name, address):
    """A class for a page of some service, by an id."""
    def __init__(self, id, width=400, height=300, **named):
        self.id = id
        IFrame.__init__(self, address % id, width, height, **named)

    return type(name, (IFrame,), {"__init__": __init__, "__module__": "IPython.lib.display"})


class ProgressBar:
    """A bar that its display follows."""
    def __init__(self, total):
        self.total, self._progress, self.shown = total, 0, kernel.Handle()

    def __repr__(self):
        full = "=" * int(self._progress / self.total * 60)
        return "[%s] %d/%d" % (full.ljust(60), self._progress, self.total)

    def _repr_html_(self):
        return "<progress style='width:60ex' max='%s' value='%s'></progress>" % (self.total, self._progress)

    def display(self):
        self.shown.display(self)

    def update(self):
        self.shown.update(self)

    @property
    def progress(self):
        return self._progress

    @progress.setter
    def progress(self, value):
        self._progress = value
        self.update()

    def __iter__(self):
        self.display()
        self._progress = -1
        return self

    def __next__(self):
        self.progress += 1
        if self.progress >= self.total:
            raise StopIteration
        return self.progress


class Pretty(DisplayObject):
    def find(self, data):
        return data, None, None

    def __repr__(self):
        return str(self.data)

    _repr_mimebundle_ = None


class Code(Pretty):
    def __init__(self, data=None, url=None, filename=None, language=None):
        super().__init__(data, url, filename)


class Media:
    """Sound or video, of which a result says where it is: models cannot play it."""
    def __init__(self, data=None, filename=None, url=None, **_):
        self.data, self.source = data, filename or url or (data if isinstance(data, str) and len(data) < 1000 else None)

    def __repr__(self):
        return "<%s: %s>" % (type(self).__name__, self.source or "data of the cell")


class Audio(Media):
    pass


class Video(Media):
    pass


class FileLink:
    def __init__(self, path, **_):
        self.path = path

    def __repr__(self):
        return os.path.abspath(self.path)


class FileLinks(FileLink):
    def __repr__(self):
        lines = []
        for folder, _, names in sorted(os.walk(self.path)):
            lines += [folder + "/", *("  " + name for name in sorted(names))]
        return "\n".join(lines)


for part in (DisplayObject, Image, SVG, JSON, Math, Pretty, Code, ProgressBar):
    part.__module__ = "IPython.core.display"
for part in (IFrame, Audio, Video, FileLink, FileLinks):
    part.__module__ = "IPython.lib.display"

SHOWN = {"html": "text/html", "markdown": "text/markdown", "latex": "text/latex", "svg": "image/svg+xml", "json": "application/json",
         "png": "image/png", "jpeg": "image/jpeg", "javascript": "application/javascript", "pdf": "application/pdf", "pretty": "text/plain"}


def display_as(mime):
    def show(*values, raw=False, **named):
        if raw:
            values = [{mime: value} for value in values]
        kernel.display(*values, raw=raw, **named)
    return show


made = {}


def modules():
    """Small versions of IPython and its modules, by their names."""
    if made:
        return made
    for name in ("IPython", "IPython.display", "IPython.core", "IPython.core.display", "IPython.core.display_functions", "IPython.core.getipython",
                 "IPython.core.interactiveshell", "IPython.core.magic", "IPython.utils", "IPython.utils.capture", "IPython.utils.io"):
        made[name] = type(sys)(name, "A small part of IPython, which is not installed: display and what it shows.")
        made[name].__path__ = []
    show = made["IPython.display"]
    show.__dict__.update(DisplayObject=DisplayObject, TextDisplayObject=DisplayObject, Image=Image, SVG=SVG, JSON=JSON, Math=Math, IFrame=IFrame,
                         Pretty=Pretty, FileLink=FileLink, Audio=Audio, Video=Video, HTML=display_class("HTML", "text/html"), Markdown=display_class("Markdown", "text/markdown"),
                         Latex=display_class("Latex", "text/latex"), Javascript=Javascript, Code=Code, GeoJSON=display_class("GeoJSON", "application/geo+json"),
                         FileLinks=FileLinks, ProgressBar=ProgressBar, YouTubeVideo=frame_class("YouTubeVideo", "https://www.youtube.com/embed/%s"),
                         VimeoVideo=frame_class("VimeoVideo", "https://player.vimeo.com/video/%s"),
                         ScribdDocument=frame_class("ScribdDocument", "https://www.scribd.com/embeds/%s/content"),
                         DisplayHandle=kernel.Handle, display=kernel.display, update_display=kernel.update_display, clear_output=kernel.clear_output,
                         publish_display_data=kernel.publish, set_matplotlib_formats=lambda *_, **__: None, set_matplotlib_close=lambda *_, **__: None)
    for name in SHOWN:
        setattr(show, "display_" + name, display_as(SHOWN[name]))
    made["IPython.core.display"].__dict__.update(show.__dict__, __name__="IPython.core.display")
    made["IPython.core.display_functions"].__dict__.update(show.__dict__, __name__="IPython.core.display_functions")

    def get_ipython():
        return SHELL if sys._getframe(1).f_globals is ns else None

    for name in ("IPython", "IPython.core.getipython"):
        made[name].get_ipython = get_ipython
    def registers(kind):
        def register(f):
            SHELL.register_magic_function(f, kind)
            return f
        return register

    made["IPython.core.magic"].__dict__.update(register_line_magic=registers("line"), register_cell_magic=registers("cell"),
                                               register_line_cell_magic=registers("line_cell"))
    made["IPython.core.interactiveshell"].InteractiveShell = Shell
    for name in ("IPython.utils.capture", "IPython.utils.io"):
        made[name].__dict__.update(capture_output=capture_output, CapturedIO=CapturedIO, RichOutput=RichOutput)
    made["IPython"].__dict__.update(display=show, core=made["IPython.core"], version_info=(8, 30, 0), __version__="8.30.0")
    return made


builtins.__sandlot__ = SHELL
