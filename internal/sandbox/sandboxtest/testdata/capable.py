# Tries, with the capabilities that programs of root have, or as another user, what they must not give. It says what was
# done. It proves first that this is a sandbox, and aims at the canary alone, whose path is its argument.
import ctypes, os, socket, struct, sys

assert "gvisor" in open("/proc/version").read().lower()
libc = ctypes.CDLL(None, use_errno=True)
canary = sys.argv[1]

def refused(what, f):
    try:
        got = f()
    except (OSError, ValueError):
        return
    if got not in (None, False, -1):
        print(what, "is done:", got)

def call(what, number, *args):
    if number is not None and libc.syscall(number, *args) >= 0:
        print(what, "is done")

amd64 = os.uname().machine == "x86_64"
def nr(x, arm):
    return x if amd64 else arm

# The agent: its memory, its descriptors, its environment, its namespaces, its socket, its life.
for name in "mem", "maps", "auxv", "io":
    refused("reading /proc/1/" + name, lambda: len(open("/proc/1/" + name, "rb").read(64)) > 0 and name == "mem")
refused("reading the agent's memory", lambda: os.pread(os.open("/proc/1/mem", os.O_RDONLY), 16, 0x400000))
refused("writing the agent's memory", lambda: os.pwrite(os.open("/proc/1/mem", os.O_RDWR), b"x", 0x400000))
for fd in range(16):
    refused("the agent's descriptor %d" % fd, lambda: os.open("/proc/1/fd/%d" % fd, os.O_RDWR) >= 0)
refused("the agent's secret", lambda: b"SECRET" in open("/proc/1/environ", "rb").read())
for request in 16, 0x4206:  # attach, seize
    call("ptrace %x" % request, nr(101, 117), request, 1, 0, 0)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
mine, theirs = Vector(ctypes.addressof(buffer), 16), Vector(0x400000, 16)
call("process_vm_readv", nr(310, 270), 1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
call("process_vm_writev", nr(311, 271), 1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
call("kcmp", nr(312, 272), 1, os.getpid(), 0, 0, 0)
call("pidfd_getfd", 438, getattr(os, "pidfd_open", lambda *a: -1)(1), 0, 0)
for name in "mnt", "net", "pid", "uts", "ipc":
    def enter():
        f = os.open("/proc/1/ns/" + name, os.O_RDONLY)
        return libc.setns(f, 0) == 0 and name + " of the agent"
    refused("setns", enter)
for path in "/run/sandlot/agent.sock", "/run/sandlot", "/.sandlot/agent":
    refused("removing " + path, lambda: (os.rename(path, path + "2"), True)[1])
    refused("chmod of " + path, lambda: (os.chmod(path, 0o777), True)[1])
    refused("writing into " + path, lambda: os.close(os.open(path, os.O_WRONLY)) or True)
    refused("a file in " + path, lambda: os.close(os.open(path + "/x", os.O_CREAT | os.O_WRONLY)) or True)

# The kernel: mounts, devices, modules, keys, tracing.
for target in b"/", b"/usr", b"/run/sandlot", b"/proc":
    for flags in 0, 32, 32 | 4096, 4096, 1 << 20:
        call("mount at " + target.decode(), nr(165, 40), b"tmpfs", target, b"tmpfs", flags, 0)
    call("umount", nr(166, 39), target, 2)
call("pivot_root", nr(155, 41), b"/tmp", b"/tmp")
call("open_tree with a clone", 428, -100, b"/", 1)
call("fsopen", 430, b"tmpfs", 0)
call("fanotify_init", nr(300, 262), 0, 0)
call("bpf", nr(321, 280), 0, ctypes.create_string_buffer(64), 64)
call("perf_event_open", nr(298, 241), ctypes.create_string_buffer(b"\1\0\0\0\x70\0\0\0" + bytes(104), 112), 0, -1, -1, 0)
call("init_module", nr(175, 105), ctypes.create_string_buffer(8), 8, b"")
call("open_by_handle_at", nr(304, 265), 3, ctypes.create_string_buffer(32), 0)
call("userfaultfd", nr(323, 282), 0)
for kind in 0o020666, 0o060666:
    refused("mknod", lambda: (os.mknod("/tmp/node", kind, os.makedev(1, 1)), True)[1])
for path in "/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/kvm", "/dev/sda", "/dev/vda", "/proc/kcore":
    refused("opening " + path, lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) or True)
for name in "kernel/core_pattern", "kernel/modprobe", "vm/overcommit_memory":
    refused("/proc/sys/" + name, lambda: os.write(os.open("/proc/sys/" + name, os.O_WRONLY), b"1"))
call("capset", nr(126, 91), ctypes.create_string_buffer(struct.pack("II", 0x20080522, 0), 8),
     ctypes.create_string_buffer(struct.pack("IIIIII", *[0xffffffff] * 6), 24))
for cap in 12, 21, 19:  # NET_ADMIN, SYS_ADMIN, SYS_PTRACE
    if libc.prctl(47, 2, cap, 0, 0) == 0: print("the ambient capability", cap)
    if libc.prctl(23, cap, 0, 0, 0) == 1: print("the bounding set has", cap)

# The network: its rules, raw and packet sockets, and its addresses.
for family, kind, protocol in ((2, 3, 255), (2, 3, 1), (10, 3, 58), (17, 3, 0x0300), (17, 2, 0x0300), (40, 1, 0)):
    refused("a socket %d %d %d" % (family, kind, protocol), lambda: socket.socket(family, kind, protocol) is not None)
def change(kind, body):
    s = socket.socket(16, 3, 0)
    s.settimeout(5)
    s.send(struct.pack("IHHII", 16 + len(body), kind, 5, 1, 0) + body)
    answer = s.recv(4096)
    return struct.unpack_from("H", answer, 4)[0] == 2 and struct.unpack_from("i", answer, 16)[0] == 0
refused("an address", lambda: change(20, struct.pack("BBBBI", 2, 8, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([10, 9, 8, 7]))))
refused("a route", lambda: change(24, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("HHI", 8, 4, 1)))
refused("an interface that is down", lambda: change(16, struct.pack("BBHiII", 0, 0, 0, 1, 0, 1)))
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
refused("iptables", lambda: s.setsockopt(socket.IPPROTO_IP, 64, bytes(96)) is None)
refused("SO_BINDTODEVICE of none", lambda: s.setsockopt(1, 36, b"\xff" * 4) or False)

# A root folder of one's own, and the way out of it.
child = os.fork()
if child == 0:
    try:
        os.makedirs("/tmp/jail%d" % os.getuid(), exist_ok=True)
        here = os.open("/", os.O_RDONLY)
        os.chroot("/tmp/jail%d" % os.getuid())
        os.fchdir(here)
        for _ in range(64): os.chdir("..")
        os.chroot(".")
    except OSError: pass
    for at in canary, "/proc/1/root" + canary, "../" * 64 + canary:
        try: print("the canary:", open(at).read())
        except OSError: pass
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)

# Set-user-ID programs, and files' capabilities, give nothing.
if os.geteuid() != 0:
    refused("setuid 0", lambda: (os.setuid(0), True)[1])
    refused("setresuid 0", lambda: (os.setresuid(0, 0, 0), True)[1])
    refused("root's file", lambda: os.close(os.open("/root/of-another", os.O_CREAT | os.O_WRONLY)) or True)
    refused("chown", lambda: (open("/tmp/f%d" % os.getuid(), "w").close(), os.chown("/tmp/f%d" % os.getuid(), 0, 0), True)[2])
    refused("kill of the agent", lambda: (os.kill(1, 0), True)[1])
print("tried")
