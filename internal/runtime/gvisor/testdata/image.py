# Attacks on what sandboxes of one image share. The caller has proven that this is a sandbox; all files are the
# image's, and the sandbox's own copy of them.
import ctypes, ctypes.util, glob, mmap, os, shutil, subprocess

def refused(what, f):
    try: f()
    except OSError: return
    print(what, "is done")

def tried(f):
    try: f()
    except OSError: pass

# Every kind of change, of files, folders, links and modes.
def write(path, flags=os.O_WRONLY):
    f = os.open(path, flags); os.write(f, b"changed"); os.fsync(f); os.close(f)
tried(lambda: write("/attack/data"))
tried(lambda: write("/attack/data", os.O_WRONLY | os.O_APPEND))
tried(lambda: write("/etc/passwd", os.O_WRONLY | os.O_TRUNC))
tried(lambda: os.truncate("/etc/group", 0))
tried(lambda: os.chmod("/attack/data", 0o777))
tried(lambda: os.chmod("/etc", 0o777))
tried(lambda: os.chown("/attack/data", 1, 1))
tried(lambda: os.utime("/attack/data", (1, 1)))
tried(lambda: os.setxattr("/attack/data", "user.x", b"x"))
tried(lambda: os.rename("/attack/data", "/attack/renamed"))
tried(lambda: os.rename("/attack/renamed", "/attack/data"))
tried(lambda: os.link("/etc/passwd", "/attack/hard"))
tried(lambda: os.remove("/usr/bin/perl"))
tried(lambda: os.symlink("/attack", "/usr/lib/link"))
tried(lambda: os.mkdir("/usr/sbin/new"))
tried(lambda: shutil.rmtree("/usr/lib/python3/dist-packages", ignore_errors=True))
tried(lambda: os.rename("/usr/share", "/usr/elsewhere"))
with open("/attack/root", "r+b") as f: # a program that others run
    with mmap.mmap(f.fileno(), 4096) as m:
        m[:4] = b"evil"
with open("/attack/other", "rb") as f: # a mapping that is not shared
    with mmap.mmap(f.fileno(), 4096, access=mmap.ACCESS_COPY) as m:
        m[:4] = b"evil"

# The mount itself.
libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
for target in (b"/", b"/usr", b"/etc"):
    for flags in (32, 32 | 4096, 4096, 1 << 20):  # remount, bind, shared
        if libc.mount(b"none", target, b"", flags, b"") == 0: print("mount of", target, flags, "is done")
if libc.umount2(b"/", 2) == 0: print("the root is unmounted")

# What the image has for an attacker.
def ids(program):
    return subprocess.run([program, "-p", "-c", "echo $EUID; awk '/^CapEff|^CapPrm/ {print $2}' /proc/self/status"],
                          capture_output=True, text=True).stdout.split()
me = [str(os.geteuid())] + [l.split()[1] for l in open("/proc/self/status") if l.startswith(("CapPrm", "CapEff"))]
if ids("/attack/other") != me: print("setuid gives", ids("/attack/other"))
for name in ("mem", "kmsg", "kvm", "disk", "console", "fuse", "tun"):
    for flags in (os.O_RDONLY, os.O_RDWR):
        refused("opening " + name, lambda: os.close(os.open("/attack/" + name, flags | os.O_NONBLOCK)))
print("tried")
