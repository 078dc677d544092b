package sandboxtest

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// maxFrozen is more than a sandbox of the tests has.
const maxFrozen = 1 << 30

// owner is whose the sandboxes of the tests are.
const owner = "ann"

// sleeper is the sandbox that a test puts to sleep.
type sleeper struct {
	*Bench
	frozen sandbox.Freezer
	typist string // the id of a process with a terminal
}

// hibernate tests that a sandbox goes on where it was: after an image that could not be made, after one that was not
// needed, with the next server, and after its end.
func hibernate(t *testing.T, b *Bench) {
	h := b.runtime.Capabilities().Freezer
	if h == nil {
		t.Skip("this runtime puts no sandbox to sleep")
	}
	if err := h.CanHibernate(); err != nil {
		t.Fatal(err)
	}
	s := &sleeper{Bench: b, frozen: h}
	s.prepareRows(t)

	s.Client.Close()
	if _, err := s.frozen.Freeze(t.Context(), s.Box, owner, 1<<20); err == nil || !strings.Contains(err.Error(), "MB") {
		t.Errorf("an image that may have 1 MB: %v", err)
	}
	s.thaw(t)
	s.checkRows(t, "after an image that could not be made")
	s.wantImages(t)

	s.freeze(t)
	s.thaw(t)
	s.checkRows(t, "after an image that was not needed")
	s.dropImages(t, 1)

	s.freeze(t)
	closeRuntime(t, s.runtime)
	s.runtime = s.subject.Open(t)
	s.frozen = s.runtime.Capabilities().Freezer
	box, err := s.runtime.Recover(t.Context(), s.Box.Spec().ID)
	if err != nil {
		t.Fatal("the next server:", err)
	}
	s.Box = box
	s.thaw(t)
	s.checkRows(t, "with the next server")
	s.dropImages(t, 1)

	for range 2 { // what was woken can sleep again
		s.wake(t, s.freeze(t))
		s.checkRows(t, "after its end")
	}
	spec := s.Box.Spec()
	spec.ID, spec.Template = secret.ID(), s.subject.Template
	if other, err := s.frozen.Wake(t.Context(), spec, secret.ID()); err == nil {
		t.Error("a sandbox was made of nothing")
		stop(t, other)
	}
}

func (s *sleeper) freeze(t *testing.T) sandbox.FrozenImage {
	t.Helper()
	s.Client.Close()
	i, err := s.frozen.Freeze(t.Context(), s.Box, owner, maxFrozen)
	if err != nil {
		t.Fatal("freezing:", err)
	}
	t.Logf("the image has %d KB", i.Bytes>>10)
	s.wantImages(t, i.Name)
	return i
}

func (s *sleeper) thaw(t *testing.T) {
	t.Helper()
	if err := s.frozen.Thaw(t.Context(), s.Box); err != nil {
		t.Fatal("thawing:", err)
	}
	s.Client = agent.New(s.Box, Log(t), nil)
	s.configure(t)
}

// wake ends the frozen sandbox, and makes another one of its image, with a new server.
func (s *sleeper) wake(t *testing.T, i sandbox.FrozenImage) {
	t.Helper()
	spec := s.Box.Spec()
	stop(t, s.Box)
	s.Box = nil
	closeRuntime(t, s.runtime)
	s.subject.clean(t)
	s.runtime = s.subject.Open(t)
	s.frozen = s.runtime.Capabilities().Freezer
	spec.ID, spec.Secret, spec.Template = secret.ID(), secret.Bytes(wire.SecretLen), s.subject.Template
	box, err := s.frozen.Wake(t.Context(), spec, i.Name)
	if err != nil {
		t.Fatal("waking:", err)
	}
	s.Box = box
	s.Client = agent.New(s.Box, Log(t), nil)
	s.configure(t)
	s.dropImages(t, 1)
}

func (s *sleeper) wantImages(t *testing.T, names ...string) {
	t.Helper()
	all, err := s.frozen.FrozenImages(t.Context())
	got := []string{}
	for _, i := range all {
		got = append(got, i.Name)
		if i.Bytes <= 0 || time.Since(i.Made) > time.Hour {
			t.Errorf("an image of %d bytes of %v", i.Bytes, i.Made)
		}
	}
	if err != nil || !slices.Equal(got, names) && len(got)+len(names) > 0 {
		t.Errorf("the images are %q, not %q: %v", got, names, err)
	}
}

func (s *sleeper) dropImages(t *testing.T, n int) {
	t.Helper()
	all, err := s.frozen.FrozenImages(t.Context())
	if err != nil || len(all) != n {
		t.Errorf("there are %d images, not %d: %v", len(all), n, err)
	}
	for _, i := range all {
		for range 2 { // a second call is allowed
			if err := s.frozen.RemoveFrozen(t.Context(), i.Name); err != nil {
				t.Error(err)
			}
		}
	}
	s.wantImages(t)
}

// pythonRows makes one thing of each kind in a Python interpreter. check returns the names of those that are not as
// they were.
const pythonRows = `
import ctypes, fcntl, mmap, os, select, signal, socket, struct, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor
x = {"a": [1, 2]}
def double(n): return 2 * n
os.chdir("/var/tmp")
count = 0
counter = open("/workspace/counter", "w+")
def tick():
    global count
    while True:
        count += 1
        counter.seek(0); counter.write("%012d" % count); counter.flush()
        time.sleep(0.005)
threading.Thread(target=tick, daemon=True).start()
executor, go = ThreadPoolExecutor(2), threading.Event()
future = executor.submit(go.wait)
files = {}
for d in "/workspace", "/var/tmp", "/tmp", "/dev/shm":
    files[d] = open(d + "/open", "w+"); files[d].write("text of " + d); files[d].flush()
    gone = open(d + "/gone", "w+"); gone.write("gone"); gone.flush(); os.remove(d + "/gone")
    files[d + " deleted"] = gone
log = open("/workspace/log", "a"); log.write("1"); log.flush()
lock = open("/workspace/lock", "w"); fcntl.flock(lock, fcntl.LOCK_EX)
with open("/workspace/mapped", "wb") as f: f.write(b"m" * 8192)
mapped = mmap.mmap(os.open("/workspace/mapped", os.O_RDWR), 8192); mapped[0:4] = b"four"
anonymous = mmap.mmap(-1, 1 << 20); anonymous[1000:1004] = b"anon"
reader, writer = os.pipe(); os.write(writer, b"in the pipe")
epoll = select.epoll(); epoll.register(reader, select.EPOLLIN)
left, right = socket.socketpair(); left.send(b"pair")
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname()); server, _ = listener.accept(); client.send(b"in flight")
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0)); udp.sendto(b"queued", udp.getsockname())
unix = socket.socket(socket.AF_UNIX); unix.bind("/var/tmp/unix"); unix.listen()
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\0abstract"); abstract.listen()
master, slave = os.openpty(); os.write(master, b"line\n")
sleeping = subprocess.Popen(["sleep", "1000"], start_new_session=True)
stopped = subprocess.Popen(["sleep", "1000"], start_new_session=True); os.kill(stopped.pid, signal.SIGSTOP)
zombie = subprocess.Popen(["true"])
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK); libc.inotify_add_watch(watch, b"/workspace", 0x100)
began, wall = time.monotonic(), time.time()
alarm = threading.Timer(3600, lambda: None); alarm.daemon = True; alarm.start()

def state(pid):
    with open("/proc/%d/stat" % pid) as f: return f.read().split()[2]
def content(f):
    f.seek(0); return f.read()
def connects(family, address):
    with socket.socket(family) as c: c.connect(address); return True
def locked():
    with open("/workspace/lock") as f:
        try: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); return False
        except BlockingIOError: return True
def appends():
    log.write("2"); log.flush()
    with open("/workspace/log") as f: return set(f.read()[1:]) == {"2"}
def ticks():
    before = count
    for _ in range(1000):
        if count > before + 1: return True
        time.sleep(0.01)
def notified():
    open("/workspace/new%d" % time.monotonic_ns(), "w").close()
    return len(os.read(watch, 4096)) > 0
def pool_works():
    return executor.submit(double, 4).result(10) == 8 and not future.done()
def check():
    rows = {
        "variables": lambda: x == {"a": [1, 2]} and double(21) == 42,
        "folder": lambda: os.getcwd() == "/var/tmp",
        "threads": ticks, "pool": pool_works,
        "append": appends, "lock": locked,
        "shared map": lambda: mapped[0:4] == b"four" and open("/workspace/mapped", "rb").read(4) == b"four",
        "anonymous map": lambda: anonymous[1000:1004] == b"anon",
        "epoll": lambda: epoll.poll(5) == [(reader, select.EPOLLIN)],
        "pipe": lambda: os.read(reader, 100) == b"in the pipe" and os.write(writer, b"in the pipe"),
        "socket pair": lambda: right.recv(100) == b"pair" and left.send(b"pair"),
        "TCP": lambda: server.recv(100) == b"in flight" and client.send(b"in flight"),
        "listener": lambda: connects(socket.AF_INET, listener.getsockname()),
        "UDP": lambda: udp.recv(100) == b"queued" and udp.sendto(b"queued", udp.getsockname()),
        "unix": lambda: connects(socket.AF_UNIX, "/var/tmp/unix"),
        "abstract": lambda: connects(socket.AF_UNIX, "\0abstract"),
        "terminal": lambda: os.read(slave, 100) == b"line\n" and os.write(master, b"line\n"),
        "process": lambda: sleeping.poll() is None and state(sleeping.pid) == "S",
        "stopped": lambda: state(stopped.pid) == "T",
        "zombie": lambda: state(zombie.pid) == "Z",
        "inotify": notified,
        "clock": lambda: abs((time.time() - wall) - (time.monotonic() - began)) < 60,
        "timer": lambda: alarm.is_alive(),
        "counter": lambda: -2 <= count - int(open("/workspace/counter").read()) <= 2,
    }
    for name in list(files):
        rows["file " + name] = lambda f=files[name], name=name: content(f) == ("gone" if "deleted" in name else "text of " + name)
    bad = []
    for name, ok in rows.items():
        try:
            if not ok(): bad.append(name)
        except Exception as e: bad.append("%s: %r" % (name, e))
    return bad
`

const rowsPort = 8123

// prepareRows makes what is to survive.
func (s *sleeper) prepareRows(t *testing.T) {
	t.Helper()
	for _, cell := range [][2]string{{"python", pythonRows},
		{"bash", "V=shell; cd /var/tmp; f() { echo $V; }; sleep 1000 &"},
		{"node", "globalThis.n = 7; globalThis.ticks = 0; setInterval(() => { ticks++ }, 5); " +
			"process.chdir('/var/tmp')"}} {
		if d := s.eval(t, cell[0], cell[1], time.Minute); !d.OK {
			t.Fatalf("%s: %s", cell[0], d.Traceback)
		}
	}
	if _, err := s.StartProcess(t.Context(), agent.Background{
		Command: bash(fmt.Sprintf("cd /workspace; exec python3 -m http.server %d", rowsPort))}); err != nil {
		t.Fatal(err)
	}
	c := bash("while read -r l; do test -t 0 && stty size </dev/tty && echo got $l; done")
	c.Terminal = &agent.Size{Rows: 30, Cols: 120}
	var err error
	if s.typist, err = s.StartProcess(t.Context(), agent.Background{Command: c, KeepStdin: true}); err != nil {
		t.Fatal(err)
	}
	s.checkRows(t, "before")
}

func (s *sleeper) checkRows(t *testing.T, when string) {
	t.Helper()
	for _, row := range []struct{ language, code, want string }{
		{"python", "check()", "[]"},
		{"bash", "f; pwd; jobs -r | wc -l", "shell\n/var/tmp\n1\n"},
		{"node", "const before = ticks; await new Promise(r => setTimeout(r, 100)); [n, process.cwd(), ticks > before]",
			"[ 7, '/var/tmp', true ]"},
	} {
		d := s.eval(t, row.language, row.code, time.Minute)
		if got := value(d) + string(d.Stdout.Head); !d.OK || got != row.want {
			t.Errorf("%s, %s: %q, want %q %s", when, row.language, got, row.want, d.Traceback)
		}
	}
	if _, err := s.WriteProcess(t.Context(), s.typist, []byte(when+"\n"), false); err != nil {
		t.Errorf("%s, typing into a terminal: %v", when, err)
	}
	shown, want := "", "30 120\r\ngot "+when+"\r\n"
	for cursor, until := int64(0), time.Now().Add(30*time.Second); !strings.Contains(shown, want); {
		r, err := s.ReadProcess(t.Context(), s.typist, cursor, 1<<16, time.Second)
		if err != nil || time.Now().After(until) {
			t.Errorf("%s, a terminal shows %q, %v", when, shown, err)
			break
		}
		shown, cursor = shown+string(r.Data), r.Cursor
	}
	var got string
	for range 200 { // it may be starting
		c, err := s.Dial(t.Context(), rowsPort)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		fmt.Fprintf(c, "GET /log HTTP/1.0\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			got = r.Status
			r.Body.Close()
		}
		c.Close()
		break
	}
	if got != "200 OK" {
		t.Errorf("%s, the web server: %q", when, got)
	}
}
