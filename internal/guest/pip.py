# Sandlot's pip: "pip install" by uv, in a fraction of the time. What uv does not have, or would do in another way, pip does.
import os
import re
import runpy
import sys

# What uv has as pip has it, and variables of pip's that change nothing of what is installed.
OPTIONS = {"-q", "--quiet", "--no-deps", "-r", "--requirement"}
VARIABLES = {"PIP_" + name for name in ("BREAK_SYSTEM_PACKAGES", "ROOT_USER_ACTION", "DISABLE_PIP_VERSION_CHECK", "CACHE_DIR", "CERT",
                                        "NO_COLOR", "QUIET", "NO_INPUT")}


def environment():
    """The Python of the environment into which uv installs; None: it has none for this Python."""
    if sys.prefix != sys.base_prefix:
        return sys.executable
    python = "/.venv/bin/python"  # what is installed there goes to the user's folder (guest/home.go)
    return python if os.path.realpath(python) == os.path.realpath(sys.executable) else None


def is_own():
    """Whether the user has settings of pip, which uv does not read."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return any(name.startswith("PIP_") and name not in VARIABLES for name in os.environ) or \
        any(map(os.path.exists, (config + "/pip/pip.conf", os.path.expanduser("~/.pip/pip.conf"), sys.prefix + "/pip.conf")))


def found(word):
    """The version of a package that is there, and needs no installation: pip leaves it as it is; None: it is not, or the word says more."""
    from importlib import metadata
    try:
        return metadata.version(word) if re.fullmatch(r"[A-Za-z0-9][\w.-]*", word) and not os.path.exists(word) else None
    except (metadata.PackageNotFoundError, ValueError):
        return None


def install(words):
    """Install by uv, and return the exit code; None: pip has to do it."""
    import shutil
    uv, python = shutil.which("uv"), environment()
    if not uv or not python or not words or is_own() or any(w.startswith("-") and w not in OPTIONS for w in words):
        return None
    if not any(w.startswith("-") for w in words):
        there = {w: found(w) for w in words}
        for w in words:
            if there[w]:
                print("Requirement already satisfied: %s (%s)" % (w, there[w]))
        words = [w for w in words if not there[w]]
        if not words:
            return 0
    sys.stdout.flush()
    code = os.spawnv(os.P_WAIT, uv, [uv, "pip", "install", "--python", python] + words)
    return None if code == 2 else code  # 2: uv does not take these arguments


done = install(sys.argv[2:]) if sys.argv[1:2] == ["install"] else None
if done is not None:
    sys.exit(done)
try:
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
except ModuleNotFoundError as e:
    sys.exit("this Python has no pip" if e.name == "pip" else "pip: %s" % e)
