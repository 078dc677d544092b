# Tries, as one user of a sandbox, to reach what a program of another one has. It says what was done. It proves first that
# this is a sandbox, and aims at the program whose process id is its argument alone, which the test has started.
import ctypes, os, resource, signal, socket, struct, sys

assert "gvisor" in open("/proc/version").read().lower()
assert os.geteuid() not in (0, 2001)
libc = ctypes.CDLL(None, use_errno=True)
pid, secret = int(sys.argv[1]), "treasure-of-2001"
amd64 = os.uname().machine == "x86_64"
def nr(x, arm):
    return x if amd64 else arm

def refused(what, f):
    try:
        got = f()
    except (OSError, ValueError):
        return
    if got not in (None, False, -1):
        print(what, "is done:", got)

def call(what, number, *args):
    if libc.syscall(number, *args) >= 0:
        print(what, "is done")

status = open("/proc/%d/status" % pid).read()
assert "\nUid:\t2001\t2001\t2001\t2001\n" in status, status

# Its life, its limits and its rights.
for number in 0, signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP:
    refused("signal %d" % number, lambda: (os.kill(pid, number), True)[1])
refused("a signal to its group", lambda: (os.killpg(os.getpgid(pid), 0), True)[1])
if hasattr(signal, "pidfd_send_signal"):
    refused("a signal by a pidfd", lambda: (signal.pidfd_send_signal(os.pidfd_open(pid), 0), True)[1])
refused("its limits", lambda: (resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1)), True)[1])
refused("its niceness", lambda: (os.setpriority(os.PRIO_PROCESS, pid, 19), True)[1])

# Its memory, files and namespaces.
for request in 16, 0x4206:  # attach, seize
    call("ptrace %x" % request, nr(101, 117), request, pid, 0, 0)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
mine, theirs = Vector(ctypes.addressof(buffer), 16), Vector(0x400000, 16)
call("process_vm_readv", nr(310, 270), pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
call("process_vm_writev", nr(311, 271), pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
call("pidfd_getfd", 438, getattr(os, "pidfd_open", lambda *a: -1)(pid), 0, 0)
call("move_pages", nr(279, 239), pid, 0, 0, 0, 0, 0)
for name in "environ", "mem", "auxv", "maps", "smaps", "stack", "syscall", "io", "personality":
    refused("reading its " + name, lambda: len(open("/proc/%d/%s" % (pid, name), "rb").read(64)) > 0)
for name in "root/etc/passwd", "cwd/own", "exe":
    refused("opening its " + name, lambda: os.open("/proc/%d/%s" % (pid, name), os.O_RDONLY) >= 0)
for fd in range(8):
    refused("its descriptor %d" % fd, lambda: os.open("/proc/%d/fd/%d" % (pid, fd), os.O_RDONLY | os.O_NONBLOCK) >= 0)
for name in "oom_score_adj", "clear_refs", "coredump_filter", "comm", "uid_map":
    refused("writing its " + name, lambda: os.write(os.open("/proc/%d/%s" % (pid, name), os.O_WRONLY), b"1") > 0)
for name in "user", "mnt", "net", "pid", "uts", "ipc":
    refused("setns " + name, lambda: libc.setns(os.open("/proc/%d/ns/%s" % (pid, name), os.O_RDONLY), 0) == 0)

# What it has on the disk: a folder of its own, and files in one that all may write.
for path in "/var/tmp/of2001/own", "/var/tmp/of2001/../of2001/own", "/var/tmp/file2001":
    refused("reading " + path, lambda: secret in open(path).read())
    refused("writing " + path, lambda: os.open(path, os.O_WRONLY) >= 0)
    refused("chmod of " + path, lambda: (os.chmod(path, 0o777), True)[1])
    refused("chown of " + path, lambda: (os.chown(path, os.geteuid(), -1), True)[1])
    refused("removing " + path, lambda: (os.remove(path), True)[1])
    refused("renaming " + path, lambda: (os.rename(path, path + "2"), True)[1])
    def linked():
        os.link(path, "/tmp/link-of-2001")
        return secret in open("/tmp/link-of-2001").read()
    refused("a link to " + path, linked)
refused("its socket", lambda: socket.socket(socket.AF_UNIX).connect("/var/tmp/of2001/socket") is None)

# Its ids, by any way.
for name, args in (("setuid", (2001,)), ("setgid", (2001,)), ("setreuid", (2001, 2001)), ("setresgid", (2001, 2001, 2001)),
                   ("setgroups", ([2001],))):
    refused(name, lambda: (getattr(os, name)(*args), True)[1])
libc.syscall(nr(122, 151), 2001)
refused("its file after setfsuid", lambda: secret in open("/var/tmp/file2001").read())
def claims():  # the ids that the kernel passes with a message
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("iII", os.getpid(), 2001, 2001))])
    return struct.unpack("iII", b.recvmsg(1, 64)[1][0][2])[1] == 2001
refused("a message in its name", claims)
for program in "su", "sudo", "runuser", "setpriv", "chroot":
    line = {"su": "su u2001 -c id", "sudo": "sudo -n -u '#2001' id", "runuser": "runuser -u u2001 id",
            "setpriv": "setpriv --reuid 2001 id", "chroot": "chroot --userspec=2001 / id"}[program]
    if "2001" in os.popen(line + " </dev/null 2>/dev/null").read(): print(program, "is done")
# A terminal that the two share would take what the other types.
for path in os.listdir("/dev/pts"):
    if path != "ptmx": refused("the terminal " + path, lambda: os.open("/dev/pts/" + path, os.O_RDWR | os.O_NOCTTY) >= 0)
print("tried")
