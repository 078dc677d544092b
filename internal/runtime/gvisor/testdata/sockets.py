# Tries to reach sockets and pipes of the host; says what was reached.
import array, os, socket, subprocess

assert "gvisor" in open("/proc/version").read().lower()

def reached(what, f):
    try:
        got = f()
    except (OSError, AssertionError):
        return
    if got is not False:
        print("reached:", what, got)

def stream(at):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(2)
    s.connect(at)
    return s.recv(9) or "connected"

def datagram(at):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", at)

def packet(at):
    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(at)

def passed(at):
    """Passes a descriptor of it to another socket of the sandbox."""
    a, b = socket.socketpair()
    fd = os.open(at, os.O_PATH)
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    _, anc, _, _ = b.recvmsg(9, 99)
    got = array.array("i", anc[0][2])[0]
    return stream("/proc/self/fd/%d" % got)

def write(at):
    fd = os.open(at, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, b"x") # a pipe of the sandbox's own has no reader

def renamed(at):
    os.rename(at, at + "2")
    try:
        return stream(at + "2")
    finally:
        os.rename(at + "2", at)

def linked(at):
    os.link(at, at + "3")
    try:
        return stream(at + "3")
    finally:
        os.unlink(at + "3")

def moded(at):
    os.chmod(at, 0o777)
    return stream(at)

for folder in "/share", "/fixed", "/workspace":
    at = folder + "/h.sock"
    assert os.path.exists(at), at
    reached(at, lambda: stream(at))
    reached(at + ", datagrams", lambda: datagram(at))
    reached(at + ", packets", lambda: packet(at))
    reached(folder + "/d.sock", lambda: datagram(folder + "/d.sock"))
    reached(at + " by a descriptor", lambda: stream("/proc/self/fd/%d" % os.open(at, os.O_PATH)))
    reached(at + " by its folder", lambda: (os.chdir(folder or "/"), stream("h.sock"))[1])
    reached(at + " by /proc/self/cwd", lambda: (os.chdir(folder or "/"), stream("/proc/self/cwd/h.sock"))[1])
    reached(at + " by /proc/1/root", lambda: stream("/proc/1/root" + at))
    reached(at + " passed", lambda: passed(at))
    reached(at + " by a link", lambda: (os.symlink(at, "/tmp/l"), stream("/tmp/l"))[1])
    if os.path.lexists("/tmp/l"):
        os.unlink("/tmp/l")
    reached(at + " opened", lambda: os.close(os.open(at, os.O_RDWR)))
    reached(at + " with a mode", lambda: moded(at))
    reached(at + " by another name", lambda: renamed(at))
    reached(at + " by a second name", lambda: linked(at))
    reached(folder + "/h.fifo", lambda: write(folder + "/h.fifo"))
# The root file system of the template had all of them, too.
assert not os.path.exists("/h.sock") and not os.path.exists("/d.sock")
reached("/h.fifo", lambda: write("/h.fifo"))
print("tried")
