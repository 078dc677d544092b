# The text of a value as IPython's pretty printer writes it: the driver (python.py) loads this file for the first value
# that is not a plain one. It imports nothing at the start: a module takes more memory than all of this.
WIDTH, MOST_ITEMS = 79, 1000
# A longer text is the one of repr, which takes no time.
MOST_TEXT = 128 << 10


class Enough(Exception):
    """The text is longer than MOST_TEXT."""


class Nesting:
    """A group of the printer: its lines are broken all, or not at all."""
    def __init__(self, depth):
        self.depth, self.breaks, self.broken = depth, [], False


class Printer:
    """What _repr_pretty_ writes to. A line that becomes too long is broken at the breakables of the outermost group."""
    verbose, max_width, max_seq_length, newline = False, WIDTH, MOST_ITEMS, "\n"

    def __init__(self):
        self.parts, self.column, self.size = [], 0, 0
        # Texts and breakables that are not written yet: a breakable is a list of its separator, indentation and group.
        self.waiting, self.waiting_width = [], 0
        outermost = Nesting(0)
        self.groups, self.levels = [outermost], [[outermost]]
        self.indentation, self.stack = 0, []

    def write(self, text):
        self.size += len(text)
        if self.size > MOST_TEXT:
            raise Enough
        self.parts.append(text)

    def write_waiting(self, item):
        if isinstance(item, str):
            self.write(item)
            self.column += len(item)
            return
        separator, indentation, group = item
        group.breaks.pop(0)
        if group.broken:
            self.write("\n" + " " * indentation)
            self.column = indentation
            return
        if not group.breaks:
            self.leave(group)
        self.write(separator)
        self.column += len(separator)

    def width_of(self, item):
        return len(item if isinstance(item, str) else item[0])

    def leave(self, group):
        if group.depth < len(self.levels) and group in self.levels[group.depth]:
            self.levels[group.depth].remove(group)

    def outermost_group(self):
        """The outermost group with breakables, which is broken now; None: there is none."""
        for level in self.levels:
            for n, group in enumerate(reversed(level)):
                if group.breaks:
                    del level[n]
                    group.broken = True
                    return group
            for group in level:
                group.broken = True
            del level[:]

    def break_group(self, group):
        done = 0
        while done < len(self.waiting) and (group.breaks or isinstance(self.waiting[done], str)):
            item = self.waiting[done]
            self.waiting_width -= self.width_of(item)
            self.write_waiting(item)
            done += 1
        del self.waiting[:done]

    def break_outer_groups(self):
        while WIDTH < self.column + self.waiting_width:
            group = self.outermost_group()
            if group is None:
                return
            self.break_group(group)

    def text(self, text):
        text = str(text)
        if not self.waiting:
            self.write(text)
            self.column += len(text)
            return
        self.waiting.append(text)
        self.waiting_width += len(text)
        self.break_outer_groups()

    def new_line(self):
        self.flush()
        self.write("\n" + " " * self.indentation)
        self.column = self.indentation

    def breakable(self, sep=" "):
        group = self.groups[-1]
        if group.broken:
            self.new_line()
            return
        self.waiting.append((sep, self.indentation, group))
        group.breaks.append(sep)
        self.waiting_width += len(sep)
        self.break_outer_groups()

    def break_(self):
        group = self.outermost_group()
        if group is not None:
            self.break_group(group)
        self.new_line()

    def begin_group(self, indent=0, open=""):
        if open:
            self.text(open)
        group = Nesting(self.groups[-1].depth + 1)
        self.groups.append(group)
        while len(self.levels) <= group.depth:
            self.levels.append([])
        self.levels[group.depth].append(group)
        self.indentation += indent

    def end_group(self, dedent=0, close=""):
        self.indentation -= dedent
        group = self.groups.pop()
        if not group.breaks:
            self.leave(group)
        if close:
            self.text(close)

    def group(self, indent=0, open="", close=""):
        return Entered(lambda: self.begin_group(indent, open), lambda: self.end_group(indent, close))

    def indent(self, indent):
        def by(amount):
            self.indentation += amount
        return Entered(lambda: by(indent), lambda: by(-indent))

    def flush(self):
        for item in self.waiting:
            self.write_waiting(item)
        self.waiting, self.waiting_width = [], 0

    def _enumerate(self, items):
        for n, item in enumerate(items):
            if n >= MOST_ITEMS:
                self.text(",")
                self.breakable()
                self.text("...")
                return
            yield n, item

    def pretty(self, value):
        cycle = id(value) in self.stack
        self.stack.append(id(value))
        self.begin_group()
        try:
            kind = attribute(value, "__class__") or type(value)
            for cls in getattr(kind, "__mro__", (kind,)):
                write = WRITERS.get((attribute(cls, "__module__"), attribute(cls, "__name__")))
                if write is None and callable(cls.__dict__.get("_repr_pretty_")):
                    write = cls._repr_pretty_
                if write is None and cls is not object and "__repr__" in cls.__dict__ and callable(attribute(cls, "__repr__")):
                    write = of_repr
                if write is not None:
                    write(value, self, cycle)
                    return
            of_object(value, self, cycle)
        finally:
            self.end_group()
            self.stack.pop()


class Entered:
    def __init__(self, enter, leave):
        self.enter, self.leave = enter, leave

    def __enter__(self):
        self.enter()

    def __exit__(self, *_):
        self.leave()


def attribute(value, name):
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def pretty(value):
    printer = Printer()
    try:
        printer.pretty(value)
        printer.flush()
    except Enough:
        return repr(value)
    return "".join(printer.parts)


def of_repr(value, p, cycle):
    with p.group():
        for n, line in enumerate(repr(value).splitlines()):
            if n:
                p.break_()
            p.text(line)


def of_object(value, p, cycle):
    kind = attribute(value, "__class__") or type(value)
    if attribute(kind, "__repr__") is not object.__repr__:
        of_repr(value, p, cycle)
        return
    p.begin_group(1, "<")
    p.pretty(kind)
    p.text(" at 0x%x" % id(value))
    if cycle:
        p.text(" ...")
    p.end_group(1, ">")


def items_in(start, end):
    def write(value, p, cycle):
        if cycle:
            return p.text(start + "..." + end)
        p.begin_group(len(start), start)
        write_items(value, p)
        if len(value) == 1 and isinstance(value, tuple):
            p.text(",")
        p.end_group(len(start), end)
    return write


def write_items(items, p):
    for n, item in p._enumerate(items):
        if n:
            p.text(",")
            p.breakable()
        p.pretty(item)


def set_in(start, end):
    def write(value, p, cycle):
        if cycle:
            return p.text(start + "..." + end)
        if len(value) == 0:
            return p.text(type(value).__name__ + "()")
        p.begin_group(len(start), start)
        write_items(in_order(value) if len(value) < MOST_ITEMS else value, p)
        p.end_group(len(start), end)
    return write


def in_order(items):
    items = list(items)
    for by in (None, str):
        try:
            return sorted(items, key=by)
        except Exception:
            pass
    return items


def dict_in(start, end):
    def write(value, p, cycle):
        if cycle:
            return p.text("{...}")
        p.begin_group(len(start), start)
        for n, key in p._enumerate(value.keys()):
            if n:
                p.text(",")
                p.breakable()
            p.pretty(key)
            p.text(": ")
            p.pretty(value[key])
        p.end_group(len(start), end)
    return write


class Raw:
    """A text that stands for itself."""
    def __init__(self, text):
        self.text = text

    def _repr_pretty_(self, p, cycle):
        p.text(self.text)


def call(p, name, *args, **named):
    """Write a call of a constructor."""
    p.begin_group()
    with p.group(len(name) + 1, name + "(", ")"):
        for n, arg in enumerate([*args, *named.items()]):
            if n:
                p.text(",")
                p.breakable()
            if n < len(args):
                p.pretty(arg)
                continue
            with p.group(len(arg[0]) + 1, arg[0] + "="):
                p.pretty(arg[1])
    p.end_group()


def made_of(parts):
    """The call of a container's constructor, whose arguments are a list of positional ones and a dict."""
    def write(value, p, cycle):
        args, named = ([Raw("...")], {}) if cycle else parts(value)
        call(p, value.__class__.__name__, *args, **named)
    return write


def of_super(value, p, cycle):
    p.begin_group(8, "<super: ")
    p.pretty(value.__thisclass__)
    p.text(",")
    p.breakable()
    p.pretty(value.__self__)
    p.end_group(8, ">")


def of_pattern(value, p, cycle):
    import re
    flags = "|".join("re." + name for name in ("IGNORECASE", "LOCALE", "MULTILINE", "DOTALL", "UNICODE", "VERBOSE", "DEBUG") if value.flags & getattr(re, name))
    pattern = Raw("r" + repr(value.pattern).replace("\\\\", "\\"))
    call(p, "re.compile", *[pattern, Raw(flags)][:2 if value.flags else 1])


def of_namespace(value, p, cycle):
    call(p, "namespace", *([Raw("...")] if cycle else []), **({} if cycle else value.__dict__))


def of_type(value, p, cycle):
    own = next((cls for cls in type(value).__mro__ if "__repr__" in vars(cls)), type)
    if own is not type:
        return of_repr(value, p, cycle)
    module, name = attribute(value, "__module__"), attribute(value, "__qualname__")
    name = name if isinstance(name, str) else value.__name__
    p.text(name if module in (None, "builtins", "exceptions") else "%s.%s" % (module, name))


def of_function(value, p, cycle):
    name, module = attribute(value, "__qualname__") or value.__name__, value.__module__
    if module and module != "builtins":
        name = module + "." + name
    try:
        name += signature(value)
    except ValueError:
        pass
    p.text("<function %s>" % name)


def signature(function):
    import inspect
    return str(inspect.signature(function))


def of_exception(value, p, cycle):
    cls = value.__class__
    call(p, cls.__qualname__ if cls.__module__ == "builtins" else "%s.%s" % (cls.__module__, cls.__qualname__), *value.args)


def of_ordered(value):
    return ([list(value.items())] if len(value) else []), {}


def of_deque(value):
    return [list(value)], {} if value.maxlen is None else {"maxlen": value.maxlen}


WRITERS = {("builtins", name): of_repr for name in ("int", "float", "str", "bytes", "range", "slice", "method")}
WRITERS.update({
    ("builtins", "tuple"): items_in("(", ")"), ("builtins", "list"): items_in("[", "]"), ("builtins", "dict"): dict_in("{", "}"),
    ("builtins", "set"): set_in("{", "}"), ("builtins", "frozenset"): set_in("frozenset({", "})"), ("builtins", "super"): of_super,
    ("builtins", "type"): of_type, ("builtins", "function"): of_function, ("builtins", "builtin_function_or_method"): of_function,
    ("builtins", "mappingproxy"): dict_in("mappingproxy({", "})"), ("builtins", "BaseException"): of_exception,
    ("os", "_Environ"): dict_in("environ{", "}"), ("re", "Pattern"): of_pattern, ("types", "SimpleNamespace"): of_namespace,
    ("collections", "defaultdict"): made_of(lambda v: ([v.default_factory, dict(v)], {})), ("collections", "OrderedDict"): made_of(of_ordered),
    ("collections", "deque"): made_of(of_deque), ("collections", "Counter"): made_of(lambda v: ([dict(v.most_common())] if len(v) else [], {})),
    ("collections", "UserList"): made_of(lambda v: ([v.data], {})),
})
