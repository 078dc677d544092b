# Sockets, pipes and folders of the sandbox's own, between processes of its own.
import os, shutil, socket, stat, subprocess, sys

for top in "/workspace", "/share", "/tmp":
    os.chdir(top)
    s = socket.socket(socket.AF_UNIX)
    s.bind("own.sock")
    s.listen()
    assert stat.S_ISSOCK(os.stat("own.sock").st_mode) and "own.sock" in os.listdir(".")
    os.chmod("own.sock", 0o600)
    os.rename("own.sock", "named.sock")
    client = "import socket; s = socket.socket(socket.AF_UNIX); s.connect(%r); print(s.recv(9))" % (top + "/named.sock")
    p = subprocess.Popen([sys.executable, "-c", client], stdout=subprocess.PIPE, text=True)
    s.settimeout(20)
    c, _ = s.accept()
    c.sendall(b"hello")
    assert p.communicate()[0] == "b'hello'\n"
    os.unlink("named.sock")
    d = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    d.bind("own.dgram")
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "own.dgram")
    assert d.recv(9) == b"x"
    os.unlink("own.dgram")
    os.mkfifo("own.fifo")
    p = subprocess.Popen("echo hello > own.fifo", shell=True)
    assert open("own.fifo").read() == "hello\n" and p.wait() == 0
    os.unlink("own.fifo")
    subprocess.run("mkdir t && echo x > t/a && ln t/a t/b && ln -s a t/l && chmod 750 t/a && chmod 1777 t && cp -a t t2 && "
                   "tar cf t.tar t && mkdir t3 && tar xpf t.tar -C t3 && diff -r t t2 && diff -r t t3/t", shell=True, check=True)
    assert stat.S_IMODE(os.stat("t3/t/a").st_mode) == 0o750 and stat.S_IMODE(os.stat("t2").st_mode) == 0o1777
    for name in "t", "t2", "t3":
        shutil.rmtree(name)
    os.unlink("t.tar")
print("done")
