package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// attack is code in another user's sandbox.
type attack struct {
	name, language, code string

	took samples // of the bystander's calls
	busy []float64
	runs int // of the code
}

// attacks returns the attacks of test/attack_test.go, after one that does nothing.
func attacks() []*attack {
	return []*attack{
		{name: "nothing"},
		{name: "busy loops", language: "bash", code: "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait"},
		{name: "fork bomb", language: "bash", code: "f() { f | f & }; f; sleep 5"},
		{name: "memory bomb", language: "python", code: "l = []\nwhile True: l.append(bytearray(16 << 20))"},
		{name: "output flood", language: "bash", code: "yes 0123456789012345678901234567890123456789"},
		{name: "disk filler", language: "bash",
			code: "i=0; while :; do i=$((i+1)); head -c 20000000 /dev/zero > /tmp/f$i || break; done; rm -f /tmp/f*"},
		{name: "workspace filler", language: "bash",
			code: "i=0; while :; do i=$((i+1)); head -c 50000000 /dev/zero > /workspace/f$i; done"},
	}
}

// neighbours measures a user's warm calls while another user's sandbox attacks.
func neighbours(b *bench) (section, error) {
	all := attacks()
	rounds, length := pick(b, 3, 1), pick(b, 10*time.Second, 3*time.Second)
	err := b.with(func(s *server) error {
		victim, id, err := s.user("victim")
		if err != nil {
			return err
		}
		defer victim.close()
		mallory, _, err := s.user("mallory")
		if err != nil {
			return err
		}
		defer mallory.close()
		for range rounds {
			for _, a := range all {
				if err := a.beside(b.ctx, mallory, victim, id, length); err != nil {
					return fmt.Errorf("%s: %w", a.name, err)
				}
			}
		}
		return nil
	}, "SANDLOT_DISK_MB=512", "SANDLOT_MAX_PROCESSES=256", "SANDLOT_POOL_SIZE=0")
	if err != nil {
		return section{}, err
	}
	t := timings("the other user's sandbox")
	t.Head = append(t.Head[:5:5], "longest", "busy", "runs", "goal")
	for _, a := range all {
		t.add(a.name, a.took, show(a.took.p(100)), fmt.Sprintf("%.0f %%", average(a.busy)), fmt.Sprint(a.runs),
			a.took.against(goal{99, 50 * time.Millisecond}))
	}
	return section{title: "Bad neighbours",
		method: fmt.Sprintf("Two users with a token each. One calls `1+1` in a warm session (the official Go client, "+
			"MCP %s), and again 2 ms after each answer. The other's sandbox, of the default flavor (1 CPU, 1 GB, "+
			"here with 512 MB of disk and 256 processes), meanwhile runs what the row says, again and again when it "+
			"ends or is ended; before that it has proven from inside that it is a gVisor sandbox. "+
			"Each row has %d turns of %v, in rotation, each in a new session, and no pool fills itself meanwhile. "+
			"\"busy\" is the share of all cores that anything used, \"runs\" how often the code was started.", older,
			rounds, length),
		tables: []table{t}}, nil
}

// user creates a user with a session, and connects.
func (s *server) user(name string) (client, string, error) {
	token, err := s.token(name)
	if err != nil {
		return nil, "", err
	}
	c, err := s.connect(older, token)
	if err != nil {
		return nil, "", err
	}
	id, err := open(s.ctx, c)
	return c, id, err
}

// proven returns an error if the session is not in a gVisor sandbox: no attack may run anywhere else.
func proven(ctx context.Context, c client, session string) error {
	r, err := c.call(ctx, "execute_command", args{"session_id": session,
		"command": "cat /proc/version; dmesg 2>/dev/null | head -1; ls /dev/sda /dev/vda /root/.ssh 2>&1 | grep -c " +
			"'No such'"})
	if err == nil && (!strings.Contains(strings.ToLower(r.text), "gvisor") ||
		!strings.HasSuffix(strings.TrimSpace(r.text), "3")) {
		err = fmt.Errorf("this is no gVisor sandbox, nothing hostile runs in it: %q", r.text)
	}
	return err
}

// beside takes samples of the victim's calls while the attack runs in a new
// session of mallory's.
func (a *attack) beside(ctx context.Context, mallory, victim client, id string, length time.Duration) error {
	session, err := open(ctx, mallory)
	if err != nil {
		return err
	}
	if err := proven(ctx, mallory, session); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // until the previous attack's processes are removed
	window, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var hostile sync.WaitGroup
	var wrong error
	if a.code != "" {
		hostile.Go(func() { wrong = a.repeat(window, mallory, session, length) })
	}
	before := cpuNow()
	err = a.watch(ctx, window, victim, id)
	a.busy = append(a.busy, cpuNow().since(before))
	cancel()
	hostile.Wait()
	return errors.Join(err, wrong, discard(ctx, mallory, session))
}

// watch makes the victim's calls. None of them may fail.
func (a *attack) watch(ctx, window context.Context, victim client, id string) error {
	for window.Err() == nil {
		limited, done := context.WithTimeout(ctx, 20*time.Second)
		err := a.took.take(func() error { return onePlusOne(limited, victim, id) })
		done()
		if err != nil {
			return fmt.Errorf("the other user's call: %w", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return ctx.Err()
}

// repeat runs the attack until the window closes. The code may fail, but it must run most of the time.
func (a *attack) repeat(window context.Context, mallory client, session string, length time.Duration) error {
	began, idle := time.Now(), time.Duration(0)
	for window.Err() == nil {
		a.runs++
		once := time.Now()
		_, err := mallory.call(window, "execute_code", args{"code": a.code, "language": a.language,
			"session_id": session, "timeout": max(1, int(length.Seconds()))})
		var refused *jsonrpc.Error
		if errors.As(err, &refused) && refused.Code == -32602 {
			return fmt.Errorf("the hostile code did not run: %w", err)
		}
		if took := time.Since(once); took < 50*time.Millisecond {
			idle += took + 10*time.Millisecond
			time.Sleep(10 * time.Millisecond)
		}
	}
	if all := time.Since(began); idle > all/2 {
		return fmt.Errorf("the hostile code ran %v of %v only", all-idle, all)
	}
	return nil
}
