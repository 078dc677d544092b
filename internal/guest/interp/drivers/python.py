# Sandlot's Python driver: runs pieces of code that the agent sends on fd 3, in
# one namespace, and answers on fd 4. It uses the standard library alone, and
# imports at the start only what Python has loaded anyway, or built in: each
# further module would delay every new sandbox.
def _main():
    import _ast, _signal, builtins, io, os, sys

    requests, replies = os.fdopen(3, "rb", 65536), 4
    os.set_inheritable(3, False)
    os.set_inheritable(4, False)
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
    sys.argv = [""]
    if sys.path and sys.path[0] != "":
        sys.path.insert(0, "")
    ns = main.__dict__
    state = {"mine": True, "running": False, "task": None, "loop": None, "rich": [], "rich_size": 0, "dropped": 0}
    MAX_RESULT, MAX_RICH = 4 << 20, 8 << 20
    TYPES = ["image/png", "image/jpeg", "image/svg+xml", "text/html", "text/markdown", "text/latex", "application/json"]
    METHODS = {"image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_", "image/svg+xml": "_repr_svg_", "text/html": "_repr_html_",
               "text/markdown": "_repr_markdown_", "text/latex": "_repr_latex_", "application/json": "_repr_json_"}
    # 0x80 is inspect.CO_COROUTINE.
    write = os.write
    interrupts = (KeyboardInterrupt,)

    # A process that the code forks must not answer for this one.
    os.register_at_fork(after_in_child=lambda: state.update(mine=False))

    def on_interrupt(signum, frame):
        if state["running"] and state["mine"]:
            raise KeyboardInterrupt
        if not state["mine"]:
            _signal.default_int_handler(signum, frame)

    _signal.signal(_signal.SIGINT, on_interrupt)

    # The pieces' lines, for tracebacks and inspect. They are linecache's as soon
    # as something imports that.
    sources = {}

    class Sources:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "linecache":
                return None
            sys.meta_path.remove(Sources)
            specs = (finder.find_spec(name, None) for finder in sys.meta_path)
            spec = next((s for s in specs if s is not None), None)
            if spec is not None and not isinstance(spec.loader, type):
                run = spec.loader.exec_module

                def exec_module(module):
                    run(module)
                    module.cache.update(sources)

                spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Sources)

    def remember(name, code):
        sources[name] = (len(code), None, code.splitlines(True), name)
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

    def answer(reply):
        if not state["mine"]:
            os._exit(0)  # a fork that came back is nobody to answer
        data = form(reply).encode("utf-8", "replace") + b"\n"
        while data:
            data = data[write(replies, data):]

    def keep(mime, data):
        base64 = late("base64")
        if data is None:
            return
        if isinstance(data, tuple):
            data = data[0]
        if not isinstance(data, (str, bytes, bytearray)):
            data = late("json").dumps(data)
        if isinstance(data, str) and mime in ("image/png", "image/jpeg"):
            data = base64.b64decode(data)
        data = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
        if state["rich_size"] + len(data) > MAX_RICH:
            state["dropped"] += 1
            return
        state["rich_size"] += len(data)
        state["rich"].append({"mime": mime, "data": base64.b64encode(data).decode()})

    def show_rich(value):
        if isinstance(value, type):
            return False
        bundle = getattr(value, "_repr_mimebundle_", None)
        if callable(bundle):
            found = bundle(include=None, exclude=None)
            found = (found[0] if isinstance(found, tuple) else found) or {}
            for mime in TYPES:
                if mime in found:
                    keep(mime, found[mime])
                    return True
        for mime in TYPES:
            method = getattr(value, METHODS[mime], None)
            if callable(method):
                data = method()
                if data is not None:
                    keep(mime, data)
                    return True
        return False

    def display(*values, **_):
        """Show values: as image, HTML or other rich form where they have one."""
        for v in values:
            try:
                shown = show_rich(v)
            except interrupts:
                raise
            except Exception:
                shown = False
            if not shown:
                print(repr(v) if not isinstance(v, str) else v)

    builtins.display = display

    def figures():
        plt = sys.modules.get("matplotlib.pyplot")
        if plt is None:
            return
        for number in plt.get_fignums():
            buffer = io.BytesIO()
            plt.figure(number).savefig(buffer, format="png", bbox_inches="tight")
            keep("image/png", buffer.getvalue())
        plt.close("all")

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

    def compile_piece(code, name):
        tree = compile(code, name, "exec", _ast.PyCF_ONLY_AST | _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        last, quiet = None, False
        if tree.body and isinstance(tree.body[-1], _ast.Expr):
            last = _ast.Expression(tree.body.pop().value)
            quiet = silent(code, last.body)
        flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        body = compile(tree, name, "exec", flags, dont_inherit=True) if tree.body else None
        value = compile(last, name, "eval", flags, dont_inherit=True) if last is not None else None
        return body, value, quiet

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
        for name, fd in (("stdout", 1), ("stderr", 2)):
            s = getattr(sys, name, None)
            if s is None or getattr(s, "closed", False):
                s = io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=True)
                setattr(sys, name, s)
                setattr(sys, "__%s__" % name, s)

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    # Buffered, and flushed at the end of each piece and by each newline.
    sys.stdout.reconfigure(line_buffering=False, write_through=False)
    raw_out = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False), 8192), encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.stdout = sys.__stdout__ = raw_out

    def flush():
        for s in (sys.stdout, sys.stderr, raw_out):
            try:
                s.flush()
            except Exception:
                pass

    def piece(token, name, code):
        reply = {"id": token, "ok": False, "exit": 1}
        remember(name, code)
        state.update(rich=[], rich_size=0, dropped=0)
        ns.pop("__warningregistry__", None)
        value = None
        try:
            state["running"] = True
            body, last, quiet = compile_piece(code, name)
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
        flush()
        return reply

    answer({"id": 0, "ok": True})
    while True:
        try:
            mend_streams()
            head = requests.readline().split()
            if not head or not state["mine"]:
                os._exit(0)
            token, n, size = map(int, head)
            answer(piece(token, "<code %d>" % n, requests.read(size).decode("utf-8", "replace")))
        except KeyboardInterrupt:
            state["running"] = False
            continue


_main()
