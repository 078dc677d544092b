# Sandlot's Python driver starts here. A process of its own compiles it, since a compiler leaves more in memory than all
# that an idle interpreter needs.
def _codes():
    """Return the compiled driver, and the compiled notebook.py and pretty.py as bytes."""
    import marshal, os, sys

    sources = sys.argv[1:4]
    del sys.argv[1:4]

    def compiled():
        return tuple(marshal.dumps(compile(source, "<string>", "exec", dont_inherit=True)) for source in sources)

    text = b""
    try:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                left = marshal.dumps(compiled())
                while left:
                    left = left[os.write(writer, left):]
            finally:
                os._exit(0)
        os.close(writer)
        while part := os.read(reader, 1 << 20):
            text += part
        os.close(reader)
        os.waitpid(child, 0)
        driver, *others = marshal.loads(text)
    except Exception:  # such as at the limit of processes
        driver, *others = compiled()
    return marshal.loads(driver), *others


def _start():
    import builtins

    driver, notebook, pretty = _codes()
    # The driver has the builtins of before the code changed them.
    exec(driver, {"__name__": "__main__", "__builtins__": vars(builtins).copy(), "NOTEBOOK": notebook, "PRETTY": pretty})


_start()
