# Sandlot's Python driver: runs cells that the agent sends on fd 3, in
# one namespace, and answers on fd 4. It uses the standard library alone, and
# imports at the start only what Python has loaded anyway, or built in: each
# further module would delay every new sandbox.
def _main():
    import _ast, _signal, builtins, io, os, sys

    requests, replies = os.fdopen(3, "rb", 65536), 4
    # 5 is memory shared with the agent, 6 and 7 are the other ends of 1 and 2, and
    # on 8 the agent says now and then that what was printed is to be written.
    BELL = 8
    for fd in (3, 4, 5, 6, 7, BELL):
        try:
            os.set_inheritable(fd, False)
        except OSError:
            BELL = None  # the agent gave fewer
    # How this process ends when the code has closed what it needs (interp.go).
    CLOSED = 113
    spare_out, spare_err = os.dup(1), os.dup(2)
    os.set_inheritable(spare_out, False)
    os.set_inheritable(spare_err, False)

    library = [p for p in sys.path if p]

    def late(name):
        """Import a module of the standard library, whatever lies in the current folder."""
        found = sys.modules.get(name)
        if found is None:
            path, sys.path[:] = sys.path[:], library
            try:
                found = __import__(name)
            finally:
                sys.path[:] = path
        return found

    try:
        from _json import encode_basestring as quote
    except ImportError:
        quote = late("json").dumps

    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __doc__=None)
    sys.modules["__main__"] = main
    # What Jupyter adds (notebook.py), and the folder of outputs that a result links to.
    NOTEBOOK, OUTPUT = (sys.argv[1:3] + ["", ""])[:2]
    sys.argv = [""]
    if sys.path and sys.path[0] != "":
        sys.path.insert(0, "")
    ns = main.__dict__
    state = {"mine": True, "n": 0, "mend": False, "link": None, "running": False, "held": False, "interrupted": False,
             "heard": 0, "sent": 0, "task": None, "loop": None, "rich": [], "rich_size": 0, "dropped": 0, "linked": 0}
    MAX_RESULT, MAX_RICH = 4 << 20, 8 << 20
    TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml", "text/html", "text/markdown", "text/latex", "application/json"]
    METHODS = {"image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_", "image/svg+xml": "_repr_svg_", "text/html": "_repr_html_",
               "text/markdown": "_repr_markdown_", "text/latex": "_repr_latex_", "application/json": "_repr_json_"}
    # 0x80 is inspect.CO_COROUTINE.
    write = os.write
    interrupts = (KeyboardInterrupt,)

    # Output is buffered while a cell runs, and written when 64 KiB have come,
    # whenever the agent asks for it, before anything else can write to the same
    # place, and at the end: each write costs a sandbox as much as a hundred prints.
    # Between cells each line is written at once.
    BUFFER = 65536
    thread = late("_thread")
    guard = thread.RLock()

    def closed(stream):
        try:
            return stream is None or getattr(stream, "closed", False)
        except ValueError:
            return True  # its buffer was detached

    class Raw(io.FileIO):
        def fileno(self):
            # Whoever asks may write to it: then no line may wait.
            number = super().fileno()
            for s in streams:
                if not closed(s) and s.buffer.raw is self and not s.line_buffering:
                    s.reconfigure(line_buffering=True)
            return number

    def open_stream(fd, mode=True):
        return io.TextIOWrapper(io.BufferedWriter(Raw(fd, "w", closefd=False), BUFFER), encoding="utf-8", errors="backslashreplace",
                                line_buffering=mode, write_through=True)

    streams = [open_stream(1), open_stream(2)]
    buffers = [s.buffer for s in streams]
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = streams
    flush_buffer = io.BufferedWriter.flush

    def flush():
        """Write what the driver's own streams hold. What the code has put in their place is its own affair."""
        for b in buffers:
            try:
                flush_buffer(b)
            except Exception:
                pass

    def flush_all():
        """At the end of a cell, write what the code's own streams hold as well, as Python does at its end."""
        for s in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
            try:
                s.flush()
            except Exception:
                pass
        flush()

    def buffering(yes):
        for s in streams:
            try:
                s.reconfigure(line_buffering=not yes or BELL is None)
            except Exception:
                pass

    def listen():
        while True:
            try:
                if not read(BELL, 4096):
                    return
            except OSError:
                return
            with guard:
                flush()

    # A process that the code forks must not answer for this one. Nobody asks it to
    # write, so it writes each line at once. The fork happens while the thread of
    # listen does not write: the lock of a stream would be held in the child for ever.
    def parent():
        flush()
        guard.acquire()

    def release():
        if guard._is_owned():  # a signal handler of the code may have ended parent before
            guard.release()

    def child():
        nonlocal guard
        guard = thread.RLock()
        state.update(mine=False, held=False, interrupted=False)
        buffering(False)
        if state["link"] is not None:
            state["link"].close()  # its end has to be seen when this one dies
            for fd in (6, 7):
                try:
                    os.close(fd)
                except OSError:
                    pass

    os.register_at_fork(before=parent, after_in_parent=release, after_in_child=child)

    def hold_interrupt():
        """Keep an interrupt until deliver_interrupt: Python drops what is raised in what it calls around a fork."""
        if thread.get_ident() == main_thread:
            state["held"] = True

    def deliver_interrupt():
        if thread.get_ident() != main_thread:
            return
        state["held"] = False
        if state["interrupted"]:
            state["interrupted"] = False
            raise KeyboardInterrupt

    main_thread = thread.get_ident()

    def ahead(modules, name, when=None, forks=False):
        """Write what was printed before a function writes, starts or ends something."""
        inner = getattr(modules[0], name, None)
        if inner is None:
            return

        def outer(*args, **named):
            if when is None or when(*args):
                flush()
            if not forks:
                return inner(*args, **named)
            hold_interrupt()
            try:
                return inner(*args, **named)
            finally:
                deliver_interrupt()

        outer.__name__ = outer.__qualname__ = name
        outer.__module__, outer.__doc__, outer.__wrapped__ = inner.__module__, inner.__doc__, inner
        for module in modules:
            if getattr(module, name, None) is inner:
                setattr(module, name, outer)

    def standard(fd=None, *_):
        return fd == 1 or fd == 2

    posix = sys.modules[os.system.__module__]
    for name in ("_exit", "abort", "kill", "killpg", "system", "execv", "execve", "posix_spawn", "posix_spawnp"):
        ahead([posix, os], name)
    for name in ("write", "writev", "pwrite", "close", "sendfile"):
        ahead([posix, os], name, standard)
    ahead([posix, os], "dup2", lambda fd=None, to=None, *_: standard(to))
    # Python 3.12 warns of a fork beside threads. The one of listen waits at one place.
    late("_warnings").filters.insert(0, ("ignore", None, DeprecationWarning, "sandlot_fork", 0))
    for name in ("fork", "forkpty"):
        quiet = {"__name__": "sandlot_fork", "inner": getattr(os, name), "hold_interrupt": hold_interrupt, "deliver_interrupt": deliver_interrupt}
        exec("def %s():\n    hold_interrupt()\n    try:\n        return inner()\n    finally:\n        deliver_interrupt()" % name, quiet)
        quiet[name].__wrapped__, quiet[name].__doc__ = quiet["inner"], quiet["inner"].__doc__
        setattr(posix, name, quiet[name])
        setattr(os, name, quiet[name])
    for name in ("raise_signal", "pthread_kill"):
        ahead([_signal, sys.modules.get("signal")], name)

    def on_interrupt(signum, frame):
        state["heard"] += 1
        if state["running"] and state["mine"]:
            if state["held"]:
                state["interrupted"] = True
                return
            raise KeyboardInterrupt
        if not state["mine"]:
            _signal.default_int_handler(signum, frame)

    _signal.signal(_signal.SIGINT, on_interrupt)

    # What is to be done when a module has been imported, once.
    imported = {}

    class Imports:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if path is None:
                user_site()
            if name not in imported:
                return None
            then = imported.pop(name)
            finders = (getattr(finder, "find_spec", None) for finder in list(sys.meta_path) if finder is not Imports)
            spec = next((s for s in (find(name, path) for find in finders if find) if s is not None), None)
            if spec is None or spec.loader is None:
                imported[name] = then  # it may be installed later
                return spec
            if isinstance(spec.loader, type):
                spec.loader = Loader(spec.loader)
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                try:
                    then(module)
                except Exception:
                    pass

            spec.loader.exec_module = exec_module
            return spec

    class Loader:
        """A loader of modules that are built in, which is a class of Python's own."""
        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            return getattr(self.real, name)

    sys.meta_path.insert(0, Imports)

    def when_imported(name, then):
        if name in sys.modules:
            then(sys.modules[name])
        else:
            imported[name] = then

    when_imported("_posixsubprocess", lambda m: ahead([m], "fork_exec", forks=True))
    when_imported("matplotlib.pyplot", lambda m: setattr(m, "show", figures))

    # With IPython its display is this one; without it a module of the name has what
    # is of use here.
    def ours(module):
        for name, mine in (("display", display), ("update_display", display), ("clear_output", clear_output), ("publish_display_data", publish)):
            if hasattr(module, name):
                setattr(module, name, mine)

    for name in ("IPython.core.display_functions", "IPython.core.display", "IPython.display"):
        when_imported(name, ours)

    class Last:
        """Is asked for what nobody found."""
        @staticmethod
        def find_spec(name, path=None, target=None):
            if path is None and fresh_folders():
                late("importlib").invalidate_caches()
                for finder in sys.meta_path:
                    find = getattr(finder, "find_spec", None)  # old ones have find_module alone
                    spec = find(name, None) if find and finder not in (Last, Imports) else None
                    if spec is not None:
                        return spec
            if NOTEBOOK and (name == "IPython" or name.startswith("IPython.") and not hasattr(sys.modules.get("IPython"), "__file__")):
                made = notebook()["modules"]().get(name)
                if made is not None:
                    return sys.modules["_frozen_importlib"].ModuleSpec(name, Made(made), is_package=True)
            return None

    class Made:
        def __init__(self, module):
            self.module = module

        def create_module(self, spec):
            return self.module

        def exec_module(self, module):
            pass

    sys.meta_path.append(Last)

    # What pip installs while this runs is found: the user's folder may not have been
    # there at the start, and other folders may have got links to further ones.
    looked = {}

    def fresh_folders():
        """Follow what was put into the folders of packages; say whether there was any."""
        fresh = False
        for path in list(sys.path):
            if not path.endswith("-packages"):
                continue
            try:
                changed = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if looked.get(path) != changed:
                looked[path], fresh = changed, True
                late("site").addsitedir(path, set(sys.path))
        return fresh

    def user_site():
        """Follow the user's folder of packages when it appears."""
        if state.get("in_site"):
            return  # asked by what it imports itself
        state["in_site"] = True
        try:
            add_user_site(late("site"))
        finally:
            state["in_site"] = False

    def add_user_site(site):
        if site.ENABLE_USER_SITE is False:
            return
        folder = site.getusersitepackages()
        if folder in sys.path or not os.path.isdir(folder):
            return
        before = sys.path[:]
        site.addsitedir(folder)
        new = [p for p in sys.path if p not in before]
        at = next((n for n, p in enumerate(before) if p.endswith(("site-packages", "dist-packages"))), len(before))
        sys.path[:] = before[:at] + new + before[at:]
        late("importlib").invalidate_caches()

    def notebook():
        found = state.get("notebook")
        if found is None:
            path, sys.path[:] = sys.path[:], library
            try:
                found = {"__name__": "sandlot_notebook", "kernel": kernel}
                exec(compile(NOTEBOOK, "<string>", "exec", dont_inherit=True), found)
            finally:
                sys.path[:] = path
            state["notebook"] = found
        return found

    # Nobody can answer a question.
    ask = builtins.input
    terminal = sys.stdin

    def input(prompt="", /):
        try:
            return ask(prompt)
        except EOFError:
            if sys.stdin is not terminal:
                raise
            raise EOFError("input() has nobody to answer it here: put the value into the code, or read it from a file") from None

    input.__doc__, input.__self__ = ask.__doc__, builtins
    builtins.input = input

    def getpass(prompt="Password: ", stream=None, **_):
        """Nobody can answer."""
        raise EOFError("getpass() has nobody to answer it here: read the value from a file or a variable of the environment")

    def no_password(module):
        module.getpass = module.unix_getpass = getpass

    when_imported("getpass", no_password)

    # The cells' lines, for tracebacks and inspect. They are linecache's as soon
    # as something imports that.
    sources = {}
    when_imported("linecache", lambda m: m.cache.update(sources))

    def remember(name, code):
        # Python 3.11 counts on the last line's end, too.
        sources[name] = (len(code), None, (code + "\n").splitlines(True), name)
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        if cache is not None:
            cache[name] = sources[name]

    def form(value):
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, list):
            return "[" + ",".join(map(form, value)) + "]"
        if isinstance(value, dict):
            return "{" + ",".join([quote(k) + ":" + form(v) for k, v in value.items()]) + "}"
        return quote(value)

    def identity(fd):
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    own = [(fd, identity(fd)) for fd in (3, replies)]

    def changed():
        """Whether the code has closed what this driver needs, or something else has its number now."""
        try:
            return any(identity(fd) != was for fd, was in own)
        except OSError:
            return True

    def answer(reply):
        if not state["mine"]:
            os._exit(0)  # a fork that came back is nobody to answer
        data = form(reply).encode("utf-8", "replace") + b"\n"
        try:
            if changed():
                os._exit(CLOSED)
            while data:
                data = data[write(replies, data):]
        except OSError:
            os._exit(CLOSED)

    def keep(mime, data):
        base64 = late("base64")
        if data is None:
            return
        if isinstance(data, tuple):
            data = data[0]
        if not isinstance(data, (str, bytes, bytearray)):
            data = late("json").dumps(data)
        if isinstance(data, str) and mime.startswith("image/") and mime != "image/svg+xml":
            data = base64.b64decode(data)
        data = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
        if state["rich_size"] + len(data) > MAX_RICH:
            state["dropped"] += 1
            return
        state["rich_size"] += len(data)
        state["rich"].append({"mime": mime, "data": base64.b64encode(data).decode()})

    def show_rich(value):
        """Keep a value's best form. True: that says all; "text": its text is to be shown; False: it has none."""
        if isinstance(value, type):
            return False
        if type(value).__module__.startswith("matplotlib.") and callable(getattr(value, "savefig", None)):
            picture(value)
            return True
        bundle = getattr(value, "_repr_mimebundle_", None)
        if callable(bundle):
            found = bundle(include=None, exclude=None)
            if choose((found[0] if isinstance(found, tuple) else found) or {}, value):
                return True
        for mime in TYPES:
            method = getattr(value, METHODS.get(mime, ""), None)
            if callable(method):
                data = method()
                if data is not None:
                    return keep_html(data, value) if mime == "text/html" else keep(mime, data) or True
        return False

    def choose(bundle, value=None):
        for mime in TYPES:
            if mime in bundle:
                return keep_html(bundle[mime], value) if mime == "text/html" else keep(mime, bundle[mime]) or True
        return False

    def keep_html(data, value):
        """A value's HTML stands where its text says nothing, and is linked to where that says enough."""
        text = "" if value is None else text_of(value)
        if not text or text[0] == "<" and text[-1] == ">" and " object" in text and len(text) < 300 or not OUTPUT:
            keep("text/html", data)
            return True
        if isinstance(data, tuple):
            data = data[0]
        data = str(data)[:MAX_RICH].encode("utf-8", "replace")
        try:
            state["linked"] += 1
            path = keep_file("value-%d-%d.html" % (os.getpid(), state["linked"]), data)
        except OSError:
            return "text"
        keep("text/uri-list", "# %d bytes\nfile://%s" % (len(data), path))
        return "text"

    files = []

    def keep_file(name, data):
        """Write a file that a result links to, and remove the oldest."""
        path = OUTPUT + "/" + name
        os.makedirs(OUTPUT, exist_ok=True)
        files.append(path)
        with io.open(path, "wb") as f:
            f.write(data)
        while len(files) > 32:
            try:
                os.remove(files.pop(0))
            except OSError:
                pass
        return path

    class Handle:
        """What display returns with a display_id."""
        def __init__(self, display_id=None):
            self.display_id = display_id

        def display(self, value, **named):
            display(value, **named)

        update = display

    def display(*values, raw=False, clear=False, display_id=None, **_):
        """Show values: as image, HTML or other rich form where they have one."""
        if clear:
            clear_output()
        for v in values:
            try:
                shown = choose(v) if raw and isinstance(v, dict) else show_rich(v)
            except interrupts:
                raise
            except Exception:
                shown = False
            if shown is True:
                continue
            if raw and isinstance(v, dict):
                v = v.get("text/plain", v)
            print(repr(v) if not isinstance(v, str) else v)
        return Handle(display_id) if display_id else None

    def publish(data, *_, **__):
        display(data, raw=True)

    def clear_output(*_, **__):
        state.update(rich=[], rich_size=0)

    builtins.display = display

    def picture(figure):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight")
        keep("image/png", buffer.getvalue())
        plt = sys.modules.get("matplotlib.pyplot")
        if plt is not None:
            plt.close(figure)

    def figures(*_, **__):
        """Keep what pyplot has drawn, in its order."""
        plt = sys.modules.get("matplotlib.pyplot")
        for number in plt.get_fignums() if plt is not None else ():
            picture(plt.figure(number))

    def text_of(value):
        text = repr(value)
        if not isinstance(text, str):
            text = str(text)
        if len(text) > MAX_RESULT:
            text = text[:MAX_RESULT] + "… [%d characters in all]" % len(text)
        return text.encode("utf-8", "replace").decode()

    def silent(code, last):
        # After the last expression there are brackets, semicolons and comments only.
        lines = code.encode("utf-8", "replace").splitlines()[last.end_lineno - 1:]
        lines[0] = lines[0][last.end_col_offset:]
        return any(line.split(b"#")[0].rstrip().endswith(b";") for line in lines)

    def compile_code(code, name):
        # The quickest cells are one expression on one line. What is more than that
        # is mostly seen by these signs, or fails here, hardly ever with a warning that
        # then comes twice.
        if len(code) < 500 and not (code[:1].isspace() or "\n" in code or ";" in code or "\\" in code or "=" in code or "import " in code):
            try:
                return None, compile(code, name, "eval", _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True), False
            except Exception:
                pass
        tree = compile(code, name, "exec", _ast.PyCF_ONLY_AST | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        last, quiet = None, False
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            last = _ast.Expression(tree.body.pop().value)
            quiet = silent(code, last.body)
        flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        body = compile(tree, name, "exec", flags, dont_inherit=True) if tree.body else None
        value = compile(last, name, "eval", flags, dont_inherit=True) if last is not None else None
        return body, value, quiet

    def compile_cell(code, name):
        try:
            return compile_code(code, name)
        except SyntaxError as e:
            wrong = e
        python = notebook()["translate"](code) if NOTEBOOK else None
        if python is None:
            raise wrong
        try:
            return compile_code(python, name)
        except SyntaxError as e:
            lines = code.split("\n")
            if e.lineno and e.lineno <= len(lines):
                e.text = lines[e.lineno - 1]
            raise e

    def loop():
        asyncio = late("asyncio")
        if state["loop"] is None or state["loop"].is_closed():
            state["loop"] = asyncio.new_event_loop()
            asyncio.set_event_loop(state["loop"])
        return state["loop"]

    def run_code(code):
        result = eval(code, ns)
        if not (code.co_flags & 0x80):
            return result
        task = loop().create_task(result)
        try:
            return loop().run_until_complete(task)
        except interrupts:
            task.cancel()
            try:
                loop().run_until_complete(task)
            except BaseException:
                pass
            raise

    def report(exc, name):
        exc_type = type(exc)
        try:
            tb = exc.__traceback__
            while tb is not None and tb.tb_frame.f_code.co_filename == "<string>":
                tb = tb.tb_next
            # Frames of this driver may stand between the user's, with await.
            trace = late("traceback").TracebackException(exc_type, exc, tb, compact=True)
            seen = set()
            def clean(t):
                if t is None or id(t) in seen:
                    return
                seen.add(id(t))
                for i in range(len(t.stack) - 1, -1, -1):
                    f = t.stack[i]
                    if f.filename == "<string>" or (f.filename.endswith(("asyncio/base_events.py", "asyncio/runners.py")) and i == 0):
                        del t.stack[i]
                clean(t.__cause__)
                clean(t.__context__)
            clean(trace)
            full = "".join(trace.format())
        except RecursionError:
            full = "RecursionError: maximum recursion depth exceeded\n"
        except Exception as broken:
            full = "%s (its text could not be made: %r)\n" % (exc_type.__name__, type(broken).__name__)
        try:
            short = "".join(late("traceback").format_exception_only(exc_type, exc)).strip().rsplit("\n", 1)[-1]
        except Exception:
            short = exc_type.__name__
        limit = 200000
        if len(full) > limit:
            full = full[:limit // 2] + "\n… [cut] …\n" + full[-limit // 2:]
        if len(short) > limit // 10:
            short = short[:limit // 10] + "… [cut]"
        return short.encode("utf-8", "replace").decode(), full.encode("utf-8", "replace").decode()

    def mend_streams():
        # Code may have closed or replaced them.
        for fd, spare in ((1, spare_out), (2, spare_err)):
            try:
                os.fstat(fd)
            except OSError:
                os.dup2(spare, fd)
        for n, name in enumerate(("stdout", "stderr")):
            if closed(streams[n]):
                streams[n] = open_stream(n + 1)
                buffers[n] = streams[n].buffer
            if closed(getattr(sys, name, None)):
                setattr(sys, name, streams[n])
                setattr(sys, "__%s__" % name, streams[n])

    SIGNAL = 0.25  # seconds: how long a signal may be on its way

    def hear(sent):
        """Wait until the signals that the agent has sent in this process's life are heard: a cell may
        have ended by itself before the one that was to stop it, which would stop the next one."""
        missing = sent - state["sent"]
        if missing > 0 and state["heard"] < missing:
            time = late("time")
            end = time.monotonic() + SIGNAL
            while state["heard"] < missing and time.monotonic() < end:
                time.sleep(0.002)
        state["sent"], state["heard"] = sent, 0

    def run_cell(token, name, code):
        reply = {"id": token, "ok": False, "exit": 1}
        remember(name, code)
        state.update(name=name, rich=[], rich_size=0, dropped=0)
        ns.pop("__warningregistry__", None)
        value = None
        buffering(True)
        try:
            state["running"] = True
            body, last, quiet = compile_cell(code, name)
            if body is not None:
                run_code(body)
            if last is not None:
                value = run_code(last)
                if value is not None:
                    ns["_"] = value
                    if not quiet:
                        shown = show_rich(value) if type(value).__module__ != "builtins" else False
                        reply["result"] = text_of(value)
            figures()
            state["running"] = False
            reply["ok"], reply["exit"] = True, 0
        except SystemExit as e:
            state["running"] = False
            if e.code is None:
                reply["exit"] = 0
            elif isinstance(e.code, int):
                reply["exit"] = e.code & 0xFF
            else:
                print(e.code, file=sys.stderr)
                reply["exit"] = 1
            reply["ok"] = reply["exit"] == 0
        except BaseException as e:
            state["running"] = False
            if isinstance(e, interrupts):
                reply["interrupted"], reply["exit"] = True, 130
            reply["error"], reply["traceback"] = report(e, name)
            del e
        finally:
            state["running"] = False
        if state["dropped"]:
            print("[%d rich values were left out: they are too large]" % state["dropped"], file=sys.stderr)
        reply["rich"] = state["rich"]
        flush_all()
        buffering(False)
        return reply

    # Cells that the host gives to this driver itself. What a cell writes is read
    # here then, when it ends, unless the agent supervises it: the shared words say
    # so. The protocol is described in interp/direct/direct.go.
    STATE, ASKED, SUPERVISED, READS_OUT, READS_ERR, NOTIFY, KEEPS_OUT, KEEPS_ERR, SIGNALS = range(9)
    IDLE, RUNNING, FINISHING = range(3)
    FIONREAD, MAX_WHOLE = 0x541B, 256 << 10
    ASK = 10  # seconds: a host that lost its connection has asked the agent by then

    class Direct:
        def __init__(self, ticket, path):
            socket, mmap = late("_socket"), late("mmap")
            self.size = late("fcntl").ioctl
            self.sleep, self.now = late("time").sleep, late("time").monotonic
            self.fence = late("_thread").allocate_lock()
            select = late("select")
            # Each system call costs a cell more than most of them take: this one
            # tells both what was written and whether the streams are still there.
            streams = select.poll()
            self.link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            for fd, events in ((6, select.POLLIN), (7, select.POLLIN), (1, 0), (2, 0), (self.link.fileno(), 0)):
                streams.register(fd, events)
            self.streams, self.readable, self.closed = streams.poll, select.POLLIN, select.POLLNVAL
            self.memory = mmap.mmap(5, 4096)
            self.word = memoryview(self.memory).cast("I")
            self.word[STATE] = self.cell = 0  # this connection counts its cells from 1
            self.peek = socket.MSG_PEEK | socket.MSG_DONTWAIT
            self.link.settimeout(5)
            self.link.connect(path)
            self.link.sendall(b"SANDLOTD" + bytes.fromhex(ticket))
            if self.link.recv(1) != b"\x06":
                raise OSError("refused")
            self.link.settimeout(None)
            self.rest = b""

        def say(self, word):
            """Write the state so that the agent sees it before this reads on."""
            self.word[STATE] = self.cell | word
            for _ in (1, 2):  # a release, and an acquire after it
                with self.fence:
                    pass

        def take(self):
            """Run the next cell. False: the host is gone."""
            data = self.rest or self.link.recv(65536)
            while data and b"\n" not in data:
                more = self.link.recv(65536)
                data = data + more if more else more
            if not data:
                return False
            head, _, code = data.partition(b"\n")
            token, size, limit = map(int, head.split())
            code, self.rest = code[:max(size, 0)], code[max(size, 0):]
            if size < 0:
                return self.warm()
            if len(code) < size:
                parts, size = [code], size - len(code)
                while size > 0:
                    part = self.link.recv(min(size, 1 << 20))
                    if not part:
                        return False
                    parts.append(part)
                    size -= len(part)
                code = b"".join(parts)
            self.cell = (token & 0xFFFF) << 16
            self.say(RUNNING)
            while self.word[READS_OUT] or self.word[READS_ERR]:
                self.sleep(0.0001)
            if self.word[SIGNALS] != state["sent"]:
                hear(self.word[SIGNALS])
            state["n"] += 1
            reply = run_cell(token, "<code %d>" % state["n"], code.decode("utf-8", "replace"))
            if not state["mine"]:
                os._exit(0)
            self.say(FINISHING)
            while self.word[ASKED] and not self.word[SUPERVISED]:
                self.sleep(0.0001)
            kept = self.word[SUPERVISED] or self.end(reply, limit)
            if not kept:
                return False
            if kept is not DONE:
                state["mend"] = True
                answer(reply)
            self.word[STATE] = self.cell | IDLE
            return True

        def warm(self):
            """Do once what each cell does, for no one, so that the first one is as quick."""
            compile_code("a + 1", "<start>")
            body, last, _ = compile_code("a = 1\na + 1", "<start>")
            names = {}
            eval(body, names)
            form({"id": 0, "ok": True, "exit": 0, "result": text_of(eval(last, names)), "rich": []})
            flush()
            self.say(IDLE)
            self.streams(0)
            self.link.sendall(b"0 0 0\n")
            return True

        def end(self, reply, limit):
            """Answer the host, or leave that to the agent when there is too much to say."""
            out = err = 0
            cut = False
            for fd, event in self.streams(0):
                if fd == 6 and event & self.readable:
                    out = self.waiting(6)
                elif fd == 7 and event & self.readable:
                    err = self.waiting(7)
                elif fd < 3:
                    state["mend"] = True
                elif event & self.closed:
                    cut = True  # the code has closed it
            data = form(reply).encode("utf-8", "replace")
            if max(out, err, len(reply.get("result", "").encode("utf-8", "replace"))) > limit or len(data) > MAX_WHOLE or \
                    self.word[NOTIFY] or self.word[KEEPS_OUT] or self.word[KEEPS_ERR] or cut:
                self.say(RUNNING)
                if not cut:
                    self.link.sendall(b"0 0 0\n")
                until = self.now() + ASK
                while not self.word[SUPERVISED]:
                    if self.now() > until if cut else self.gone():
                        self.word[STATE] = self.cell | IDLE
                        return False
                    self.sleep(0.0002)
                return True
            if out or err:
                out, err = read(6, out) if out else b"", read(7, err) if err else b""
                if rewrites(out) or rewrites(err):
                    reply["raw"] = [keep_raw("stdout", out), keep_raw("stderr", err)]
                    data = form(reply).encode("utf-8", "replace")
                data = b"%d %d %d\n%b%b%b" % (len(data), len(out), len(err), data, out, err)
            else:
                data = b"%d 0 0\n%b" % (len(data), data)
            self.word[STATE] = self.cell | IDLE
            self.link.sendall(data)
            return DONE

        def waiting(self, fd):
            """How many bytes of a stream nobody has read."""
            return int.from_bytes(self.size(fd, FIONREAD, b"\0\0\0\0"), sys.byteorder)

        def gone(self):
            try:
                return not self.link.recv(1, self.peek)
            except BlockingIOError:
                return False

        def close(self):
            self.word[STATE] = self.cell | IDLE
            try:
                self.link.close()
            except OSError:
                pass  # the code has closed it

    def rewrites(data):
        """Whether a terminal would show something else than these bytes. The agent asks the same (capture.go)."""
        return b"\x1b" in data or b"\b" in data or b"\r" in data and data.count(b"\r") != data.count(b"\r\n")

    def keep_raw(stream, data):
        """Write an output to a file as it came, and return its name; "" where there is none."""
        if not OUTPUT or not rewrites(data):
            return ""
        try:
            state["linked"] += 1
            return keep_file("%s-%d-%d.txt" % (stream, os.getpid(), state["linked"]), data)
        except OSError:
            return ""

    DONE, read = object(), os.read

    def connect(token, where):
        """Take cells from the host from now on."""
        try:
            ticket, path = where.split(" ", 1)
            made = Direct(ticket, path)
        except Exception:
            answer({"id": token, "ok": False})
            return None
        answer({"id": token, "ok": True})
        state["link"] = made.link
        return made

    class kernel:
        """What notebook.py may use."""

    for name, value in dict(ns=ns, state=state, interrupts=interrupts, keep=keep, display=display, clear_output=clear_output, publish=publish,
                            Handle=Handle, user_site=user_site, compile=compile_cell, run=run_code).items():
        setattr(kernel, name, staticmethod(value) if callable(value) and not isinstance(value, type) else value)
    kernel.own_output = staticmethod(lambda: getattr(sys, "stdout", None) is streams[0] and sys.stderr is streams[1])
    builtins.get_ipython = lambda: notebook()["SHELL"]
    if BELL is not None:
        late("_thread").start_new_thread(listen, ())
    answer({"id": 0, "ok": True})
    direct = None
    while True:
        try:
            if direct is None or state["mend"] or closed(getattr(sys, "stdout", None)) or closed(getattr(sys, "stderr", None)):
                state["mend"] = False
                mend_streams()
            if direct is not None:
                try:
                    if direct.take():
                        continue
                except Exception:
                    pass  # code of the user has closed something of it
                direct.close()
                direct = state["link"] = None
            if changed():
                os._exit(CLOSED)
            head = requests.readline().split()
            if not head or not state["mine"]:
                os._exit(CLOSED if state["mine"] and changed() else 0)
            token, n, size, sent = map(int, head)
            text = requests.read(size).decode("utf-8", "replace")
            if n < 0:
                direct = connect(token, text)
                continue
            hear(sent)
            state["n"] = max(state["n"] + 1, n)
            answer(run_cell(token, "<code %d>" % state["n"], text))
        except KeyboardInterrupt:
            state["running"] = False
            continue


_main()
