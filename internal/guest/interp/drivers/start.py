# Sandlot's Python driver starts here, when its code is run and _start is called (proc.go). A process of its own compiles
# the driver, since a compiler leaves more in memory than all that an idle interpreter needs.
SIZES = 100  # bytes behind the sources, for the sizes of the compiled parts


def _codes():
    """Return the compiled driver, and the compiled notebook.py and pretty.py as bytes."""
    import marshal, os, sys

    # The sources are in a file, with a zero byte between them: as arguments they would stay in memory, several times.
    file = int(sys.argv.pop(1))
    end = os.fstat(file).st_size

    def compiled():
        sources = os.pread(file, end, 0).split(b"\0")
        return [marshal.dumps(compile(source.decode(), "<string>", "exec", dont_inherit=True)) for source in sources]

    try:
        child = os.fork()
        if child == 0:
            try:
                parts = compiled()
                os.pwrite(file, marshal.dumps([len(part) for part in parts]).ljust(SIZES) + b"".join(parts), end)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        sizes, at, parts = marshal.loads(os.pread(file, SIZES, end)), end + SIZES, []
        for size in sizes:
            parts.append(os.pread(file, size, at))
            at += size
    except Exception:  # such as at the limit of processes
        parts = compiled()
    os.close(file)
    return marshal.loads(parts[0]), *parts[1:]


def _start():
    import builtins

    driver, notebook, pretty = _codes()
    # The driver has the builtins of before the code changed them.
    exec(driver, {"__name__": "__main__", "__builtins__": vars(builtins).copy(), "NOTEBOOK": notebook, "PRETTY": pretty})

