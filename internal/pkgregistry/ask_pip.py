# Prints, as JSON, the index that pip uses by itself and the settings that it was
# given. The settings are asked by pip's own command, the index by its modules
# (which any version may move) or else by its help text.
import ast, glob, json, os, re, subprocess, sys

sys.path[:] = [p for p in sys.path if p]  # not the folder that it runs in
answer = {"default": "", "files": "", "config": {}}


def start(*args):
    return subprocess.Popen([sys.executable, "-m", "pip", *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def printed(p):
    out = p.stdout.read(1 << 19)
    p.stdout.close()
    return out.decode("utf-8", "replace") if p.wait() == 0 else ""


def bundled():
    """Makes pip importable where only the copy for virtual environments is there."""
    import ensurepip
    folders = [os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"), getattr(ensurepip, "_WHEEL_PKG_DIR", None)]
    found = [w for d in folders if d for w in glob.glob(os.path.join(d, "pip-*.whl"))]
    sys.path.insert(0, found[0])
    os.environ["PYTHONPATH"] = found[0]


try:
    import pip as _
except ImportError:
    try:
        bundled()
    except Exception:
        pass

config = start("config", "list")
try:
    from pip._internal.models.index import PyPI
    answer["default"], answer["files"] = PyPI.simple_url, PyPI.file_storage_domain
except Exception:
    found = re.search(r"\(default:?\s+(https?://[^\s)]+)\)", printed(start("install", "--help")))
    answer["default"] = found.group(1) if found else ""

for line in printed(config).splitlines():
    key, equals, value = line.partition("=")
    try:
        answer["config"][key] = str(ast.literal_eval(value)) if equals else ""
    except (ValueError, SyntaxError):
        pass

print(json.dumps(answer))
