# Tries to make files of the host that are set-user-ID or devices.
import ctypes, os, shutil, socket, struct, subprocess

assert "gvisor" in open("/proc/version").read().lower()
libc = ctypes.CDLL(None, use_errno=True)

def attempt(f):
    try:
        f()
    except OSError:
        pass

def put(at, mode=0o755):
    shutil.copyfile("/bin/true", at)
    os.chmod(at, mode)
    return at

put("/tmp/own", 0o6755)
assert os.stat("/tmp/own").st_mode & 0o6000 == 0o6000, "in the sandbox's own files the modes work"
subprocess.run("cd /tmp && tar cf own.tar own", shell=True, check=True)

for top in "/share", "/workspace":
    os.chdir(top)
    attempt(lambda: os.chmod(put("a"), 0o6755))
    attempt(lambda: os.fchmod(os.open(put("b"), os.O_RDONLY), 0o4755))
    put("c")
    libc.syscall(268, -100, b"c", 0o2755) # fchmodat
    libc.syscall(452, -100, b"c", 0o4755, 0) # fchmodat2
    libc.syscall(90, b"c", 0o4755) # chmod
    attempt(lambda: os.close(os.open("d", os.O_CREAT | os.O_WRONLY, 0o6755)))
    attempt(lambda: os.close(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o4755)))
    libc.syscall(85, b"e", 0o4755) # creat
    libc.syscall(437, -100, b"e2", struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24) # openat2
    attempt(lambda: os.mknod("f", 0o104755))
    for kind in 0o020666, 0o060666:
        attempt(lambda: os.mknod("g%o" % kind, kind, os.makedev(1, 3)))
    attempt(lambda: os.mkdir("h", 0o6777))
    libc.syscall(258, -100, b"h2", 0o6777) # mkdirat
    attempt(lambda: os.chmod("h", 0o2777))
    attempt(lambda: os.mknod("h/inside", 0o102755))
    def bound():
        os.umask(0)
        s = socket.socket(socket.AF_UNIX)
        s.bind("i.sock")
        os.chmod("i.sock", 0o6777)
        os.rename("i.sock", "i2.sock")
    attempt(bound)
    os.umask(0o022)
    def moved():
        shutil.copy2("/tmp/own", "j")
        os.link("j", "j2")
        os.chmod("j2", 0o4755)
        os.rename("j2", "j3")
    attempt(moved)
    subprocess.run("cp -p /tmp/own k; tar xpf /tmp/own.tar; install -m 6755 /bin/true l; chmod -R ug+s . ; setfacl -m u::rws a", shell=True, stderr=subprocess.DEVNULL)
    capability = struct.pack("<IIIII", 0x02000001, 0xffffffff, 0, 0xffffffff, 0)
    attempt(lambda: os.setxattr("a", "security.capability", capability))
    attempt(lambda: os.setxattr("a", "system.posix_acl_access", struct.pack("<IHHIHHIHHI", 2, 1, 7, 0xffffffff, 4, 7, 0xffffffff, 0x20, 7, 0xffffffff)))
    attempt(lambda: os.chown("b", 1000, 1000))
    attempt(lambda: os.chmod("b", 0o4755))
    attempt(lambda: os.utime("b", (1, 1)))
print("tried")
