package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lives has the measurements of sessions that sleep, wake, are copied, and survive a stop of their server.
type lives struct {
	booted, woken, unpacked, asleep samples
	rawWoken, rawAsleep             samples
	snapshotted, restored, forked   samples
	answered                        samples // a fork and the answers of all copies
	stopped, started                samples // a server with sessions
	bytes, packed                   samples // of an image on the disk: a byte as a nanosecond
}

const copies = 4 // of one fork

// sleepy are settings with which idle sessions sleep after so many seconds, or one more.
func sleepy(seconds int) []string {
	return []string{"SANDLOT_POOL_SIZE=0", "SANDLOT_CLEANUP_INTERVAL=1",
		fmt.Sprintf("SANDLOT_SESSION_TIMEOUT=%d", seconds)}
}

// sleep measures sessions that sleep.
func sleep(b *bench) (section, error) {
	l, sessions := new(lives), pick(b, 50, 5)
	err := b.with(func(plain *server) error {
		return b.with(func(packs *server) error {
			return b.alone(func(raw *bundle) error { return l.turns(plain, packs, raw) })
		}, append(sleepy(5), "SANDLOT_HIBERNATE_COMPRESS_AFTER=0")...) // when the other session sleeps already
	}, sleepy(2)...)
	if err == nil {
		err = b.with(l.copies, "SANDLOT_POOL_SIZE=0")
	}
	for range pick(b, 3, 1) {
		if err == nil {
			err = b.with(func(s *server) error { return l.stop(s, sessions) }, "SANDLOT_POOL_SIZE=0",
				fmt.Sprintf("SANDLOT_MAX_SESSIONS=%d", sessions+1))
		}
	}
	return l.section(sessions), err
}

// sleeper is an idle session, which falls asleep by itself, and the only one of its server.
type sleeper struct {
	*server
	client
	session string
	count   int // the value of its variable
}

func (s *server) newSleeper() (*sleeper, error) {
	if err := s.awaitImage(); err != nil {
		return nil, err
	}
	l := &sleeper{server: s, client: s.bare("")}
	r, err := want(s.ctx, l, "new", "kept = 0; kept", "0")
	l.session = r.session
	return l, err
}

// wait waits until the session sleeps, and, with packed, until its image is compressed; then for a moment, so that the
// machine is idle. It returns how much of the disk the image has: a byte is a nanosecond.
func (l *sleeper) wait(packed bool) (time.Duration, error) {
	for range 600 {
		image, err := l.image()
		if err != nil {
			return 0, err
		}
		if image == nil || packed && image.Packed == nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		time.Sleep(200 * time.Millisecond)
		list, err := l.get(l.ctx, "/v1/sessions")
		if err == nil && !strings.Contains(list, `"hibernated"`) {
			err = fmt.Errorf("the session does not sleep: %s", list)
		}
		if err != nil {
			return 0, err
		}
		return blocks(image.dir)
	}
	return 0, errors.New("the session does not fall asleep")
}

// frozenImage is the part of what is stored of an image that matters here.
type frozenImage struct {
	dir    string
	Packed map[string]int64
}

// image returns the image of a session whose sandbox has ended; nil: it has not.
func (l *sleeper) image() (*frozenImage, error) {
	images, _ := filepath.Glob(filepath.Join(l.state, "frozen", "*", "frozen.json"))
	if len(l.boxes()) > 0 || len(images) != 1 {
		return nil, nil
	}
	i := &frozenImage{dir: filepath.Dir(images[0])}
	text, err := os.ReadFile(images[0])
	if err == nil {
		err = json.Unmarshal(text, i)
	}
	return i, err
}

// blocks returns how much of the disk the files in a folder have.
func blocks(dir string) (total time.Duration, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		var st unix.Stat_t
		err = errors.Join(err, unix.Stat(filepath.Join(dir, e.Name()), &st))
		total += time.Duration(st.Blocks * 512)
	}
	return total, err
}

// wake uses the session, which has the variable of before.
func (l *sleeper) wake() error {
	l.count++
	return wantAgain(l.ctx, l, l.session, "kept += 1; kept", fmt.Sprint(l.count))
}

// wantAgain is want for a session that may say in the end that it was asleep.
func wantAgain(ctx context.Context, c client, session, code, text string) error {
	r, err := c.call(ctx, "execute_code", args{"code": code, "session_id": session})
	if err == nil && (r.text != text || r.session != session || r.created) {
		err = fmt.Errorf("%s: a wrong answer: %q, not %q", code, r.text, text)
	}
	return err
}

// turns measures wakes and boots in turns, with the parts of raw gVisor.
func (l *lives) turns(plain, packs *server, raw *bundle) (err error) {
	idle, err := plain.newSleeper()
	if err != nil {
		return err
	}
	defer idle.close()
	compressed, err := packs.newSleeper()
	if err != nil {
		return err
	}
	defer compressed.close()
	alone, err := raw.newSleeper()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.finish()) }()
	steps := []func() error{
		func() error { return newSession(plain.ctx, idle, &l.booted) },
		func() error { return l.woken.take(idle.wake) },
		func() error { return l.unpacked.take(compressed.wake) },
		func() error { return l.rawWoken.take(alone.wake) },
	}
	for turn := range pick(plain.bench, 24, 2) {
		packed, err := compressed.wait(true)
		if err != nil {
			return err
		}
		bytes, err := idle.wait(false)
		if err != nil {
			return err
		}
		l.bytes, l.packed = append(l.bytes, bytes), append(l.packed, packed)
		if err := l.rawAsleep.take(alone.sleep); err != nil {
			return err
		}
		if err := alone.prepare(); err != nil {
			return err
		}
		for i := range steps {
			if err := steps[(i+turn)%len(steps)](); err != nil {
				return err
			}
		}
	}
	l.asleep, err = idle.asleepAfter()
	return err
}

// asleepAfter returns how long it took each time to put the session to sleep, as the server's events say.
func (l *sleeper) asleepAfter() (all samples, err error) {
	out, err := l.cli("events", "--kind", "session", "--session", l.session, "--since", "1h", "--json")
	for line := range strings.Lines(out) {
		var e struct {
			Operation string
			Millis    float64 `json:"duration_ms"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return nil, err
		}
		if e.Operation == "session.hibernated" {
			all = append(all, time.Duration(e.Millis*float64(time.Millisecond)))
		}
	}
	if err == nil && len(all) < l.count {
		err = fmt.Errorf("%d events of %d sleeps", len(all), l.count)
	}
	return all, err
}

// copies measures snapshots and forks of an idle session.
func (l *lives) copies(s *server) error {
	c := s.bare("")
	defer c.close()
	if err := s.awaitImage(); err != nil {
		return err
	}
	r, err := want(s.ctx, c, "new", "kept = 1; kept", "1")
	if err != nil {
		return err
	}
	for range pick(s.bench, 20, 2) {
		time.Sleep(200 * time.Millisecond)
		if err := l.snapshot(s, c, r.session); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
		if err := l.fork(s, c, r.session); err != nil {
			return fmt.Errorf("fork: %w", err)
		}
	}
	return discard(s.ctx, c, r.session)
}

// snapshot makes a snapshot, and restores it after a change.
func (l *lives) snapshot(s *server, c client, session string) error {
	made := args{"name": "made", "session_id": session}
	if err := l.snapshotted.take(func() error {
		return s.tool(c, "snapshot_session", made, "Snapshot made")
	}); err != nil {
		return err
	}
	if _, err := want(s.ctx, c, session, "kept = 2; kept", "2"); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	if err := l.restored.take(func() error {
		if err := s.tool(c, "restore_snapshot", made, "is what it was"); err != nil {
			return err
		}
		_, err := want(s.ctx, c, session, "kept", "1")
		return err
	}); err != nil {
		return err
	}
	return s.tool(c, "remove_snapshot", args{"name": "made"}, "removed")
}

// fork makes copies, asks each for a variable, and ends them.
func (l *lives) fork(s *server, c client, session string) error {
	var ids []string
	began := time.Now()
	r, err := c.call(s.ctx, "fork_session", args{"session_id": session, "count": copies})
	if err != nil {
		return err
	}
	if _, list, ok := strings.Cut(r.text, session+": "); ok {
		ids = strings.Split(list, ", ")
	}
	if len(ids) != copies {
		return fmt.Errorf("%d copies: %q", len(ids), r.text)
	}
	l.forked = append(l.forked, time.Since(began))
	for _, id := range ids {
		if _, err := want(s.ctx, c, id, "kept", "1"); err != nil {
			return err
		}
	}
	l.answered = append(l.answered, time.Since(began))
	for _, id := range ids {
		if err := discard(s.ctx, c, id); err != nil {
			return err
		}
	}
	return nil
}

// tool calls a tool, whose answer has to contain a text.
func (s *server) tool(c client, name string, a args, says string) error {
	r, err := c.call(s.ctx, name, a)
	if err == nil && !strings.Contains(r.text, says) {
		err = fmt.Errorf("%s: a wrong answer: %q", name, r.text)
	}
	return err
}

// stop stops a server with idle sessions, starts it again, and asks each for its variable.
func (l *lives) stop(s *server, sessions int) error {
	ids, err := s.many(sessions)
	if err != nil {
		return err
	}
	time.Sleep(pick(s.bench, 10*time.Second, time.Second))
	began := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err = s.cmd.Wait()
	l.stopped = append(l.stopped, time.Since(began))
	if images, _ := filepath.Glob(filepath.Join(s.state, "frozen", "*", "frozen.json")); len(images) != sessions {
		err = errors.Join(err, fmt.Errorf("%d images of %d sessions", len(images), sessions))
	}
	if left := s.left(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("this runs without the server: %q", left))
	}
	began = time.Now()
	if err := errors.Join(err, s.launch()); err != nil {
		return err
	}
	errs := make([]error, 2)
	var work sync.WaitGroup
	for part := range errs {
		work.Go(func() {
			c := s.bare("")
			defer c.close()
			for i := part; i < len(ids) && errs[part] == nil; i += len(errs) {
				errs[part] = wantAgain(s.ctx, c, ids[i], "kept", fmt.Sprint(i))
			}
		})
	}
	work.Wait()
	l.started = append(l.started, time.Since(began))
	return errors.Join(errs...)
}

func (l *lives) section(sessions int) section {
	t := timings("")
	ratio := medianRatio(l.woken, l.booted)
	t.add("boot from a preboot snapshot, until the first expression is answered", l.booted)
	t.add("wake, until the first expression is answered", l.woken)
	t.Rows = append(t.Rows, []string{"wake / boot, median of the turns' ratios", fmt.Sprint(len(l.woken)),
		fmt.Sprintf("%.2f", ratio), "", "", verdict("≤ 1.25", ratio <= 1.25)})
	t.add("wake of a compressed image, until the first expression is answered", l.unpacked)
	t.add("beside: raw `sandlot-runsc restore`, until a Python has answered", l.rawWoken)
	t.add("sleep, until it is durable", l.asleep, l.asleep.against(goal{50, 200 * time.Millisecond}))
	t.add("beside: raw `sandlot-runsc checkpoint`, not durable", l.rawAsleep)
	t.add("snapshot, until `snapshot_session` answers", l.snapshotted)
	t.add("restore, until the first expression is answered", l.restored)
	t.add(fmt.Sprintf("fork into %d, until `fork_session` answers", copies), l.forked)
	t.add(fmt.Sprintf("fork into %d, until each has answered an expression", copies), l.answered,
		l.answered.against(goal{50, 1500 * time.Millisecond}))
	t.add(fmt.Sprintf("stop of a server with %d idle sessions", sessions), l.stopped,
		l.stopped.against(goal{100, 15 * time.Second}))
	t.add("start after that, until all of them have answered an expression", l.started)
	disk := table{Head: append(append([]string{"MB (10⁶ bytes) of the disk"}, headings...), "goal")}
	for _, r := range []struct {
		name string
		took samples
		most float64
	}{{"a sleeping session", l.bytes, 20}, {"the same, compressed", l.packed, 4}} {
		row := []string{r.name, fmt.Sprint(len(r.took))}
		for _, p := range []float64{50, 95, 99} {
			row = append(row, fmt.Sprintf("%.1f", float64(r.took.p(p))/megabyte))
		}
		var bytes []float64 // a byte is a nanosecond in these samples
		for _, n := range r.took {
			bytes = append(bytes, float64(n))
		}
		disk.keepIn("bytes", r.name, bytes)
		most := float64(r.took.p(100)) / megabyte
		disk.Rows = append(disk.Rows, append(row, verdict(fmt.Sprintf("P100 ≤ %.0f", r.most), most <= r.most)))
	}
	return section{title: "Sleep, snapshots and copies",
		method: "Sessions with an idle Python and a variable, without a pool; each answer has the variable's value " +
			"of before. An expression is a bare call. *Wake and boot* take turns, each time beginning with another " +
			"one, when all sessions sleep: a new session from the snapshot of a booted sandbox, one that sleeps, one " +
			"whose image was compressed (`hibernate.compress_after: 0`, so that the server does at once what it does " +
			"after an hour), and raw `sandlot-runsc restore` of a Python in the same bundle, with the same flags, " +
			"that connects to a socket of the host. *Sleep* is from when the server begins until the image and the " +
			"session's record are durable, as the server's event says; raw `checkpoint` has the same flags, and " +
			"makes nothing durable. Nothing comparable stands beside snapshots and forks: they are a checkpoint, " +
			"copies of files, and restores. *Stop*: SIGTERM to the end of the process; each session sleeps then, " +
			"nothing of it runs, and after the next start two clients ask for all variables. *Disk*: blocks of the " +
			"files of one image; what images need beside it, gVisor and the agent, is kept once for all.",
		tables: []table{t, disk}}
}
