# Tries, with the capabilities that programs of root have, or as another user, what they must not give. It says what was
# done. It proves first that this is a sandbox, and aims at the canary alone, whose path is its argument.
import ctypes, os, socket, struct, sys, time

assert "gvisor" in open("/proc/version").read().lower()
libc = ctypes.CDLL(None, use_errno=True)
canary = sys.argv[1]
root, ids = os.geteuid() == 0, (os.geteuid(), os.getegid())
apart = len(sys.argv) > 2 # as root of a user namespace of its own, with all capabilities there
if apart and libc.unshare(0x10000000) == 0:
    for name, text in ("setgroups", "deny"), ("uid_map", "0 %d 1" % ids[0]), ("gid_map", "0 %d 1" % ids[1]):
        try: open("/proc/self/" + name, "w").write(text)
        except OSError: pass
sys.stdout = os.fdopen(1, "w", 1)

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
namespaces = {"user": 0x10000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "uts": 0x4000000,
              "ipc": 0x8000000, "cgroup": 0x2000000, "time": 0x80}
def in_child(f):
    child = os.fork()
    if child == 0:
        try: f()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
def into(flags):
    if libc.setns(getattr(os, "pidfd_open", lambda *a: -1)(1), flags) == 0: print("setns of %x by a pidfd" % flags, "is done")
for name, flags in namespaces.items():
    in_child(lambda: into(flags))
    if not apart and name not in ("user", "time") and libc.unshare(flags) == 0: print("a namespace", name, "is made")
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
for kind, source in ((b"proc", b"proc"), (b"sysfs", b"sysfs"), (b"devtmpfs", b"dev"), (b"cgroup", b"none"), (b"9p", b"none"),
                     (b"overlay", b"none"), (b"ext4", b"/dev/sda"), (b"erofs", b"/dev/sda"), (b"bpf", b"none")):
    call("mount of " + kind.decode(), nr(165, 40), source, b"/mnt", kind, 0, b"lowerdir=/,upperdir=/tmp,workdir=/tmp")
call("pivot_root", nr(155, 41), b"/tmp", b"/tmp")
call("move_mount", 429, -100, b"/proc", -100, b"/mnt", 0)
call("mount_setattr", 442, -100, b"/", 0, ctypes.create_string_buffer(32), 32)
call("open_tree with a clone", 428, -100, b"/", 1)
call("fsopen", 430, b"tmpfs", 0)
for flags in 0, 4, 8, 0x200:  # of contents, before contents, by file handles
    call("fanotify_init", nr(300, 262), flags, 0)
call("fanotify_mark", nr(301, 263), 3, 0x11, 0x20, -100, b"/")
call("bpf", nr(321, 280), 0, ctypes.create_string_buffer(64), 64)
call("perf_event_open", nr(298, 241), ctypes.create_string_buffer(b"\1\0\0\0\x70\0\0\0" + bytes(104), 112), 0, -1, -1, 0)
call("init_module", nr(175, 105), ctypes.create_string_buffer(8), 8, b"")
call("open_by_handle_at", nr(304, 265), 3, ctypes.create_string_buffer(32), 0)
call("userfaultfd", nr(323, 282), 0)
call("name_to_handle_at", nr(303, 264), -100, b"/", ctypes.create_string_buffer(b"\x80" + bytes(135), 136), ctypes.byref(ctypes.c_int()), 0)
call("kexec_load", nr(246, 104), 0, 0, 0, 0)
call("reboot", nr(169, 142), 0xfee1dead, 672274793, 0x89abcdef, 0)
call("swapon", nr(167, 224), b"/tmp/swap", 0)
call("acct", nr(163, 89), b"/tmp/acct")
call("quotactl", nr(179, 60), 0x80000100, b"/dev/sda", 0, 0)
call("sethostname", nr(170, 161), b"other", 5)
call("clock_settime", nr(227, 112), 0, struct.pack("qq", 1, 0))
if amd64:
    call("iopl", 172, 3)
    call("ioperm", 173, 0x70, 2, 1)
for at in "/tmp", "/dev", "/dev/shm", "/workspace":
    for kind in 0o020666, 0o060666:
        for device in os.makedev(1, 1), os.makedev(1, 11), os.makedev(8, 0), os.makedev(10, 232):
            refused("mknod in " + at, lambda: (os.mknod(at + "/node%d" % os.getuid(), kind, device), True)[1])
for path in "/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/kvm", "/dev/sda", "/dev/vda", "/proc/kcore":
    refused("opening " + path, lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) or True)
for name in "kernel/core_pattern", "kernel/modprobe", "vm/overcommit_memory":
    refused("/proc/sys/" + name, lambda: os.write(os.open("/proc/sys/" + name, os.O_WRONLY), b"1"))
if not apart: call("capset", nr(126, 91), ctypes.create_string_buffer(struct.pack("II", 0x20080522, 0), 8),
     ctypes.create_string_buffer(struct.pack("IIIIII", *[0xffffffff] * 6), 24))
for cap in 12, 21, 19:  # NET_ADMIN, SYS_ADMIN, SYS_PTRACE
    if not apart and libc.prctl(47, 2, cap, 0, 0) == 0: print("the ambient capability", cap)
    if not apart and libc.prctl(23, cap, 0, 0, 0) == 1: print("the bounding set has", cap)

# Keys: the kernel's rings have nobody else's, and none of the agent's.
anything = ctypes.create_string_buffer(256)
call("add_key", nr(248, 217), b"user", b"sandlot-canary", b"x", 1, -3)
call("request_key", nr(249, 218), b"user", b"sandlot-canary", None, -3)
for ring in -1, -2, -3, -4, -5, -6, -7:  # of the thread, process, session, user, user's session, group, request
    call("keyctl_read of %d" % ring, nr(250, 219), 11, ring, anything, 256, 0)
    call("keyctl_search in %d" % ring, nr(250, 219), 10, ring, b"user", b"sandlot-canary", 0)
    call("keyctl_link to %d" % ring, nr(250, 219), 8, ring, -3, 0, 0)
for what, operation in {"session_to_parent": 18, "get_persistent": 22, "instantiate": 12, "chown": 4}.items():
    call("keyctl_" + what, nr(250, 219), operation, 0 if what == "get_persistent" else -3, 0, 0, 0)

# The network: its rules, raw and packet sockets, and its addresses.
for family, kind, protocol in ((2, 3, 255), (2, 3, 1), (2, 3, 6), (2, 3, 17), (10, 3, 58), (10, 3, 255), (17, 3, 0x0300),
                               (17, 2, 0x0300), (17, 3, 0), (2, 10, 0), (16, 3, 4), (16, 3, 9), (16, 3, 16), (40, 1, 0)):
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
for table in b"nat", b"filter", b"mangle", b"raw":
    empty = table.ljust(32, b"\0") + struct.pack("IIII", 0, 0, 0, 0) + bytes(64)
    refused("iptables of " + table.decode(), lambda: s.setsockopt(socket.IPPROTO_IP, 64, empty) is None)
    six = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    refused("ip6tables of " + table.decode(), lambda: six.setsockopt(socket.IPPROTO_IPV6, 64, empty) is None)
refused("a mark", lambda: s.setsockopt(1, 36, 7) is None)
def netfilter():
    n = socket.socket(16, 3, 12)
    n.settimeout(2)
    def message(kind, flags, resource, attributes=b""):
        body = struct.pack("BBH", 2, 0, socket.htons(resource)) + attributes
        return struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body
    n.send(message(0x10, 1, 10) + message(0x0a00, 0x405, 0, struct.pack("HH4s", 8, 1, b"own\0")) + message(0x11, 1, 10))
    answer = n.recv(4096) # to the table, in a batch
    return struct.unpack_from("H", answer, 4)[0] == 2 and struct.unpack_from("i", answer, 16)[0] == 0
refused("nftables", netfilter)
refused("SO_BINDTODEVICE of none", lambda: s.setsockopt(1, 36, b"\xff" * 4) or False)

# A root folder of one's own, and the ways out of it.
def moved_out():
    jail = "/tmp/jail%d" % os.getuid()
    os.makedirs(jail + "/in", exist_ok=True)
    own = os.fork()
    if own == 0:
        os.chroot(jail)
        os.chdir("/in")
        for _ in range(100):
            try: print("the canary:", open("../" * 64 + canary).read())
            except OSError: pass
            time.sleep(0.002)
        sys.stdout.flush()
        os._exit(0)
    time.sleep(0.05)
    os.rename(jail + "/in", "/tmp/out%d" % os.getuid()) # its working folder is outside of its root now
    os.waitpid(own, 0)
def passed_in():
    jail = "/tmp/jail%d" % os.getuid()
    a, b = socket.socketpair()
    socket.send_fds(a, [b"x"], [os.open("/", os.O_RDONLY), os.open("/proc/1", os.O_RDONLY)])
    os.chroot(jail)
    for fd in socket.recv_fds(b, 1, 2)[1]:
        for at in "." + canary, "root" + canary, "cwd" + canary, "../" * 64 + canary:
            try: print("the canary:", os.read(os.open(at, os.O_RDONLY, dir_fd=fd), 99))
            except OSError: pass
for way in moved_out, passed_in:
    def attempt():
        try: way()
        except OSError: pass
    in_child(attempt)
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

# With mounts of one's own, what only may be read stays so, and nothing appears from behind a mount.
def behind_mounts():
    if libc.unshare(0x20000 | 0x40000000) != 0: return
    def changes(at):
        path = at + "/x%d" % os.getuid() if os.path.isdir(at) else at
        try: os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        except OSError: return
        print("writing into", at, "is done")
    mounts = [line.split()[1] for line in open("/proc/self/mounts") if "ro" in line.split()[3].split(",")]
    for at in mounts + ["/data", "/run/sandlot", "/.sandlot/agent"]:
        name = at.encode()
        for flags in 32, 32 | 4096, 32 | 4096 | 1024: # remount, of one mount
            libc.mount(b"none", name, b"", flags, None)
            changes(at)
        os.makedirs("/tmp/m%d" % ids[0], exist_ok=True)
        copy = ("/tmp/m%d" % ids[0]).encode()
        for bind in 4096, 4096 | 16384:
            if os.path.isdir(at) and libc.mount(name, copy, b"", bind, None) == 0:
                libc.mount(b"none", copy, b"", 32 | 4096, None)
                changes(copy.decode())
                libc.umount2(copy, 2)
        if at != "/" and libc.umount2(name, 2) == 0: print("umount of", at, "is done")
    for kind in b"overlay", b"proc", b"sysfs", b"tmpfs":
        os.makedirs("/tmp/work%d" % ids[0], exist_ok=True)
        if libc.mount(b"none", b"/mnt", kind, 0, b"lowerdir=/,upperdir=/tmp/m%d,workdir=/tmp/work%d" % (ids[0], ids[0])) == 0:
            for path in "/mnt" + canary, "/mnt/1/root" + canary:
                try: print("the canary:", open(path).read())
                except OSError: pass
if apart: in_child(behind_mounts)
if not os.listdir("/usr/bin"): print("mounts of a namespace are everywhere")

# Set-user-ID programs, and files' capabilities, give nothing.
if not root:
    if not apart: refused("setuid 0", lambda: (os.setuid(0), True)[1])
    if not apart: refused("setresuid 0", lambda: (os.setresuid(0, 0, 0), True)[1])
    refused("root's file", lambda: os.close(os.open("/root/of-another", os.O_CREAT | os.O_WRONLY)) or True)
    refused("chown", lambda: (open("/tmp/f%d" % os.getuid(), "w").close(), os.chown("/tmp/f%d" % os.getuid(), 1, 1), True)[2])
    refused("kill of the agent", lambda: (os.kill(1, 0), True)[1])
print("tried")
