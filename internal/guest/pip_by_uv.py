# Sandlot's pip: "pip install" of packages by uv, in a fraction of the time. Whatever uv would do in another way is pip's.
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile

BASE = "@BASE@"  # where the user's packages are (PYTHONUSERBASE)
QUIET = {"-q", "--quiet"}
# A package with extras and versions: no path, no URL, no marker.
REQUIREMENT = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[\w.,-]*\])?([=<>!~]=?=?[\w.*+!,<>=~-]*)?")
# A line of what uv resolves.
PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[\w.,-]*\])?==([0-9][\w.+!]*)")
# Variables of pip's that change nothing of what is installed.
VARIABLES = {"PIP_" + name for name in ("BREAK_SYSTEM_PACKAGES", "ROOT_USER_ACTION", "DISABLE_PIP_VERSION_CHECK", "CACHE_DIR", "CERT",
                                        "NO_COLOR", "QUIET", "NO_INPUT")}
CONFIG = "/etc/uv/uv.toml"  # Sandlot's own, beside /etc/pip.conf


def environment():
    """The Python of the environment into which uv installs; None: it has none for this Python."""
    if os.path.exists(sys.prefix + "/conda-meta"):
        return None
    if sys.prefix != sys.base_prefix:
        return sys.executable
    python = "/.venv/bin/python"  # what is installed there goes to the user's folder (guest/home.go)
    return python if os.environ.get("PYTHONUSERBASE") == BASE and os.path.realpath(python) == os.path.realpath(sys.executable) else None


def has_settings():
    """Whether there are settings of pip, which uv does not read."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    files = [config + "/pip/pip.conf", os.path.expanduser("~/.pip/pip.conf"), sys.prefix + "/pip.conf", "/etc/xdg/pip/pip.conf"]
    if not os.path.exists(CONFIG):
        files.append("/etc/pip.conf")
    return any(name.startswith("PIP_") and name not in VARIABLES for name in os.environ) or any(map(os.path.exists, files))


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(program, wanted, there):
    """The packages and versions that uv would have with these, as matches of PINNED; None: it finds none."""
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, name) for name in ("requirements.txt", "constraints.txt")]
        for name, lines in zip(names, (wanted, map("==".join, there.items()))):
            with open(name, "w") as f:
                f.write("".join(line + "\n" for line in lines))
        done = subprocess.run(program + ["--quiet", "--no-header", "--no-annotate", "--no-strip-extras", "--constraint", names[1], names[0]],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = list(map(PINNED.fullmatch, done.stdout.split()))
    return found if done.returncode == 0 and all(found) else None


def command(words):
    """The command of uv that installs what is missing; None: pip has to do it, or nothing is missing."""
    from importlib import metadata
    wanted = [w for w in words if w not in QUIET]
    requirements = list(map(REQUIREMENT.fullmatch, wanted))
    uv, python = shutil.which("uv"), environment()
    if not uv or not python or not wanted or has_settings() or not all(requirements) or any(map(os.path.exists, wanted)):
        return None
    settings = ["--python", python, "--only-binary", ":all:", "--index-strategy", "unsafe-best-match"]
    settings += ["--config-file", CONFIG] if os.path.exists(CONFIG) else ["--no-config"]
    # uv sees only what is in the environment's own folder: it is told what else there is, and that this does not change,
    # unless another version was asked for.
    there = {normal(d.metadata["Name"]): d.version for d in reversed(list(metadata.distributions()))
             if d.metadata["Name"] and PINNED.fullmatch("%s==%s" % (d.metadata["Name"], d.version))}
    named = {normal(r[1]) for r in requirements if r[2]}
    program = [uv, "pip", "compile", *settings]
    found = resolve(program, wanted, there)
    if found is None and named.intersection(there):
        found = resolve(program, wanted, {name: version for name, version in there.items() if name not in named})
    missing = [pinned[0] for pinned in found or () if there.get(normal(pinned[1])) != pinned[2]]
    return [uv, "pip", "install", "--no-deps", *settings, *QUIET.intersection(words), *missing] if missing else None


def main():
    found = None
    if sys.argv[1:2] == ["install"]:
        try:
            found = command(sys.argv[2:])
        except Exception:
            pass  # pip says what is wrong
    if found:
        os.execv(found[0], found)
    try:
        runpy.run_module("pip", run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as e:
        sys.exit("this Python has no pip" if e.name == "pip" else "pip: %s" % e)


main()
