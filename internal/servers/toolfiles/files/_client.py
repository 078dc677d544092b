"""The way from code in a sandbox to the tools of third-party MCP servers. Modules of servers use it.

It imports nothing that takes long: what a call needs is imported by the first call."""
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
SOCKET = FOLDER + "/socket"
MAX_IDLE = 4
CHUNK = 256 << 10
# Sandlot may say that it is being stopped, and has not made a call. The next server makes it, if that comes while the
# pauses between the tries are shorter than this together, in seconds.
AGAIN_FOR = 60
BROKEN = ("the connection to Sandlot broke before %s of %s answered: the tool may have run. "
          "Check what it did before you call it again")


class ToolError(Exception):
    """A call that failed. Its text has the server's words.

    server, tool: what was called. code: "tool_error" (the tool says that it failed), "timeout", "broken" (the tool may
    have run) or another word for what kept the call from being made. content: the tool's answer, if there is one."""

    __module__ = "mcp_tools"
    _again = False  # Sandlot has not made the call, and may make it soon

    def __init__(self, message, server="", tool="", code="", content=None):
        super().__init__(message)
        self.server, self.tool, self.code, self.content = server, tool, code, content

    def __reduce__(self):
        return type(self), (str(self), self.server, self.tool, self.code, self.content)


class Binary(bytes):
    """An image, a sound or another blob. mime_type says what it is; uri, where it is from, if that is known."""
    mime_type, uri = "", ""

    def __repr__(self):
        return "<%d bytes of %s>" % (len(self), self.mime_type or "no known type")


class Link:
    """A resource that a tool's answer names and does not contain: uri, name, mime_type, description."""

    def __init__(self, block):
        self.uri, self.name = block.get("uri", ""), block.get("name", "")
        self.mime_type, self.description = block.get("mimeType", ""), block.get("description", "")

    def __repr__(self):
        return "<Link %s>" % self.uri


def _new_state():
    global _idle, _all, _lock
    import _thread
    _idle, _all, _lock = [], {}, _thread.allocate_lock()


_new_state()


def _after_fork():
    # The connections are the parent's. Closing them here leaves its own open.
    old = list(_all.values())
    _new_state()
    for s in old:
        try:
            os.close(s.detach())
        except OSError:
            pass


os.register_at_fork(after_in_child=_after_fork)


def _drop(sock):
    """Close a connection, which cancels what is called on it."""
    import socket
    _all.pop(id(sock), None)
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()


def _give(sock):
    with _lock:
        if _all.get(id(sock)) is sock and len(_idle) < MAX_IDLE:
            _idle.append(sock)
            return
    _drop(sock)


def end_of_cell():
    """Close the connections that are not in use: the next cell's calls need others. The driver of cells calls this."""
    with _lock:
        idle = _idle[:]
        del _idle[:]
    for s in idle:
        _drop(s)


def _take():
    """Return a connection that is open and idle, or None."""
    while True:
        with _lock:
            if not _idle:
                return None
            sock = _idle.pop()
        sock.setblocking(False)
        try:
            sock.recv(1)  # it is closed, or has what belongs to no call
        except BlockingIOError:
            return sock
        except OSError:
            pass
        _drop(sock)


def _new():
    import socket
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _all[id(sock)] = sock
    return sock


def _unreachable(e, server, tool):
    return ToolError("Sandlot does not answer at %s (%s): the tool was not called" % (SOCKET, e), server, tool,
                     "unavailable")


def _encode(message):
    import json
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=_plain).encode(
            "utf-8", "replace") + b"\n"
    except ValueError as e:
        raise ValueError("the arguments cannot be written as JSON: %s" % e) from None


def _plain(value):
    """Make JSON of what json does not know: NumPy's values, sets, paths, bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        import base64
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "__fspath__"):
        return os.fspath(value)
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError("the arguments cannot be written as JSON: %r is of type %s" % (value, type(value).__name__))


class _Lines:
    """The lines that have arrived. A large one is in memory once."""

    def __init__(self):
        self.rest = bytearray()

    def add(self, data):
        """Add what arrived, and return the lines that are whole now."""
        whole = data.split(b"\n")
        self.rest += whole[0]
        if len(whole) == 1:
            return []
        whole[0], self.rest = self.rest, bytearray(whole.pop())
        return whole


def _answer(lines, server, tool):
    """Return the answer among lines; None: there is progress alone."""
    import json
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ToolError("Sandlot sent what is not an answer", server, tool, "broken")
        if "error" in found:
            e = found["error"] if isinstance(found["error"], dict) else {}
            error = ToolError(e.get("message") or "it failed", server, tool, e.get("code", ""), e.get("data"))
            error._again = error.code == "unavailable" and e.get("retry") is True
            raise _Answered(error)
        for kind in ("result", "found", "described"):
            if kind in found:
                return (found[kind],)
    return None


class _Answered(Exception):
    """An error that is the whole answer: the connection can be used again."""


def _limit(timeout):
    """Return the time at which a call has lasted too long. The host's own limit comes first."""
    import time
    return None if timeout is None else time.monotonic() + timeout + 1


def _too_long(server, tool):
    return ToolError("%s of %s did not answer in time, and the call was cancelled" % (tool, server), server, tool,
                     "timeout")


def _pauses(end):
    """Return the pauses before more tries of a call that was not made, in seconds. Those that are too long for the call's
    time are left out."""
    import time
    pause, left = 0.1, AGAIN_FOR
    while left > 0 and (end is None or time.monotonic() + pause < end):
        yield pause
        left -= pause
        pause = min(2 * pause, 1)


def _request(message, server, tool, timeout):
    import time
    data, end = _encode(message), _limit(timeout)
    pauses = _pauses(end)
    while True:
        try:
            return _exchange(data, server, tool, end)
        except ToolError as e:
            pause = next(pauses, None) if e._again else None
            if pause is None:
                raise
        time.sleep(pause)


def _exchange(data, server, tool, end):
    import select
    import time
    data = memoryview(data)
    sock = _take()
    try:
        if sock is None:
            sock = _new()
            try:
                sock.connect(SOCKET)
            except OSError as e:
                raise _unreachable(e, server, tool) from None
        sock.setblocking(False)
        lines, readable = _Lines(), select.poll()
        readable.register(sock, select.POLLIN)
        writable = select.poll()
        writable.register(sock, select.POLLOUT | select.POLLIN)
        while True:
            try:
                if data:
                    data = data[sock.send(data):]
                    continue
                part = sock.recv(CHUNK)
            except BlockingIOError:
                wait = None if end is None else max(0, end - time.monotonic()) * 1000
                if not (writable if data else readable).poll(wait):
                    raise _too_long(server, tool) from None
                if not data:
                    continue
                try:
                    part = sock.recv(CHUNK)  # an answer to what is not sent yet: the request is refused
                except BlockingIOError:
                    continue
            if not part:
                raise OSError("closed")
            found = _answer(lines.add(part), server, tool)
            if found:
                if data:
                    _drop(sock)
                else:
                    _give(sock)
                return found[0]
    except _Answered as e:
        _drop(sock) if data or e.args[0]._again else _give(sock)  # Sandlot ends it after the latter
        raise e.args[0] from None
    except OSError:
        _drop(sock)
        raise ToolError(BROKEN % (tool, server), server, tool, "broken") from None
    except BaseException:  # also KeyboardInterrupt
        if sock is not None:
            _drop(sock)
        raise


async def _arequest(message, server, tool, timeout):
    import asyncio
    try:
        return await asyncio.wait_for(_atries(_encode(message), server, tool, _limit(timeout)),
                                      None if timeout is None else timeout + 1)
    except asyncio.TimeoutError:
        raise _too_long(server, tool) from None


async def _atries(data, server, tool, end):
    import asyncio
    pauses = _pauses(end)
    while True:
        try:
            return await _aexchange(data, server, tool)
        except ToolError as e:
            pause = next(pauses, None) if e._again else None
            if pause is None:
                raise
        await asyncio.sleep(pause)


async def _aexchange(data, server, tool):
    import asyncio
    loop, sock = asyncio.get_running_loop(), _take()
    sending = None
    try:
        if sock is None:
            sock = _new()
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, SOCKET)
            except OSError as e:
                raise _unreachable(e, server, tool) from None
        if len(data) < 16384:
            await loop.sock_sendall(sock, data)
        else:
            sending = asyncio.ensure_future(loop.sock_sendall(sock, data))
        lines = _Lines()
        while True:
            part = await loop.sock_recv(sock, CHUNK)
            if not part:
                raise OSError("closed")
            found = _answer(lines.add(part), server, tool)
            if found:
                _drop(sock) if sending is not None and not sending.done() else _give(sock)
                return found[0]
    except _Answered as e:
        _drop(sock) if sending is not None and not sending.done() or e.args[0]._again else _give(sock)
        raise e.args[0] from None
    except OSError:
        _drop(sock)
        raise ToolError(BROKEN % (tool, server), server, tool, "broken") from None
    except BaseException:  # also a cancelled task
        if sock is not None:
            _drop(sock)
        raise
    finally:
        if sending is not None:
            if not sending.done():
                sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


def _value(block):
    """Return a block of a result as a value."""
    kind = block.get("type")
    if kind == "text":
        return block.get("text", "")
    if kind in ("image", "audio"):
        return _binary(block.get("data", ""), block, "")
    if kind == "resource_link":
        return Link(block)
    inner = block.get("resource")
    if kind == "resource" and isinstance(inner, dict):
        if "blob" in inner:
            return _binary(inner["blob"], inner, inner.get("uri", ""))
        return inner.get("text", "")
    return block


def _binary(text, block, uri):
    import base64
    made = Binary(base64.b64decode(text))
    made.mime_type, made.uri = block.get("mimeType", ""), uri
    return made


def _convert(result, server, tool):
    blocks = [b for b in result.get("content") or () if isinstance(b, dict)]
    if result.get("isError"):
        words = "\n".join(b.get("text", "") for b in blocks if b.get("type") == "text")
        raise ToolError(words or "the tool failed, and says nothing", server, tool, "tool_error", result)
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    values = [_value(b) for b in blocks]
    if values and all(isinstance(v, str) for v in values):
        return "\n".join(values)
    return values[0] if len(values) == 1 else values or None


def _message(server, tool, arguments, timeout):
    call = {"server": server, "tool": tool, "arguments": {k: v for k, v in arguments.items() if v is not ...}}
    if timeout is not None:
        call["timeout"] = timeout
    return {"call": call}


def call(server, tool, arguments=None, timeout=None):
    """Call a tool by the server's own names, and return its whole result: the MCP CallToolResult, as a dict."""
    return _request(_message(server, tool, arguments or {}, timeout), server, tool, timeout)


def search(query, server=None, limit=None):
    """Search the tools of all servers, or of one."""
    asked = {"query": query, "server": server, "limit": limit}
    return _request({"search": {k: v for k, v in asked.items() if v is not None}}, server or "", "search", None)


def _arguments(given, names):
    """Return the arguments for the tool, and the timeout, of what a module's function was given: its local variables.
    names are the tool's own names of those that have another one, and of its own timeout."""
    given = dict(given)
    more, timeout = given.pop("_more", {}), given.pop("_timeout")
    if "timeout" not in names:
        other = given.pop("timeout")
        timeout = other if timeout is None else timeout
    return {**{names.get(k, k): v for k, v in given.items()}, **more}, timeout


def caller(server):
    """Return what calls a tool of a server and waits for it."""
    def _call(tool, given, names={}):
        arguments, timeout = _arguments(given, names)
        return _convert(_request(_message(server, tool, arguments, timeout), server, tool, timeout), server, tool)
    return _call


class Aio:
    """The functions of a module, for `await`."""

    def __init__(self, module, server):
        self.__dict__.update(_module=module, _server=server)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        import types
        server, plain = self._server, getattr(sys.modules[self._module], name)
        if not isinstance(plain, types.FunctionType):
            raise AttributeError("%s is not a tool" % name)

        async def _call(tool, given, names={}):
            arguments, timeout = _arguments(given, names)
            result = await _arequest(_message(server, tool, arguments, timeout), server, tool, timeout)
            return _convert(result, server, tool)

        # The same code, which finds another _call.
        made = types.FunctionType(plain.__code__, {"_call": _call, "__builtins__": __builtins__}, name)
        made.__kwdefaults__, made.__doc__, made.__annotations__ = plain.__kwdefaults__, plain.__doc__, plain.__annotations__
        made.__module__, made.__qualname__ = self._module, "aio." + name
        if hasattr(sys.modules.get("inspect"), "markcoroutinefunction"):
            sys.modules["inspect"].markcoroutinefunction(made)
        return made

    def __dir__(self):
        return [n for n, v in vars(sys.modules[self._module]).items() if type(v) is type(_give) and not n.startswith("_")]


def _missing(words, name):
    """Return the error of a __getattr__. `from … import …` would hide the words of an AttributeError."""
    try:
        import opcode
        at = sys._getframe(2)
        if at.f_code.co_code[at.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            return ImportError(words, name=name)
    except Exception:
        pass  # another Python
    return AttributeError(words)


def _absent(name):
    """Say why no module has that name, and what helps."""
    import json
    try:
        with open(FOLDER + "/index.json", encoding="utf-8") as f:
            servers = json.load(f)
    except (OSError, ValueError):
        servers = []
    for s in servers:
        if s.get("off") and name in (s["name"], s["module"]):
            return "the MCP server %s cannot be called now: %s" % (s["name"], s.get("state"))
        if s["name"] == name:
            return "the module of the MCP server %s has another name: from mcp_tools import %s" % (name, s["module"])
    there = [s["module"] for s in servers if not s.get("off")]
    more = " and %d more" % (len(there) - 40) if len(there) > 40 else ""
    return "no MCP server %s is connected; connected are: %s%s. `mcp ls` in a shell, and %s/README.md, say more" % (
        name, ", ".join(there[:40]) or "none", more, FOLDER)


_revisions = {}


def _revision(path):
    try:
        st = os.stat(path)
    except OSError:
        return None
    return st.st_ino, st.st_mtime_ns, st.st_size


def loaded(module, path):
    """Note which revision of a module was loaded, and return its __getattr__ for names that it does not have."""
    _revisions[module] = path, _revision(path)

    def missing(name):
        if not name.startswith("_") and refresh(module):
            found = vars(sys.modules[module])
            if name in found:
                return found[name]
        short, why = module.rpartition(".")[2], vars(sys.modules[module]).get("_why")
        if why and not name.startswith("_"):
            raise _missing("%s has no tool %s that is known, and cannot be called now: %s" % (short, name, why), name)
        raise _missing("%s has no tool %s: `mcp ls %s` in a shell, and %s/%s/README.md, list its tools"
                       % (short, name, short, FOLDER, short), name)
    return missing


def refresh(module):
    """Load a module again if its file has changed, and report whether it was."""
    path, was = _revisions.get(module, ("", None))
    m, now = sys.modules.get(module), _revision(path)
    if m is None or now == was:
        return False
    if now is None:
        _revisions.pop(module, None)
        sys.modules.pop(module, None)
        vars(sys.modules[__package__]).pop(module.rpartition(".")[2], None)
        return True
    names = vars(m)
    before = dict(names)
    for n in [n for n in names if not n.startswith("__")]:
        del names[n]
    try:
        m.__spec__.loader.exec_module(m)
    except BaseException:
        names.update(before)
        raise
    return True


class Package(type(sys)):
    """The package mcp_tools: its modules follow their files."""

    def __getattribute__(self, name):
        if not name.startswith("_") and "mcp_tools." + name in _revisions:
            refresh("mcp_tools." + name)
        return super().__getattribute__(name)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        import importlib
        importlib.invalidate_caches()  # a file that is new may have come in the moment in which the folder was read
        try:
            return importlib.import_module("mcp_tools." + name)
        except ModuleNotFoundError as e:
            if e.name != "mcp_tools." + name:
                raise
        raise _missing(_absent(name), name)

    def __dir__(self):
        found = [f[:-3] for f in os.listdir(FOLDER) if f.endswith(".py") and not f.startswith("_")]
        return sorted(set(found) | {n for n in vars(self) if not n.startswith("_")})
