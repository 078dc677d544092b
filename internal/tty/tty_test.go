package tty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/event"
	"sandlot/internal/terminal"
)

// machine is a machine with one process, which prints what a test says.
type machine struct {
	mu      sync.Mutex
	news    chan struct{}
	out     []byte
	skip    int // bytes that are not kept
	typed   []byte
	size    agent.Size
	exited  bool
	broken  bool // it does not answer
	stopped bool
	unread  time.Duration // with which it was started
	reads   int
	empty   bool // it answers at once, and without output
	flood   bool // there is always more output
}

var errBroken = errors.New("the link broke")

func newMachine() *machine { return &machine{news: make(chan struct{})} }

func (m *machine) change(do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
	close(m.news)
	m.news = make(chan struct{})
}

func (m *machine) print(format string, args ...any) {
	m.change(func() { m.out = fmt.Appendf(m.out, format, args...) })
}

func (m *machine) ReadProcess(ctx context.Context, id string, cursor int64, most int,
	wait time.Duration) (agent.ProcessOutput, error) {
	timer := time.After(wait)
	for first := true; ; first = false {
		m.mu.Lock()
		if first {
			m.reads++
		}
		skipped := max(0, m.skip-int(cursor))
		at := int(cursor) + skipped
		data := bytes.Clone(m.out[at:min(len(m.out), at+most)])
		out := agent.ProcessOutput{Data: data, Cursor: int64(at + len(data)), Skipped: int64(skipped),
			Available: int64(len(m.out) - at - len(data)), Running: !m.exited, ExitCode: 3, Terminal: &m.size}
		news, exited, broken, empty := m.news, m.exited, m.broken, m.empty
		if m.flood {
			out.Available += 100
		}
		m.mu.Unlock()
		switch {
		case id != "p1":
			return out, &agent.Refusal{Reason: agent.NotFound, Message: "no such process"}
		case broken:
			return out, errBroken
		case empty:
			out.Data, out.Cursor = nil, cursor
			return out, nil
		case len(data) > 0 || exited || wait == 0:
			return out, nil
		}
		select {
		case <-news:
		case <-timer:
			return out, nil
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

func (m *machine) TypeKeys(_ context.Context, _ string, keys []byte) (int, error) {
	m.change(func() { m.typed = append(m.typed, keys...) })
	return len(keys), nil
}

func (m *machine) ResizeTerminal(_ context.Context, _ string, to agent.Size) error {
	m.change(func() { m.size = to })
	return nil
}

func (m *machine) StopProcess(context.Context, string, syscall.Signal, time.Duration) (bool, int, error) {
	m.change(func() { m.stopped, m.exited = true, true })
	return false, 129, nil
}

func (m *machine) ListProcesses(context.Context) ([]agent.Process, error) {
	return []agent.Process{{ID: "p1", Args: []string{"bash"}, Kind: "background", Running: !m.exited, Terminal: true,
		Unread: m.unread},
		{ID: "p2", Args: []string{"sleep"}, Kind: "background", Running: true},
		{ID: "p3", Args: []string{"vim"}, Kind: "interactive", Running: true, Terminal: true}}, nil
}

// was reads what the process has been told.
func (m *machine) was(stopped func(*machine) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return stopped(m)
}

func isStopped(m *machine) bool { return m.stopped }

// rig is a registry with one session.
type rig struct {
	*Registry
	t *testing.T
	m *machine

	mu    sync.Mutex
	state Programs
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, m: newMachine()}
	r.state = Programs{Machine: r.m, Kept: true}
	r.Registry = New(Config{Events: event.New(), Log: slog.New(slog.DiscardHandler),
		Programs: func(string, string) (Programs, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.state, nil
		}})
	t.Cleanup(r.Close)
	return r
}

// becomes changes what the session's programs do, and tells of it.
func (r *rig) becomes(p Programs) {
	r.mu.Lock()
	r.state = p
	r.mu.Unlock()
	r.Events.Publish(event.Event{Kind: event.Session, Principal: "user:ann", Session: "s", Operation: event.SessionWoken})
}

func (r *rig) open() *Terminal { return r.openIn("s") }

func (r *rig) openIn(session string) *Terminal {
	r.t.Helper()
	release, err := r.Reserve("user:ann", session)
	if err != nil {
		r.t.Fatal(err)
	}
	size := agent.Size{Rows: 10, Cols: 20}
	r.m.size = size
	x, err := r.Add(Start{Owner: "user:ann", Session: session, ID: "p1", Command: []string{"bash"}, Size: size,
		Release: release, Mortal: true})
	if err != nil {
		r.t.Fatal(err)
	}
	return x
}

// eye is a viewer with a terminal of their own.
type eye struct {
	*Viewer
	t    *testing.T
	mine *terminal.Emulator
	got  int // bytes
	end  *End
}

func (r *rig) look(x *Terminal, rows, cols int) *eye {
	r.t.Helper()
	v, err := x.View(agent.Size{Rows: rows, Cols: cols})
	if err != nil {
		r.t.Fatal(err)
	}
	return &eye{Viewer: v, t: r.t, mine: terminal.NewEmulator(rows, cols)}
}

// sees reads until the screen is as it is said, or the terminal ends.
func (e *eye) sees(want string) {
	e.t.Helper()
	for e.end == nil {
		ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
		out, err := e.Next(ctx)
		cancel()
		if err != nil {
			e.t.Fatalf("the screen is\n%s\nwant\n%s", e.mine.Text(), want)
		}
		if out.Size != nil {
			e.mine.Resize(out.Size.Rows, out.Size.Cols)
		}
		e.got += len(out.Bytes)
		e.mine.Write(out.Bytes)
		e.end = out.End
		if want != "" && e.mine.Text() == want {
			return
		}
	}
	if want != "" {
		e.t.Fatalf("the terminal ends: %+v", e.end)
	}
}

// Several viewers see one screen, and who comes later sees the same.
func TestViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		x := r.open()
		first := r.look(x, 10, 20)
		r.m.print("\x1b[31mone\x1b[0m\r\n\x1b[6n")
		first.sees("one")
		second := r.look(x, 8, 30)
		second.sees("one")
		r.m.print("two")
		first.sees("one\ntwo")
		second.sees("one\ntwo")
		synctest.Wait()
		if got := string(r.m.typed); got != "\x1b[2;1R" {
			t.Errorf("the question is answered with %q", got)
		}
		if r.m.size != (agent.Size{Rows: 8, Cols: 20}) {
			// The program is told when the terminal reads again.
			r.m.print("\r\nthree")
			first.sees("one\ntwo\nthree")
			synctest.Wait()
		}
		if r.m.size != (agent.Size{Rows: 8, Cols: 20}) {
			t.Errorf("the program's terminal has the size %+v", r.m.size)
		}
		if rows, cols := first.mine.Size(); rows != 8 || cols != 20 {
			t.Errorf("the first viewer has %dx%d", rows, cols)
		}
		second.Close()
		first.Resize(t.Context(), agent.Size{Rows: 30, Cols: 100})
		if r.m.size != (agent.Size{Rows: 30, Cols: 100}) {
			t.Errorf("after the second viewer has gone: %+v", r.m.size)
		}
		r.m.change(func() { r.m.exited = true })
		first.sees("")
		if first.end.ExitCode == nil || *first.end.ExitCode != 3 {
			t.Errorf("it ended with %+v", first.end)
		}
		if _, err := x.View(agent.Size{}); err == nil || r.Find("user:ann", "s", "p1") != nil {
			t.Errorf("it is there still: %v", err)
		}
	})
}

// A viewer who is behind gets the screen, and not all that was printed.
func TestLateViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		e := r.look(r.open(), 10, 20)
		e.sees2()
		for range 100 {
			r.m.print("%s\r\n", strings.Repeat("flood ", 2000))
			synctest.Wait()
			time.Sleep(time.Second)
			e.mu.Lock()
			if n := len(e.pending); n > maxPending {
				t.Fatalf("%d bytes wait", n)
			}
			e.mu.Unlock()
		}
		r.m.print("\x1b[H\x1b[2Jdone")
		synctest.Wait()
		before := e.got
		e.sees("done")
		if e.got-before > 4<<10 {
			t.Errorf("it gets %d bytes", e.got-before)
		}
		// Output that the agent does not keep is no reason for rubbish.
		r.m.change(func() {
			r.m.out = append(r.m.out, "\x1b[31;"+strings.Repeat("x", 1000)+"\x1b[H\x1b[2Jagain"...)
			r.m.skip = len(r.m.out) - 20
		})
		e.sees("again")
	})
}

// sees2 reads what there is now.
func (e *eye) sees2() {
	synctest.Wait()
	for out, ok := e.take(); ok; out, ok = e.take() {
		e.mine.Write(out.Bytes)
		e.got += len(out.Bytes)
	}
}

// A terminal outlives the sleep of its session, and ends with its sandbox.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		x := r.open()
		e := r.look(x, 10, 20)
		r.m.print("before")
		e.sees("before")
		r.m.change(func() { r.m.broken = true })
		r.becomes(Programs{Kept: true})
		synctest.Wait()
		e.Close()
		e = r.look(x, 12, 20) // and nothing wakes it
		e.sees("before")
		if err := x.Lives(); err != nil || r.m.size.Rows != 10 {
			t.Errorf("asleep it lives: %v, and the program has %+v", err, r.m.size)
		}
		list, err := r.List(t.Context(), "user:ann", "s")
		if err != nil || len(list) != 1 || list[0].ID != "p1" || list[0].Viewers != 1 || list[0].Command != "bash" {
			t.Errorf("%+v, %v", list, err)
		}
		r.m.change(func() { r.m.broken = false })
		r.becomes(Programs{Machine: r.m, Kept: true})
		r.m.print(" after")
		e.sees("before after")
		synctest.Wait()
		if r.m.size.Rows != 12 {
			t.Errorf("awake, the program has %+v", r.m.size)
		}
		if err := x.Type(t.Context(), r.m, 1, []byte("rm -rf *\r")); err == nil || len(r.m.typed) > 0 {
			t.Errorf("what another sandbox has is typed: %v, %q", err, r.m.typed)
		}
		if err := x.Type(t.Context(), r.m, 0, bytes.Repeat([]byte("k"), 10000)); err != nil || len(r.m.typed) != 10000 {
			t.Errorf("%v, %d bytes", err, len(r.m.typed))
		}
		r.m.change(func() { r.m.broken = true })
		r.becomes(Programs{Machine: newMachine(), Kept: true, Life: 1})
		if x.Lives() == nil {
			t.Error("it outlives its sandbox")
		}
		e.sees("")
		if e.end.ExitCode != nil || !strings.Contains(e.end.Why, "sandbox") {
			t.Errorf("it ended with %+v", e.end)
		}
	})
}

// What an earlier server, or a call, has started is taken over; what is no terminal of the session's owner is not.
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.m.size = agent.Size{Rows: 10, Cols: 20}
		r.m.print("%sbefore\x1b[c", strings.Repeat("x\r\n", 100000))
		list, err := r.List(t.Context(), "user:ann", "s")
		if err != nil || len(list) != 1 || list[0].ID != "p1" || list[0].Rows != 0 {
			t.Errorf("%+v, %v", list, err)
		}
		for _, id := range []string{"p2", "p3", "p4", ""} {
			if x, err := r.TakeOver(t.Context(), "user:ann", "s", id); err == nil {
				t.Errorf("%q is %+v", id, x)
			}
		}
		x, err := r.TakeOver(t.Context(), "user:ann", "s", "p1")
		if err != nil {
			t.Fatal(err)
		}
		if again, err := r.TakeOver(t.Context(), "user:ann", "s", "p1"); again != x || err != nil {
			t.Errorf("again: %v, %v", again, err)
		}
		if r.Find("user:bob", "s", "p1") != nil {
			t.Error("another finds it")
		}
		e := r.look(x, 10, 20)
		e.sees(strings.Repeat("x\n", 9) + "before")
		if e.got > 4<<10 {
			t.Errorf("it gets %d bytes", e.got)
		}
		synctest.Wait()
		if len(r.m.typed) > 0 {
			t.Errorf("an old question is answered: %q", r.m.typed)
		}
		r.becomes(Programs{Kept: true})
		if _, err := r.TakeOver(t.Context(), "user:ann", "s", "p9"); err == nil ||
			!strings.Contains(err.Error(), "nobody knows") {
			t.Errorf("asleep: %v", err)
		}
	})
}

// How many there are is bounded, and what nobody looks at ends.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		x := r.open()
		var releases []func()
		for range maxOfSession - 1 {
			release, err := r.Reserve("user:ann", "s")
			if err != nil {
				t.Fatal(err)
			}
			releases = append(releases, release)
		}
		if _, err := r.Reserve("user:ann", "s"); err == nil {
			t.Error("a session has any number")
		}
		for i := range maxOfOwner - maxOfSession {
			release, err := r.Reserve("user:ann", fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			releases = append(releases, release)
		}
		if _, err := r.Reserve("user:ann", "another"); err == nil {
			t.Error("a principal has any number")
		}
		if release, err := r.Reserve("user:bob", "b"); err != nil {
			t.Error(err)
		} else {
			release()
		}
		for _, release := range releases {
			release()
			release()
		}
		var eyes []*eye
		for range maxViewers {
			eyes = append(eyes, r.look(x, 10, 20))
		}
		if _, err := x.View(agent.Size{}); err == nil {
			t.Error("a terminal has any number of viewers")
		}
		time.Sleep(2 * unwatched)
		for _, e := range eyes {
			e.Close()
		}
		time.Sleep(unwatched - time.Minute)
		if r.m.was(isStopped) || r.Find("user:ann", "s", "p1") == nil {
			t.Fatal("it ends too early")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if !r.m.was(isStopped) || r.Find("user:ann", "s", "p1") != nil || len(r.owners) > 0 {
			t.Errorf("it lives: owners %v", r.owners)
		}
	})
}

// While its session sleeps, what nobody looks at costs nothing, and stays.
func TestUnwatchedAsleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.open()
		r.m.change(func() { r.m.broken = true })
		r.becomes(Programs{Kept: true})
		time.Sleep(3 * unwatched)
		if r.Find("user:ann", "s", "p1") == nil || r.m.was(isStopped) {
			t.Error("it has ended")
		}
		r.m.change(func() { r.m.broken = false })
		r.becomes(Programs{Machine: r.m, Kept: true})
		time.Sleep(unwatched)
		synctest.Wait()
		if r.Find("user:ann", "s", "p1") != nil || !r.m.was(isStopped) {
			t.Error("awake, it lives for ever")
		}
	})
}
