# Sandlot's Python driver: it runs the cells that the agent sends on fd 3, in one
# namespace, and replies on fd 4. It uses only the standard library, and imports at
# the start only modules that Python has loaded already or that are built in: every
# other module would delay each new sandbox.
# With ast, json, linecache, signal and traceback this took 38 ms of a boot of 200 in gVisor on two
# cores, and 2 MB of each idle sandbox. So the driver reads frames and writes JSON itself, with the
# C function that the json module uses, and keeps the source lines of cells in a table until
# something imports linecache. What it needs later it imports from the standard library alone
# (stdlib), whatever the current folder has.
def _main():
    import _ast, _signal, builtins, io, os, sys

    requests, replies = os.fdopen(3, "rb", 65536), 4
    # 5 is memory shared with the agent, 6 and 7 are the read ends of 1 and 2, and a
    # byte on 8 is the agent's request to write the buffered output.
    FLUSH_PIPE = 8
    for fd in (3, 4, 5, 6, 7, FLUSH_PIPE):
        try:
            os.set_inheritable(fd, False)
        except OSError:
            FLUSH_PIPE = None  # the agent has passed fewer descriptors
    # The exit code when the code has closed the driver's pipes (proc.go).
    CLOSED_PIPES_EXIT = 113
    spare_in, spare_out, spare_err = os.dup(0), os.dup(1), os.dup(2)
    for fd in (spare_in, spare_out, spare_err):
        os.set_inheritable(fd, False)

    library, finders = [p for p in sys.path if p], list(sys.meta_path)

    def stdlib(name):
        """Import a module of the standard library, even when the current folder has one of that name, or the code has changed how modules are found."""
        found = sys.modules.get(name)
        if found is None:
            path, sys.path, found_by, sys.meta_path = sys.path, library[:], sys.meta_path, finders
            try:
                found = __import__(name)
            finally:
                sys.path, sys.meta_path = path, found_by
        return found

    try:
        from _json import encode_basestring as quote
    except ImportError:
        quote = stdlib("json").dumps

    main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __doc__=None)
    sys.modules["__main__"] = main
    TOOLS = "/run/mcp/python"
    # The folder for files that results link to.
    OUTPUT = (sys.argv[1:] + [""])[0]
    sys.argv = [""]
    if sys.path and sys.path[0] != "":
        sys.path.insert(0, "")
    ns = main.__dict__
    state = {"is_driver": True, "cell": 0, "repair": False, "conn": None, "running": False, "delay_interrupt": False, "interrupt_delayed": False,
             "signals_received": 0, "signals_sent": 0, "task": None, "loop": None, "rich": [], "rich_size": 0, "dropped": 0, "linked_files": 0, "displays": {}, "clear": False, "libc": None,
             "marked": False, "pretty": None, "ioctl": None, "pipes_replaced": False, "written": False, "future": 0, "captured": None, "before": None,
             "moved": False, "value": None, "settled": True}
    MAX_RESULT, MAX_RICH = 4 << 20, 8 << 20
    TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml", "text/html", "text/markdown", "text/latex", "application/json"]
    METHODS = {"image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_", "image/svg+xml": "_repr_svg_", "text/html": "_repr_html_",
               "text/markdown": "_repr_markdown_", "text/latex": "_repr_latex_", "application/json": "_repr_json_"}
    # 0x80 is inspect.CO_COROUTINE.
    write = os.write
    interrupts = (KeyboardInterrupt,)

    class kept:
        """What the driver calls of a module: the code may replace it there."""
        def __init__(self, module, *names):
            for name in names:
                setattr(self, name, getattr(module, name))

    # While a cell runs, its output is buffered, since a write takes as long as a hundred
    # prints. It is written when 64 KiB are buffered, when the agent requests it, before
    # anything else may write to the same file, and at the end of the cell. Between cells
    # each line is written at once.
    BUFFER = 65536
    thread = kept(stdlib("_thread"), "RLock", "allocate_lock", "get_ident", "start_new_thread")
    get_ident = thread.get_ident
    clock = kept(stdlib("time"), "monotonic", "sleep")
    io = kept(io, "BufferedWriter", "BytesIO", "FileIO", "TextIOWrapper", "open")
    flush_lock = thread.RLock()

    def closed(stream):
        try:
            return stream is None or getattr(stream, "closed", False)
        except ValueError:
            return True  # its buffer was detached

    write_file = io.FileIO.write
    write_buffer = io.BufferedWriter.write
    # How the cell writes to both streams: so many bytes to stdout, then so many to stderr, and so on, before those that
    # the last stream has counted. What is more is not counted.
    order, MAX_ORDER = [], 20_000
    last_stream = None

    class Buffer(io.BufferedWriter):
        count = 0

        def write(self, data):
            if self is not last_stream:
                change_stream(self)
            n = write_buffer(self, data)
            self.count += n
            return n

    def change_stream(to):
        nonlocal last_stream
        if len(order) < MAX_ORDER:
            order.append(last_stream.count)
        last_stream.count = 0
        last_stream = to

    def begin_order():
        nonlocal last_stream
        order.clear()
        last_stream = buffers[0]
        buffers[0].count = buffers[1].count = 0

    class Raw(io.FileIO):
        def write(self, data):
            state["written"] = True
            return write_file(self, data)

        def fileno(self):
            # The caller may write to the descriptor: from now on buffer no more than a line.
            number = super().fileno()
            for s in streams:
                if not closed(s) and s.buffer.raw is self and not s.line_buffering:
                    s.reconfigure(line_buffering=True)
            return number

    def open_stream(fd, mode=True):
        return io.TextIOWrapper(Buffer(Raw(fd, "w", closefd=False), BUFFER), encoding="utf-8", errors="backslashreplace",
                                line_buffering=mode, write_through=True)

    streams = [open_stream(1), open_stream(2)]
    buffers = [s.buffer for s in streams]
    begin_order()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = streams
    flush_buffer = io.BufferedWriter.flush

    def flush():
        """Write the buffered output of the driver's streams. Streams that the code has set are not flushed."""
        for b in buffers:
            try:
                flush_buffer(b)
            except Exception:
                pass

    def flush_all():
        """Write all buffered output at the end of a cell, that of C and of streams that the code has set, too, as Python does at its exit."""
        if state["libc"] is not None:
            state["libc"].fflush(None)
        for s in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
            try:
                s.flush()
            except Exception:
                pass
        flush()

    def buffering(yes):
        for s in streams:
            try:
                s.reconfigure(line_buffering=not yes or FLUSH_PIPE is None)
            except Exception:
                pass

    def flush_on_request():
        while True:
            try:
                if not read(FLUSH_PIPE, 4096):
                    return
            except OSError:
                return
            with flush_lock:
                flush()

    def follow_libc(ctypes):
        """Keep the order of what Python and C write: before a call of C, Python's output is written, and C's after it."""
        try:
            state["libc"] = libc = ctypes.CDLL(None)
            libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)
        except Exception:
            return
        init, fflush = ctypes.CDLL.__init__, libc.fflush

        def __init__(self, *args, **named):
            init(self, *args, **named)
            if isinstance(self, ctypes.PyDLL):
                return

            class _FuncPtr(self._FuncPtr):
                _flags_, _restype_ = self._FuncPtr._flags_, self._FuncPtr._restype_

                def __call__(self, *args, **named):
                    flush()
                    try:
                        return super().__call__(*args, **named)
                    finally:
                        fflush(None)

            self._FuncPtr = _FuncPtr

        __init__.__doc__, __init__.__wrapped__ = init.__doc__, init
        ctypes.CDLL.__init__ = __init__

    # A process that the code forks must not reply for this one. It gets no requests to
    # flush, so it writes each line at once. A fork waits until the thread of
    # flush_on_request does not write: otherwise the child might inherit a locked stream.
    def before_fork():
        flush()
        flush_lock.acquire()

    def after_fork_in_parent():
        if flush_lock._is_owned():  # a signal handler of the code may have interrupted before_fork
            flush_lock.release()

    def after_fork_in_child():
        nonlocal flush_lock
        flush_lock = thread.RLock()
        state.update(is_driver=False, delay_interrupt=False, interrupt_delayed=False)
        buffering(False)
        if state["conn"] is not None:
            state["conn"].close()  # so that the host sees its end when the driver dies
            for fd in (6, 7):
                try:
                    os.close(fd)
                except OSError:
                    pass

    os.register_at_fork(before=before_fork, after_in_parent=after_fork_in_parent, after_in_child=after_fork_in_child)

    def delay_interrupt():
        """Delay interrupts until deliver_interrupt: Python ignores an exception in the functions that it calls around a fork."""
        if get_ident() == main_thread:
            state["delay_interrupt"] = True

    def deliver_interrupt():
        if get_ident() != main_thread:
            return
        state["delay_interrupt"] = False
        if state["interrupt_delayed"]:
            state["interrupt_delayed"] = False
            raise KeyboardInterrupt

    main_thread = get_ident()

    def flush_before(modules, name, when=None, forks=False):
        """Make a function flush before it runs, as it writes to a file, or starts or ends a process."""
        inner = getattr(modules[0], name, None)
        if inner is None:
            return

        def outer(*args, **named):
            if when is None or when(*args):
                flush()
            if not forks:
                return inner(*args, **named)
            delay_interrupt()
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

    def moved(fd=None, *_):
        state["moved"] = state["moved"] or standard(fd)  # a descriptor may be another file now
        return standard(fd)

    posix = sys.modules[os.system.__module__]
    for name in ("_exit", "abort", "kill", "killpg", "system", "execv", "execve", "posix_spawn", "posix_spawnp"):
        flush_before([posix, os], name)
    for name in ("write", "writev", "pwrite", "sendfile"):
        flush_before([posix, os], name, standard)
    flush_before([posix, os], "close", moved)
    def replaced(fd=None, to=None, *_):
        if to in (6, 7) and state["is_driver"]:
            state["pipes_replaced"] = True  # the driver cannot read its output any more: the agent does
        return moved(to)

    flush_before([posix, os], "dup2", replaced)
    # Python 3.12 warns of a fork in a process with threads. That of flush_on_request does no harm: it waits at one place.
    stdlib("_warnings").filters.insert(0, ("ignore", None, DeprecationWarning, "sandlot_fork", 0))
    for name in ("fork", "forkpty"):
        quiet = {"__name__": "sandlot_fork", "inner": getattr(os, name), "delay_interrupt": delay_interrupt, "deliver_interrupt": deliver_interrupt}
        exec("def %s():\n    delay_interrupt()\n    try:\n        return inner()\n    finally:\n        deliver_interrupt()" % name, quiet)
        quiet[name].__wrapped__, quiet[name].__doc__ = quiet["inner"], quiet["inner"].__doc__
        setattr(posix, name, quiet[name])
        setattr(os, name, quiet[name])
    for name in ("raise_signal", "pthread_kill"):
        flush_before([_signal, sys.modules.get("signal")], name)

    stop_by_interrupt = _signal.default_int_handler

    def on_interrupt(signum, frame):
        state["signals_received"] += 1
        if state["running"] and state["is_driver"]:
            if state["delay_interrupt"]:
                state["interrupt_delayed"] = True
                return
            raise KeyboardInterrupt
        if not state["is_driver"]:
            stop_by_interrupt(signum, frame)

    _signal.signal(_signal.SIGINT, on_interrupt)

    # Between cells nothing catches what a signal handler of the code raises, such as the late alarm of a time limit.
    handlers, set_handler, get_handler = {}, _signal.signal, _signal.getsignal

    def guard(handler):
        def guarded(signum, frame):
            if state["running"] or not state["is_driver"]:
                return handler(signum, frame)
            try:
                handler(signum, frame)
            except interrupts:
                pass
            except BaseException as e:
                say("a signal handler failed between two cells: " + one_line(e))

        return guarded

    def signal(signalnum, handler, /):
        """Set the handler of a signal."""
        was = getsignal(signalnum)
        guarded = guard(handler) if callable(handler) and handler is not on_interrupt else handler
        set_handler(signalnum, guarded)
        handlers[signalnum] = guarded, handler
        return was

    def getsignal(signalnum, /):
        """Return the handler of a signal."""
        now, (guarded, handler) = get_handler(signalnum), handlers.get(signalnum, (None, None))
        return handler if now is guarded and now is not None else now

    _signal.signal, _signal.getsignal = signal, getsignal

    os = kept(os, "_exit", "close", "dup2", "fstat", "getpid", "makedirs", "path", "read", "remove", "stat", "urandom")

    # Functions to call after the first import of a module, by its name.
    imported = {}

    class Imports:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if path is None:
                follow_user_site()
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
        """Wraps the loader of built-in modules, a class of Python whose attributes cannot be set."""
        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            return getattr(self.real, name)

    for found_by in (sys.meta_path, finders):
        found_by.insert(0, Imports)

    def when_imported(name, then):
        if name in sys.modules:
            then(sys.modules[name])
        else:
            imported[name] = then

    when_imported("_posixsubprocess", lambda m: flush_before([m], "fork_exec", forks=True))
    when_imported("ctypes", follow_libc)
    when_imported("matplotlib.pyplot", lambda m: setattr(m, "show", add_figures))

    # IPython, if it is installed, gets this display. If not, LateFinder makes a module of
    # that name (notebook.py).
    def set_display(module):
        for name, mine in (("display", display), ("update_display", update_display), ("clear_output", clear_output), ("publish_display_data", publish)):
            if hasattr(module, name):
                setattr(module, name, mine)

    for name in ("IPython.core.display_functions", "IPython.core.display", "IPython.display"):
        when_imported(name, set_display)

    class LateFinder:
        """The last finder: it gets the modules that no other finder has found."""
        @staticmethod
        def find_spec(name, path=None, target=None):
            # The folder of mcp_tools comes with the first connection, and the code or PYTHONPATH may have taken it off the path.
            if path is None and name == "mcp_tools" and TOOLS not in sys.path:
                sys.path.append(TOOLS)
            if path is None and (name == "mcp_tools" or follow_new_folders()):
                stdlib("importlib").invalidate_caches()
                for finder in sys.meta_path:
                    find = getattr(finder, "find_spec", None)  # old finders have only find_module
                    spec = find(name, None) if find and finder not in (LateFinder, Imports) else None
                    if spec is not None:
                        return spec
            if NOTEBOOK and (name == "IPython" or name.startswith("IPython.") and not hasattr(sys.modules.get("IPython"), "__file__")):
                made = notebook()["modules"]().get(name)
                if made is not None:
                    return sys.modules["_frozen_importlib"].ModuleSpec(name, ReadyModule(made), is_package=True)
            return None

    class ReadyModule:
        def __init__(self, module):
            self.module = module

        def create_module(self, spec):
            return self.module

        def exec_module(self, module):
            pass

    sys.meta_path.append(LateFinder)

    # Packages that are installed while this process runs have to be found: the user's
    # folder may not have existed at the start, and a .pth file in another folder of
    # packages may have been added.
    folder_times = {}

    def follow_new_folders():
        """Read the .pth files of package folders that have changed. True: there was such a folder."""
        fresh = False
        for path in list(sys.path):
            if not path.endswith("-packages"):
                continue
            try:
                changed = os.stat(path).st_mtime_ns
            except OSError:
                continue
            if folder_times.get(path) != changed:
                folder_times[path], fresh = changed, True
                stdlib("site").addsitedir(path, set(sys.path))
        return fresh

    def follow_user_site():
        """Add the user's folder of packages to the path once it exists."""
        if state.get("in_site"):
            return  # called for the import of site, below
        state["in_site"] = True
        try:
            add_user_site(stdlib("site"))
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
        stdlib("importlib").invalidate_caches()

    def notebook():
        found = state.get("notebook")
        if found is None:
            path, sys.path[:] = sys.path[:], library
            try:
                found = {"__name__": "sandlot_notebook", "kernel": kernel}
                exec(stdlib("marshal").loads(NOTEBOOK), found)  # start.py has compiled it
            finally:
                sys.path[:] = path
            state["notebook"] = found
        return found

    # Nobody can answer a question: fail, and do not wait.
    builtin_input = builtins.input
    driver_stdin = sys.stdin

    def input(prompt="", /):
        try:
            return builtin_input(prompt)
        except (EOFError, ValueError, OSError, RuntimeError) as e:
            # The code may have closed the input, as exit() does, or removed it.
            stdin = getattr(sys, "stdin", None)
            lost = closed(stdin) or isinstance(e, EOFError) or isinstance(e, OSError) and e.errno == 9
            if not lost or stdin is not driver_stdin and stdin is not None:
                raise
            raise EOFError("input() has nobody to answer it here: put the value into the code, or read it from a file") from None

    input.__doc__, input.__self__ = builtin_input.__doc__, builtins
    builtins.input = input

    def getpass(prompt="Password: ", stream=None, **_):
        """Fail: nobody can answer."""
        raise EOFError("getpass() has nobody to answer it here: read the value from a file or a variable of the environment")

    def no_password(module):
        module.getpass = module.unix_getpass = getpass

    when_imported("getpass", no_password)

    # The source lines of the cells, for tracebacks and inspect. They go into linecache
    # once that is imported.
    sources = {}
    when_imported("linecache", lambda m: m.cache.update(sources))

    def remember_source(name, code):
        # Python 3.11 needs a newline at the end.
        sources[name] = (len(code), None, (code + "\n").splitlines(True), name)
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        if cache is not None:
            cache[name] = sources[name]

    def to_json(value):
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, list):
            return "[" + ",".join(map(to_json, value)) + "]"
        if isinstance(value, dict):
            return "{" + ",".join([quote(k) + ":" + to_json(v) for k, v in value.items()]) + "}"
        return quote(value)

    def identity(fd):
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    driver_pipes = [(fd, identity(fd)) for fd in (3, replies)]

    def pipes_closed():
        """Whether the code has closed the driver's pipes, or their descriptors are other files now."""
        try:
            return any(identity(fd) != was for fd, was in driver_pipes)
        except OSError:
            return True

    def send_reply(reply):
        if not state["is_driver"]:
            os._exit(reply["exit"])  # a forked child that ran on to the end of the cell: only the driver replies
        data = to_json(reply).encode("utf-8", "replace") + b"\n"
        try:
            if pipes_closed():
                os._exit(CLOSED_PIPES_EXIT)
            while data:
                data = data[write(replies, data):]
        except OSError:
            os._exit(CLOSED_PIPES_EXIT)

    def add_rich(mime, data):
        base64 = stdlib("base64")
        if data is None:
            return
        if state["captured"] is not None:
            data = data[0] if isinstance(data, tuple) else data
            state["captured"].append({mime: base64.b64encode(data).decode() if isinstance(data, (bytes, bytearray)) else data})
            return
        if state["clear"]:
            clear_output()
        if isinstance(data, tuple):
            data = data[0]
        if not isinstance(data, (str, bytes, bytearray)):
            data = stdlib("json").dumps(data)
        if isinstance(data, str) and mime.startswith("image/") and mime != "image/svg+xml":
            data = base64.b64decode(data)
        data = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
        if state["rich_size"] + len(data) > MAX_RICH:
            state["dropped"] += 1
            return
        state["rich_size"] += len(data)
        state["rich"].append({"mime": mime, "data": base64.b64encode(data).decode()})

    def form(value, name):
        """A method of a value that gives a form of it; None: it has none, or answers to every name, as mocks and proxies do."""
        try:
            method = getattr(value, name, None)
            if not callable(method) or getattr(value, "_ipython_canary_method_should_not_exist_", None) is not None:
                return None
            return method
        except Exception:
            return None

    def quiet_call(method, *args, **named):
        """What a form gives; None: nothing, or it failed."""
        try:
            return method(*args, **named)
        except NotImplementedError:
            return None
        except Exception as e:
            warn("%s of this value failed: %s: %s" % (getattr(method, "__name__", "a form"), type(e).__name__, e))

    def warn(text):
        print("[%s]" % text[:500], file=sys.stderr)

    def show_rich(value):
        """Add a value's best rich form to the result, and return its text: None if the value does not say it, "" if it needs none. The other value
        is True when what was added says all, so that display prints no text."""
        if isinstance(value, type):
            return None, False
        if str(type(value).__module__).startswith("matplotlib.") and callable(getattr(value, "savefig", None)):
            add_figure(value)
            return None, True
        own = form(value, "_ipython_display_")
        if own is not None:
            try:
                own()
                return "", True
            except Exception as e:
                warn("_ipython_display_ of this value failed: %s: %s" % (type(e).__name__, e))
        text = None
        bundle = form(value, "_repr_mimebundle_")
        if bundle is not None:
            found = quiet_call(bundle, include=None, exclude=None)
            found = found[0] if isinstance(found, tuple) and found else found
            if isinstance(found, dict) and found:
                text = found["text/plain"] if isinstance(found.get("text/plain"), str) else None
                shown = add_best(found, value)
                if shown:
                    return text, shown is True
        for mime in TYPES:
            method = form(value, METHODS[mime]) if mime in METHODS else None
            data = quiet_call(method) if method is not None else None
            if data is not None:
                shown = add_form(mime, data, value)
                if shown:
                    return text, shown is True
        return text, False

    def add_form(mime, data, value):
        """Add one form of a value to the result. False: it is not what its type says."""
        try:
            return add_html(data, value) if mime == "text/html" else add_rich(mime, data) or True
        except Exception as e:
            warn("the %s of this value cannot be shown: %s: %s" % (mime, type(e).__name__, e))
            return False

    def add_best(bundle, value=None):
        for mime in TYPES:
            if bundle.get(mime) is not None:
                shown = add_form(mime, bundle[mime], value)
                if shown:
                    return shown
        return False

    def add_html(data, value):
        """Add a value's HTML to the result when its text says nothing, and otherwise a link to a file with it."""
        text = "" if value is None else text_of(value)
        if not text or text[0] == "<" and text[-1] == ">" and (" object" in text or " at 0x" in text) and len(text) < 300 or not OUTPUT or state.get("whole"):
            add_rich("text/html", data)
            return True
        if isinstance(data, tuple):
            data = data[0]
        data = str(data)[:MAX_RICH].encode("utf-8", "replace")
        try:
            state["linked_files"] += 1
            path = write_linked_file("value-%d-%d.html" % (os.getpid(), state["linked_files"]), data)
        except OSError:
            return "text"
        add_rich("text/uri-list", "# %d bytes\nfile://%s" % (len(data), path))
        return "text"

    files = []

    def write_linked_file(name, data):
        """Write a file that a result links to. Of more than 32 files remove the oldest."""
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
        """What display returns when it gets a display_id."""
        def __init__(self, display_id=None):
            self.display_id = display_id or os.urandom(8).hex()

        def display(self, value, **named):
            display(value, display_id=self.display_id, **named)

        def update(self, value, **named):
            update_display(value, display_id=self.display_id, **named)

    def captured(value):
        """A value's text and its best form, by their types."""
        kept, into = (state["rich"], state["rich_size"]), state["captured"]
        state.update(rich=[], rich_size=0, captured=None, whole=True)
        try:
            text, _ = show_rich(value)
            forms = {"text/plain": text if isinstance(text, str) and text else text_of(value)}
            for r in state["rich"]:
                binary = r["mime"].startswith("image/") and r["mime"] != "image/svg+xml"
                forms[r["mime"]] = r["data"] if binary else stdlib("base64").b64decode(r["data"]).decode("utf-8", "replace")
        finally:
            (state["rich"], state["rich_size"]), state["captured"], state["whole"] = kept, into, False
        return forms

    def display(*values, raw=False, clear=False, display_id=None, update=False, **_):
        """Show values: as an image, HTML or another rich form if they have one, and otherwise as text. What has a display_id can be updated."""
        if clear:
            clear_output()
        if display_id is True:
            display_id = os.urandom(8).hex()
        if state["captured"] is not None:
            state["captured"].extend(v if raw and isinstance(v, dict) else captured(v) for v in values)
            return None if display_id is None else Handle(display_id)
        before, old = list(state["rich"]), state["displays"].get(display_id, ()) if update else ()
        for v in values:
            if raw and isinstance(v, dict):
                text, shown = v.get("text/plain", v), add_best(v) is True
            else:
                text, shown = show_rich(v)
            if shown:
                continue
            text = text if isinstance(text, str) else text_of(v)
            if display_id is None:
                print(text)
            else:
                add_rich("text/plain", text)
        if display_id is None:
            return None
        new = [r for r in state["rich"] if not any(r is b for b in before)]
        at = next((n for n, r in enumerate(state["rich"]) if any(r is o for o in old)), None)
        if at is not None:
            state["rich_size"] -= sum(len(o["data"]) * 3 // 4 for o in old)
            state["rich"][:] = [r for r in state["rich"] if not any(r is o for o in old) and not any(r is n for n in new)]
            state["rich"][at:at] = new
        state["displays"][display_id] = new
        return Handle(display_id)

    def update_display(*values, display_id=None, **named):
        """Show values in place of those that were shown with this display_id in this cell."""
        display(*values, display_id=display_id, update=True, **named)

    def publish(data, *_, **__):
        display(data, raw=True)

    # The agent, and finish below, take these out of a stream, with what was before them (clear.go). With -wait they do so once more output follows.
    CLEAR = "\x1b_sandlot-clear"
    CLEAR_NOW, CLEAR_WAIT = CLEAR + "\x1b\\", CLEAR + "-wait\x1b\\"

    def clear_output(wait=False, **_):
        """Take back what the cell has shown, at once or when something new is shown."""
        if not wait:
            state.update(rich=[], rich_size=0, displays={})
        state["clear"] = wait
        mark(CLEAR_WAIT if wait else CLEAR_NOW)

    def mark(sign):
        state["marked"] = True
        for s in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
            if s in streams and not closed(s):
                s.write(sign)

    def cleared(data):
        """What is left of the bytes of a stream."""
        left, *parts = data.split(CLEAR.encode())
        for part in parts:
            kind, _, rest = part.partition(b"\x1b\\")
            if rest or not kind:
                left = rest
        return left

    builtins.display = display

    def add_figure(figure):
        if getattr(figure, "axes", True) or getattr(figure, "lines", True):
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", bbox_inches="tight")
            add_rich("image/png", buffer.getvalue())
            if state["captured"] is not None:
                state["captured"][-1]["text/plain"] = text_of(figure)
        else:  # it is empty
            print(text_of(figure))
        plt = sys.modules.get("matplotlib.pyplot")
        if plt is not None:
            plt.close(figure)

    def add_figures(*_, **__):
        """Add the open figures of pyplot to the result, in their order."""
        plt = sys.modules.get("matplotlib.pyplot")
        for number in plt.get_fignums() if plt is not None else ():
            add_figure(plt.figure(number))

    # Values that IPython writes as repr does.
    PLAIN = {int, float, complex, str, bytes, bool, type(None)}

    def is_plain(value):
        kind = type(value)
        if kind in PLAIN:
            return True
        if kind not in (list, tuple, dict) or len(value) > 20 or not PLAIN.issuperset(map(type, value)):
            return False
        return kind is not dict or PLAIN.issuperset(map(type, value.values()))

    def text_of(value):
        """A value's text, as IPython writes it."""
        try:
            text = repr(value) if is_plain(value) else None
            if text is None or len(text) > 79 and type(value) not in PLAIN:
                text = pretty_text(value)
        except Exception as e:
            warn("repr() of this value failed: %s: %s" % (type(e).__name__, e))
            text = object.__repr__(value)
        return bounded(text)

    def pretty_text(value):
        if state["pretty"] is None:
            made = {"__name__": "sandlot_pretty", "__builtins__": builtins}
            exec(stdlib("marshal").loads(PRETTY), made)  # start.py has compiled it
            state["pretty"] = made["pretty"]
        return state["pretty"](value)

    def bounded(text):
        if len(text) > MAX_RESULT:
            text = text[:MAX_RESULT] + "… [%d characters in all]" % len(text)
        return text.encode("utf-8", "backslashreplace").decode()

    def show_value(value):
        """Show a cell's value; return its text, or None: it has shown itself."""
        text, shown = show_rich(value) if type(value).__module__ != "builtins" else (None, False)
        if text == "" and shown:
            return None
        return text_of(value) if text is None else bounded(text)

    def remember_value(value):
        """Give the code the last values as _, __, ___, _1, … and in Out, as IPython does: names that the code has set stay its own."""
        if value is outputs:
            return
        number, names = state["cell"], ("_", "__", "___")
        own = any(name in ns and ns[name] is not was for name, was in zip(names, last_values))
        last_values[:] = [value, *last_values[:2]]
        if not own and not hasattr(builtins, "_"):
            ns.update(zip(names, last_values))
        outputs[number] = ns["_%d" % number] = value
        if len(outputs) > MAX_OUT:
            oldest = min(outputs)
            ns.pop("_%d" % oldest, None)
            del outputs[oldest]

    def remember_cell(code):
        """Give the code its cells as _i, _ii, _iii, _i1, … and in In."""
        inputs.extend([""] * (state["cell"] - len(inputs)))
        ns.update(_i=inputs[-1], _ii=ns.get("_i", ""), _iii=ns.get("_ii", ""))
        ns["_i%d" % len(inputs)] = code
        inputs.append(code)

    MAX_OUT, outputs, inputs, last_values = 20, {}, [""], [""] * 3
    ns.update(In=inputs, Out=outputs, _ih=inputs, _oh=outputs, _dh=[], _="", __="", ___="", _i="", _ii="", _iii="")

    def ends_with_semicolon(code, last):
        # Only brackets, semicolons and comments follow the last expression.
        lines = code.encode("utf-8", "replace").splitlines()[last.end_lineno - 1:]
        lines[0] = lines[0][last.end_col_offset:]
        return any(line.split(b"#")[0].rstrip().endswith(b";") for line in lines)

    # The flags of __future__: what a cell has begun stays, as at Python's own prompt.
    FUTURE = 0x1FE0000

    def interactivity():
        """Which expressions of a cell are shown: a setting of IPython."""
        for place in ((state.get("notebook") or {}).get("SHELL"), getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)):
            mode = getattr(place, "ast_node_interactivity", None)
            if isinstance(mode, str) and mode != "last_expr" and NOTEBOOK:
                return mode
        return None

    def compile_code(code, name):
        flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | state["future"]
        shows = interactivity() if "notebook" in state or "IPython.core.interactiveshell" in sys.modules else None
        # The fast path is for cells of one expression on one line. Other cells mostly have
        # one of these characters; the rest fail to compile here, and compile below.
        if len(code) < 500 and not (shows or code[:1].isspace() or "\n" in code or ";" in code or "\\" in code or "=" in code or "import " in code):
            try:
                return None, compile(code, name, "eval", flags, dont_inherit=True), False
            except Exception:
                pass
        tree = compile(code, name, "exec", _ast.PyCF_ONLY_AST | flags, dont_inherit=True)
        if shows:
            notebook()["choose"](tree, shows)
        last, quiet = None, False
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            last = _ast.Expression(tree.body.pop().value)
            quiet = shows == "none" or ends_with_semicolon(code, last.body)
        body = compile(tree, name, "exec", flags, dont_inherit=True) if tree.body else None
        if body is not None:
            state["future"] |= body.co_flags & FUTURE
        value = compile(last, name, "eval", flags | state["future"], dont_inherit=True) if last is not None else None
        return body, value, quiet

    # Magics that a cell of one line may begin with without %, as in IPython: those that people know from a shell.
    BARE = frozenset("cat cd cp ls mkdir mv pwd rm rmdir run time timeit who who_ls whos".split())

    def compile_cell(code, name):
        word = code[:9].split(None, 1)
        if word and word[0] in BARE and NOTEBOOK:
            code = notebook()["with_sign"](code)
        if code.lstrip().startswith("In [") and NOTEBOOK:  # a prompt, which is valid Python
            code = notebook()["unpasted"](code)
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
        asyncio = stdlib("asyncio")
        if state["loop"] is None or state["loop"].is_closed():
            state["loop"] = asyncio.new_event_loop()
            asyncio.set_event_loop(state["loop"])
        return state["loop"]

    def run_code(*codes):
        """Run compiled code and return the value of the last. All of it runs in one coroutine if a part of it awaits."""
        value = None
        if not any(code.co_flags & 0x80 for code in codes):
            for code in codes:
                value = eval(code, ns)
            return value

        async def whole():
            value = None
            for code in codes:
                value = eval(code, ns)
                if code.co_flags & 0x80:
                    value = await value
            return value

        task = loop().create_task(whole())
        try:
            return loop().run_until_complete(task)
        except interrupts:
            task.cancel()
            try:
                loop().run_until_complete(task)
            except BaseException:
                pass
            raise

    def follow_asyncio(asyncio):
        """Let code that does not await make tasks: the loop runs them when a cell awaits, and between cells."""
        inner = asyncio.create_task

        def create_task(coro, **named):
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                if get_ident() == main_thread and state["is_driver"]:
                    return loop().create_task(coro, **named)
            return inner(coro, **named)

        create_task.__module__, create_task.__doc__, create_task.__wrapped__ = inner.__module__, inner.__doc__, inner
        asyncio.create_task = asyncio.tasks.create_task = create_task
        if get_ident() == main_thread:
            loop()  # for ensure_future and gather

    when_imported("asyncio", follow_asyncio)

    def run_tasks(fd):
        """Run the tasks that cells have left, until there is something to read from a descriptor."""
        tasks = state["loop"]
        if tasks is None or tasks.is_closed() or tasks.is_running():
            return
        ready = []

        def stop():
            ready.append(True)
            tasks.stop()

        state["running"] = True  # an interrupt ends a task that does not let the others run
        try:
            tasks.add_reader(fd, stop)
            for _ in range(MAX_FAILED_TASKS):
                try:
                    tasks.run_forever()
                except BaseException as e:  # of a task that ends the program; the cell that made it has ended
                    if tasks.is_closed():
                        return
                    if not isinstance(e, interrupts):
                        stdlib("traceback").print_exc()
                if ready:
                    return
        except BaseException:
            pass  # the code has broken the loop, or an interrupt came between two tasks
        finally:
            state["running"] = False
            try:
                tasks.remove_reader(fd)
            except BaseException:
                pass

    MAX_FAILED_TASKS = 1000  # between two cells

    def plain_text(exc):
        try:
            return "%s: %s" % (type(exc).__name__, exc)
        except Exception:
            return type(exc).__name__

    def plain_trace(exc, tb):
        lines = ["Traceback (most recent call last):"] if tb is not None else []
        while tb is not None and len(lines) < 50:
            code = tb.tb_frame.f_code
            lines.append('  File "%s", line %d, in %s' % (code.co_filename, tb.tb_lineno, code.co_name))
            tb = tb.tb_next
        return "\n".join(lines + [plain_text(exc), ""])

    def report(exc, name):
        exc_type, tb = type(exc), None
        try:
            tb = exc.__traceback__
            while tb is not None and tb.tb_frame.f_code.co_filename == "<string>":
                tb = tb.tb_next
            # With await, frames of this driver may be between those of the user's code. Those of the tool tree say
            # nothing of that code.
            trace = stdlib("traceback").TracebackException(exc_type, exc, tb, compact=True)
            seen = set()
            def clean(t):
                if t is None or id(t) in seen:
                    return
                seen.add(id(t))
                for i in range(len(t.stack) - 1, -1, -1):
                    f = t.stack[i]
                    if f.filename == "<string>" or f.filename.startswith("/run/mcp/") or (
                            f.filename.endswith(("asyncio/base_events.py", "asyncio/runners.py")) and i == 0):
                        del t.stack[i]
                clean(t.__cause__)
                clean(t.__context__)
            clean(trace)
            full = "".join(trace.format())
        except RecursionError:
            full = "RecursionError: maximum recursion depth exceeded\n"
        except Exception:  # the code has changed what traceback needs
            full = plain_trace(exc, tb)
        try:
            alone = stdlib("traceback").TracebackException(exc_type, exc, None, compact=True)
            alone.__notes__ = None
            short = list(alone.format_exception_only())[-1].rstrip("\n")
        except Exception:
            short = plain_text(exc)
        limit = 200000
        if len(full) > limit:
            full = full[:limit // 2] + "\n… [cut] …\n" + full[-limit // 2:]
        if len(short) > limit // 10:
            short = short[:limit // 10] + "… [cut]"
        return short.encode("utf-8", "backslashreplace").decode(), full.encode("utf-8", "backslashreplace").decode()

    def repair_streams():
        # Code may have closed or replaced the streams.
        nonlocal driver_stdin
        for fd, spare in ((0, spare_in), (1, spare_out), (2, spare_err)):
            try:
                os.fstat(fd)
            except OSError:
                os.dup2(spare, fd)
        if closed(driver_stdin):
            driver_stdin = io.open(0, closefd=False, encoding="utf-8", errors="surrogateescape")
        if closed(getattr(sys, "stdin", None)):
            sys.stdin = sys.__stdin__ = driver_stdin
        for n, name in enumerate(("stdout", "stderr")):
            if closed(streams[n]):
                streams[n] = open_stream(n + 1)
                buffers[n] = streams[n].buffer
            if closed(getattr(sys, name, None)):
                setattr(sys, name, streams[n])
                setattr(sys, "__%s__" % name, streams[n])

    own_files = [(fd, spare, identity(fd)) for fd, spare in ((1, spare_out), (2, spare_err))]

    own_builtins, own_print, is_same = {}, print, stdlib("_operator").is_

    def follow_builtins():
        """Give the code the builtins back that it cannot call any more, at the end of a cell."""
        there = builtins.__dict__
        if not all(map(is_same, map(there.get, own_builtins), own_builtins.values())):
            gone = [name for name, value in own_builtins.items() if callable(value) and not callable(there.get(name))]
            there.update((name, own_builtins[name]) for name in gone)
            if gone:
                say("builtins that a cell has taken away are back: %s" % ", ".join(gone[:9] + ["…"] * (len(gone) > 9)))
        now = ns.get("__builtins__")
        if now is not builtins and now is not there:
            ns["__builtins__"] = builtins
            if "__name__" in ns:
                say("__builtins__ was %.80r; it is Python's again" % (now,))
        ns.setdefault("__name__", "__main__")

    def follow_files():
        """Lead the descriptors 1 and 2 to the driver's streams again."""
        state["moved"] = False
        for fd, spare, was in own_files:
            try:
                if identity(fd) == was:
                    continue
            except OSError:
                continue  # closed: repair_streams
            flush()
            os.dup2(spare, fd)
            say("descriptor %d led to another file at the end of a cell; it is the output of cells again" % fd)

    def follow_output(prints):
        """Say where print writes, if that is not to the driver's streams."""
        out = getattr(sys, "stdout", None)
        if prints and not state["written"]:
            used = ns.get("print", builtins.print)
            if used is not own_print:
                say("print is %.200r: what it is called with was not printed; print = __builtins__.print makes it Python's again" % (used,)
                    if "print" in ns else "builtins.print is %.200r: what it is called with was not printed" % (used,))
                return
        if out is streams[0] or closed(out):
            return
        try:
            if out.fileno() == 1:
                return
        except Exception:
            pass  # it has none
        if not unread(6) and not unread(7):
            say("sys.stdout is %.200r: what is printed goes there; sys.stdout = sys.__stdout__ makes it the cell's output again" % (out,))

    # What a cell mostly has that takes builtins away, or leads a descriptor elsewhere without os.close and os.dup2.
    CHANGING = ("builtins", "globals()", "open(1", "open(2", "FileIO(", "closerange(")

    def settle():
        """Do what the next cell needs, and the answer of the last one does not. A processor that has been idle takes a tenth of a millisecond for it."""
        state["settled"] = True
        value, state["value"] = state["value"], None
        if value is not None:
            attempt(lambda: remember_interruptibly(value))
        attempt(follow_builtins, follow_files)

    def remember_interruptibly(value):
        """The oldest value goes, whose destructor may take long."""
        state["running"] = True
        try:
            remember_value(value)
        finally:
            state["running"] = False

    def attempt(*steps):
        """Take each step, and then say what failed: said before, it would pass for output of the code."""
        failed = []
        for step in steps:
            try:
                step()
            except BaseException as e:  # of what the code has changed
                failed.append("at the end of a cell: " + one_line(e))
        for text in failed:
            say(text)

    def one_line(e):
        """An exception in one line. Its text is the code's, and may fail in any way."""
        try:
            return "%s: %.300s" % (type(e).__name__, e)
        except BaseException:
            return "an exception that has no text"

    def unread(fd):
        """How many bytes of a stream nobody has read; 0: none, or the code has closed the descriptor, or broken how modules are imported."""
        try:
            ioctl = state["ioctl"] = state["ioctl"] or stdlib("fcntl").ioctl
            return int.from_bytes(ioctl(fd, FIONREAD, b"\0\0\0\0"), sys.byteorder)
        except Exception:
            return 0

    def say(text):
        try:
            print("[%s]" % text, file=streams[1], flush=True)
        except Exception:
            pass  # it is closed

    SIGNAL_LIMIT = 0.25  # seconds that a signal may take to arrive

    def await_signals(sent):
        """Wait for signals that the agent has sent to this process and that have not arrived: a cell may
        have ended by itself before the signal that was to stop it, which would stop the next cell."""
        missing = sent - state["signals_sent"]
        if missing > 0 and state["signals_received"] < missing:
            end = clock.monotonic() + SIGNAL_LIMIT
            while state["signals_received"] < missing and clock.monotonic() < end:
                clock.sleep(0.002)
        state["signals_sent"], state["signals_received"] = sent, 0

    def run_cell(token, name, code):
        if not state["settled"]:  # the host went away after the last cell
            settle()
        reply = {"id": token, "ok": False, "exit": 1}
        remember_source(name, code)
        state.update(name=name, rich=[], rich_size=0, dropped=0, displays={}, clear=False, marked=False, written=False)
        ns.pop("__warningregistry__", None)
        begin_order()
        buffering(True)
        try:
            state["running"] = True
            remember_cell(code)
            if state["before"] is not None:
                state["before"]()
            body, last, quiet = compile_cell(code, name)
            codes = [part for part in (body, last) if part is not None]
            value = run_code(*codes) if codes else None
            if last is None:
                value = None
            if value is not None and not quiet:
                state["value"] = value
                text = show_value(value)
                if text is not None:
                    reply["result"] = text
            add_figures()
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
            try:
                add_figures()  # those that the code has left open
            except Exception:
                pass
        finally:
            state["running"] = False
        if state["dropped"]:
            print("[%d rich values were left out: they are too large]" % state["dropped"], file=sys.stderr)
        reply["rich"] = state["rich"]
        if not state["is_driver"]:
            try:
                print(reply.get("traceback", ""), end="", file=sys.stderr)
                flush_all()
            finally:
                os._exit(reply["exit"])
        state["settled"] = False
        attempt(flush_all, lambda: follow_output("print(" in code))
        if state["moved"] or state["libc"] is not None or any(hint in code for hint in CHANGING):
            settle()
        if order and not state["marked"]:
            reply["order"] = order + [last_stream.count]
        buffering(False)
        return reply

    # Cells that the host sends to this driver directly. At the end of such a cell the
    # driver reads its output itself, unless the agent supervises the cell, as the shared
    # words say. interp/direct/direct.go describes the protocol.
    STATE, REQUESTED, SUPERVISED, READING_STDOUT, READING_STDERR, HANDOVER, BUFFERED_STDOUT, BUFFERED_STDERR, SIGNALS_SENT = range(9)
    IDLE, RUNNING, FINISHING = range(3)
    FIONREAD, MAX_ANSWER = 0x541B, 256 << 10
    SUPERVISE_LIMIT = 10  # seconds: a host whose connection broke has asked the agent to supervise by then

    class Direct:
        def __init__(self, ticket, path):
            socket, mmap = stdlib("_socket"), stdlib("mmap")
            state["ioctl"] = stdlib("fcntl").ioctl
            self.fence = thread.allocate_lock()
            select = stdlib("select")
            # A system call takes longer than most cells: this poll shows both which streams
            # have output, and whether the code has closed one.
            poller = select.poll()
            self.conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            for fd, events in ((6, select.POLLIN), (7, select.POLLIN), (0, 0), (1, 0), (2, 0), (self.conn.fileno(), 0)):
                poller.register(fd, events)
            self.poll, self.readable, self.closed = poller.poll, select.POLLIN, select.POLLNVAL
            self.memory = mmap.mmap(5, 4096)
            self.words = memoryview(self.memory).cast("I")
            self.words[STATE] = self.cell = 0  # the cells of a connection are counted from 1
            self.peek = socket.MSG_PEEK | socket.MSG_DONTWAIT
            self.conn.settimeout(5)
            self.conn.connect(path)
            self.conn.sendall(b"SANDLOTD" + bytes.fromhex(ticket))
            if self.conn.recv(1) != b"\x06":
                raise OSError("refused")
            self.conn.settimeout(None)
            self.received = b""

        def set_state(self, value):
            """Write the state, with a fence: the agent sees it before the driver reads another word."""
            self.words[STATE] = self.cell | value
            for _ in (1, 2):  # a release, and an acquire after it
                with self.fence:
                    pass

        def run_next(self):
            """Receive and run the next cell. False: the host is gone."""
            if not self.received:
                run_tasks(self.conn.fileno())
            data = self.received or self.conn.recv(65536)
            while data and b"\n" not in data:
                more = self.conn.recv(65536)
                data = data + more if more else more
            if not data:
                return False
            head, _, code = data.partition(b"\n")
            token, size, limit = map(int, head.split())
            code, self.received = code[:max(size, 0)], code[max(size, 0):]
            if size < 0:
                return self.warm_up()
            if len(code) < size:
                parts, size = [code], size - len(code)
                while size > 0:
                    part = self.conn.recv(min(size, 1 << 20))
                    if not part:
                        return False
                    parts.append(part)
                    size -= len(part)
                code = b"".join(parts)
            self.cell = (token & 0xFFFF) << 16
            self.set_state(RUNNING)
            while self.words[READING_STDOUT] or self.words[READING_STDERR]:
                clock.sleep(0.0001)
            if self.words[SIGNALS_SENT] != state["signals_sent"]:
                await_signals(self.words[SIGNALS_SENT])
            state["cell"] += 1
            reply = run_cell(token, "<code %d>" % state["cell"], code.decode("utf-8", "replace"))
            self.set_state(FINISHING)
            while self.words[REQUESTED] and not self.words[SUPERVISED]:
                clock.sleep(0.0001)
            outcome = self.words[SUPERVISED] or self.finish(reply, limit)
            if not outcome:
                return False
            if outcome is not DONE:
                state["repair"] = True
                send_reply(reply)
            self.words[STATE] = self.cell | IDLE
            return True

        def warm_up(self):
            """Do once what every cell needs, so that the first cell is as fast as the others."""
            compile_code("a + 1", "<start>")
            body, last, _ = compile_code("a = 1\na + 1", "<start>")
            names = {}
            eval(body, names)
            to_json({"id": 0, "ok": True, "exit": 0, "result": text_of(eval(last, names)), "rich": []})
            flush()
            self.set_state(IDLE)
            self.poll(0)
            self.conn.sendall(b"0 0 0\n")
            return True

        def finish(self, reply, limit):
            """Answer the host (DONE), or hand the cell over to the agent (True). False: the host is gone."""
            out = err = 0
            conn_closed = False
            for fd, event in self.poll(0):
                if fd == 6 and event & self.readable:
                    out = unread(6)
                elif fd == 7 and event & self.readable:
                    err = unread(7)
                elif fd < 3:
                    state["repair"] = True
                elif event & self.closed:
                    conn_closed = True  # the code has closed the connection
            data = to_json(reply).encode("utf-8", "replace")
            texts = sum(len(r["data"]) for r in reply["rich"] if not r["mime"].startswith("image/") or r["mime"] == "image/svg+xml") * 3 // 4
            if state["pipes_replaced"] or max(out, err, texts, *(len(reply.get(part, "").encode("utf-8", "replace")) for part in ("result", "traceback"))) > limit or \
                    len(data) > MAX_ANSWER or \
                    self.words[HANDOVER] or self.words[BUFFERED_STDOUT] or self.words[BUFFERED_STDERR] or conn_closed:
                self.set_state(RUNNING)
                if not conn_closed:
                    self.conn.sendall(b"0 0 0\n")
                deadline = clock.monotonic() + SUPERVISE_LIMIT
                while not self.words[SUPERVISED]:
                    if clock.monotonic() > deadline if conn_closed else self.host_gone():
                        self.words[STATE] = self.cell | IDLE
                        return False
                    clock.sleep(0.0002)
                return True
            if out or err:
                out, err = read(6, out) if out else b"", read(7, err) if err else b""
                if state["marked"]:
                    out, err = cleared(out), cleared(err)
                if has_terminal_controls(out) or has_terminal_controls(err):
                    reply["raw"] = [write_raw_output("stdout", out), write_raw_output("stderr", err)]
                    data = to_json(reply).encode("utf-8", "replace")
                data = b"%d %d %d\n%b%b%b" % (len(data), len(out), len(err), data, out, err)
            else:
                data = b"%d 0 0\n%b" % (len(data), data)
            self.words[STATE] = self.cell | IDLE
            self.conn.sendall(data)
            return DONE

        def host_gone(self):
            try:
                return not self.conn.recv(1, self.peek)
            except BlockingIOError:
                return False

        def close(self):
            self.words[STATE] = self.cell | IDLE
            try:
                self.conn.close()
            except OSError:
                pass  # the code has closed it already

    CONTROLS = bytes(c for c in range(32) if c not in b"\t\n\r") + b"\x7f"

    def has_terminal_controls(data):
        """Whether an output has control characters other than newlines and tabs, or CRs without LF. The agent does the same (capture.go)."""
        return len(data.translate(None, CONTROLS)) != len(data) or b"\r" in data and data.count(b"\r") != data.count(b"\r\n") or \
            b"\xc2" in data and any(b"\x80" <= after < b"\xa0" for after in data.split(b"\xc2")[1:])

    def write_raw_output(stream, data):
        """Write the bytes of an output with terminal controls to a file, and return its path; "": there is no file."""
        if not OUTPUT or not has_terminal_controls(data):
            return ""
        try:
            state["linked_files"] += 1
            return write_linked_file("%s-%d-%d.txt" % (stream, os.getpid(), state["linked_files"]), data)
        except OSError:
            return ""

    DONE, read = object(), os.read

    def connect(token, target):
        """Connect to the host, which sends the next cells over that connection."""
        try:
            ticket, path = target.split(" ", 1)
            made = Direct(ticket, path)
        except Exception:
            send_reply({"id": token, "ok": False})
            return None
        send_reply({"id": token, "ok": True})
        state["conn"] = made.conn
        return made

    class kernel:
        """What notebook.py may use."""

    for name, value in dict(ns=ns, state=state, interrupts=interrupts, add_rich=add_rich, display=display, clear_output=clear_output, update_display=update_display,
                            publish=publish, add_figures=add_figures, remember_value=remember_value,
                            Handle=Handle, follow_user_site=follow_user_site, compile=compile_cell, run=run_code).items():
        setattr(kernel, name, staticmethod(value) if callable(value) and not isinstance(value, type) else value)
    kernel.own_output = staticmethod(lambda: getattr(sys, "stdout", None) is streams[0] and sys.stderr is streams[1])
    builtins.get_ipython = lambda: notebook()["SHELL"]
    own_builtins.update(vars(builtins))
    if FLUSH_PIPE is not None:
        thread.start_new_thread(flush_on_request, ())
    send_reply({"id": 0, "ok": True})
    direct, failures, MAX_FAILURES = None, 0, 1000
    while True:
        try:
            if not state["settled"]:
                settle()
            if direct is None or state["repair"] or closed(getattr(sys, "stdin", None)) or closed(getattr(sys, "stdout", None)) or \
                    closed(getattr(sys, "stderr", None)):
                state["repair"] = False
                repair_streams()
            if direct is not None:
                try:
                    if direct.run_next():
                        continue
                except Exception:
                    pass  # the code has closed the connection
                direct.close()
                direct = state["conn"] = None
            if pipes_closed():
                os._exit(CLOSED_PIPES_EXIT)
            run_tasks(requests.fileno())
            head = requests.readline().split()
            if not head or not state["is_driver"]:
                os._exit(CLOSED_PIPES_EXIT if state["is_driver"] and pipes_closed() else 0)
            token, n, size, sent = map(int, head)
            text = requests.read(size).decode("utf-8", "replace")
            if n < 0:
                direct = connect(token, text)
                continue
            await_signals(sent)
            state["cell"] = max(state["cell"] + 1, n)
            send_reply(run_cell(token, "<code %d>" % state["cell"], text))
        except KeyboardInterrupt:
            state["running"] = False
        except BaseException as e:  # of what the code has changed
            state["running"] = False
            failures += 1
            if failures > MAX_FAILURES:
                raise
            say("between two cells: " + one_line(e))


_main()
