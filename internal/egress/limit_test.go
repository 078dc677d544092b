package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/event"
)

func limits(f func(*Limits)) func(*Config) { return func(c *Config) { f(&c.Limits) } }

func TestConnectionsAtOnce(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public}, limits(func(l *Limits) { l.Connections = 3 }))
	r.serve("20.0.0.1:1", echo)
	var open []*client
	for range 3 {
		open = append(open, r.connected(toAddr("20.0.0.1", 1)))
	}
	c := r.client()
	c.want(isBusy, toAddr("20.0.0.1", 1))
	c.want(no, lookup("127.1")) // look-ups go on
	open[0].Close()
	<-open[0].done
	c.want(ok, toAddr("20.0.0.1", 1))
	// Another sandbox does not notice.
	other := r.b.Outlet(Owner{}, &Policy{Mode: Public}, new(Meter))
	defer other.Close()
	here, there := socketpair(t)
	defer here.Close()
	go other.Serve(context.Background(), there)
	(&client{t: t, UnixConn: here}).want(ok, toAddr("20.0.0.1", 1))
}

func TestRate(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public}, limits(func(l *Limits) { l.Rate, l.Burst = 1, 5 }))
	c := r.client()
	codes := map[wire.NetCode]int{}
	for range 8 {
		codes[c.ask(toAddr("127.0.0.1", 1)).Code]++
		codes[c.ask(lookup("127.1")).Code]++
	}
	if codes[isBusy] < 5 || codes[no] < 10 {
		t.Errorf("%v", codes)
	}
	if u := r.outlet.Usage(); u.Busy != uint64(codes[isBusy]) {
		t.Errorf("usage: %+v", u)
	}
}

func TestSpareConnections(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	var spare []*client
	for range maxWaiting {
		spare = append(spare, r.client())
	}
	eventually(t, "all wait",
		func() bool { r.outlet.mu.Lock(); defer r.outlet.mu.Unlock(); return r.outlet.waiting == maxWaiting })
	r.client().ended() // one more is given up
	quick := r.client()
	quick.want(no, lookup("127.1")) // unless it asks
	quick.ended()
	for _, c := range spare {
		c.want(no, lookup("127.1"))
	}
}

func TestFloodOfConnections(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public}, limits(func(l *Limits) { l.Connections = 1 }))
	var all []*client
	for range extraConns + 50 {
		all = append(all, r.client())
	}
	ended := make(chan error, len(all)) // which of them are spared is chance
	for _, c := range all {
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
	}
	for range all[maxWaiting:] {
		if err := <-ended; err == nil {
			t.Fatal("something is said on a connection without request")
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("more connections are left than may be")
		}
	}
	r.outlet.mu.Lock()
	n := len(r.outlet.conns)
	r.outlet.mu.Unlock()
	if n > maxWaiting {
		t.Errorf("%d connections are left", n)
	}
}

func TestBytesOfASession(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public}, limits(func(l *Limits) { l.Bytes = 100_000 }))
	r.serve("20.0.0.1:1", echo)
	quiet, c := r.connected(toAddr("20.0.0.1", 1)), r.connected(toAddr("20.0.0.1", 1))
	go c.Write(make([]byte, 1<<20))
	if got := c.ended(); len(got) > 100_000 {
		t.Errorf("%d bytes came", len(got))
	}
	quiet.ended()
	for _, ask := range []wire.NetRequest{toAddr("20.0.0.1", 1), lookup("a.example")} {
		if m := r.client().want(no, ask); !strings.Contains(m, "100000 bytes") {
			t.Errorf("%q", m)
		}
	}
	if !strings.Contains(r.log.String(), "verdict=limit") {
		t.Error(r.log.String())
	}
	// Those that were cut are told of, and those that were refused.
	list := r.outlet.TakeRefusals()
	if len(list) != 2 || list[0].Host != "20.0.0.1" || list[0].Times != 3 || list[1].Host != "a.example" {
		t.Errorf("%+v", list)
	}
	for _, x := range list {
		if x.Remedy() != RaiseByteLimit {
			t.Errorf("the remedy of %q: %v", x.Reason, x.Remedy())
		}
	}
}

// The bytes of a session are those of all its sandboxes, and of no other's.
func TestAccount(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public}, limits(func(l *Limits) { l.Bytes = 100_000 }))
	r.serve("20.0.0.1:1", echo)
	meter := NewMeter(Traffic{Up: 20_000, Down: 20_000}, nil) // of an earlier server
	sandbox := func(a *Meter) *client {
		e := r.b.Outlet(Owner{}, &Policy{Mode: Public}, a)
		here, there := socketpair(t)
		c := &client{t, here, make(chan struct{})}
		go func() { defer close(c.done); e.Serve(context.Background(), there) }()
		t.Cleanup(func() { here.Close(); <-c.done; e.Close() })
		return c
	}
	piece := strings.Repeat("x", 10_000)
	for range 2 { // each in a sandbox of its own, one after the other
		c := sandbox(meter)
		c.want(ok, toAddr("20.0.0.1", 1))
		c.roundTrip(piece)
		c.Close()
		<-c.done
	}
	if got := meter.Traffic(); got != (Traffic{40_000, 40_000}) {
		t.Errorf("%+v", got)
	}
	third := sandbox(meter)
	third.want(ok, toAddr("20.0.0.1", 1))
	go io.WriteString(third, piece+piece)
	if got := third.ended(); len(got) > 20_000 {
		t.Errorf("%d bytes came", len(got))
	}
	sandbox(meter).want(no, toAddr("20.0.0.1", 1))
	sandbox(new(Meter)).want(ok, toAddr("20.0.0.1", 1))
	meter.Reset()
	sandbox(meter).want(ok, toAddr("20.0.0.1", 1))
}

func TestLogFlood(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", echo)
	c := r.client()
	begun := time.Now()
	for i := range 500 {
		c.want(no, toAddr("127.0.0.1", uint32(i+1)))
	}
	took := time.Since(begun)
	c.want(ok, toAddr("20.0.0.1", 1))
	c.Close()
	<-c.done
	r.outlet.Close()
	log := r.log.String()
	if n, bound := strings.Count(log, "\n"), 15+int(12*took.Seconds()); n > bound {
		t.Errorf("%d lines in %v", n, took)
	}
	if !strings.Contains(log, "verdict=ok") {
		t.Errorf("the log lacks the connection: %s", log)
	}
	// Each of them is counted, in the log as well.
	if u := r.outlet.Usage(); u.Refused != 500 || r.b.Totals().Refused != 500 {
		t.Errorf("%+v", u)
	}
	if n := strings.Count(log, "verdict=refused") + leftOut(t, log, "refused"); n != 500 {
		t.Errorf("the log tells of %d", n)
	}
}

// Each connection that was asked for has a line that says who asked, for what, and
// what came of it, and is counted in the totals; so has one to what is no name,
// but not a look-up of that.
func TestEachIsLoggedAndCounted(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public})
	r.serve("20.0.0.1:1", echo)
	c := r.connected(toAddr("20.0.0.1", 1))
	c.roundTrip("12345")
	c.Close()
	<-c.done
	c = r.client()
	c.want(no, toAddr("127.0.0.1", 2))
	c.want(unreachable, toAddr("20.0.0.1", 3))
	c.want(wire.NetNoName, lookup("nowhere.example"))
	c.want(wire.NetNoName, toName("nowhere.example", 4))
	log := r.log.String()
	for _, want := range []string{
		`network: connection" principal=user:ann session=s1 sandbox=box1 host=20.0.0.1 port=1 address=20.0.0.1 up=5 down=5 `,
		`network: failed" principal=user:ann session=s1 sandbox=box1 host=127.0.0.1 port=2 verdict=refused `,
		`network: failed" principal=user:ann session=s1 sandbox=box1 host=20.0.0.1 port=3 verdict=unreachable `,
		`network: failed" principal=user:ann session=s1 sandbox=box1 host=nowhere.example port=4 verdict="no name" `,
	} {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log lacks %q", want)
		}
	}
	if n := strings.Count(log, "\n"); n != 4 {
		t.Errorf("%d lines", n)
	}
	if u := r.b.Totals(); u.Connected != 1 || u.Refused != 1 || u.Unreachable != 3 || u.Lookups != 1 || u.Up != 5 ||
		u.Down != 5 || u.Open != 0 {
		t.Errorf("%+v", u)
	}
}

// leftOut adds up what the log says was left out, of one verdict.
func leftOut(t *testing.T, log, verdict string) (sum int) {
	t.Helper()
	for _, m := range regexp.MustCompile(`left out.* lines=.*\b`+verdict+`=(\d+)`).FindAllStringSubmatch(log, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// What a flood left out is told a second later, not with the next failure.
func TestLeftOutIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log safeBuffer
		stream := event.New()
		events := stream.Subscribe(event.Filter{}, 0)
		defer events.Close()
		e, c, _, _ := piped(t, func(c *Config) {
			c.Log, c.Events = slog.New(slog.NewTextHandler(&log, nil)), stream
		})
		defer e.Close()
		for range 2 * logRate {
			wire.WriteNetRequest(c, toAddr("127.0.0.1", 1))
			if reply, err := wire.ReadNetReply(c); err != nil || reply.Code != no {
				t.Fatal(&reply, err)
			}
		}
		time.Sleep(summaryDelay - time.Millisecond)
		if strings.Contains(log.String(), "left out") {
			t.Error("told at once")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := leftOut(t, log.String(), "refused"); n != logRate {
			t.Errorf("%d were left out: %s", n, log.String())
		}
		all, _, _ := events.Read()
		single, counted := 0, uint64(0)
		for _, e := range all {
			if e.Outcome != "refused" || e.Kind != event.Egress || e.Operation != event.NetworkConnect {
				t.Errorf("%+v", e)
			}
			if e.Count == 0 {
				single++
			}
			counted += e.Count
		}
		if single != logRate || counted != logRate || len(all) != logRate+1 {
			t.Errorf("%d events are of one failure each, and all %d stand for %d more", single, len(all), counted)
		}
	})
}

// An agent that hears that it asks for too much, on all the connections that it
// may have, does not hear it more often than it may ask.
func TestBusyFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate, lines, seconds = 100, 50, 10
		e, first, _, _ := piped(t, limits(func(l *Limits) { l.Rate, l.Burst = rate, rate }))
		defer e.Close()
		answers := make(chan wire.NetCode)
		flood := func(c net.Conn) {
			for {
				err := wire.WriteNetRequest(c, toAddr("127.0.0.1", 1))
				reply, rerr := wire.ReadNetReply(c)
				if err != nil || rerr != nil {
					return
				}
				answers <- reply.Code
			}
		}
		var floods, serves sync.WaitGroup
		clients := []net.Conn{first}
		for range lines {
			here, there := net.Pipe()
			clients = append(clients, here)
			serves.Go(func() { e.Serve(t.Context(), there) })
		}
		for _, c := range clients {
			floods.Go(func() { flood(c) })
		}
		counts := map[wire.NetCode]int{}
		end := time.After(seconds * time.Second)
	loop:
		for {
			select {
			case code := <-answers:
				counts[code]++
			case <-end:
				break loop
			}
		}
		for _, c := range clients {
			c.Close()
		}
		go func() { floods.Wait(); close(answers) }()
		for range answers {
		}
		serves.Wait()
		for _, code := range []wire.NetCode{no, isBusy} {
			// Each connection may have heard it once more than the pauses that are over, the last of which ends with the flood.
			if n := counts[code]; n < rate || n > (seconds+1)*rate+len(clients) {
				t.Errorf("%v: %d times in %d seconds", code, n, seconds)
			}
		}
	})
}

// A connection of an agent that has too many of them is counted, and told of.
func TestTurnedAway(t *testing.T) {
	r := newRig(t, &Policy{Mode: Public}, limits(func(l *Limits) { l.Connections = 1 }))
	r.outlet.mu.Lock()
	for range extraConns + 1 {
		r.outlet.conns[new(conn)] = true
	}
	r.outlet.mu.Unlock()
	r.client().ended()
	r.outlet.mu.Lock()
	clear(r.outlet.conns)
	r.outlet.mu.Unlock()
	if u := r.outlet.Usage(); u.Busy != 1 || !strings.Contains(r.log.String(), "verdict=busy") {
		t.Errorf("%+v, %s", u, r.log.String())
	}
}

// piped serves one connection and its target over pipes, on which the clock of
// a test runs free. It returns the ends of the sandbox and of the target.
func piped(t *testing.T, change ...func(*Config)) (*Outlet, net.Conn, net.Conn, chan struct{}) {
	far, near := net.Pipe()
	c := Config{
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{addr("20.0.0.1")}, nil
		},
		Dial:         func(context.Context, string, string) (net.Conn, error) { return near, nil },
		Proxy:        noProxy,
		OwnAddresses: func() []netip.Prefix { return ownForTest },
	}
	for _, f := range change {
		f(&c)
	}
	e := New(c).Outlet(Owner{}, &Policy{Mode: Allowlist, Allow: rules(t, "a.example", "20.0.0.1")}, new(Meter))
	here, there := net.Pipe()
	done := make(chan struct{})
	go func() { defer close(done); e.Serve(t.Context(), there) }()
	return e, here, far, done
}

func connectPiped(t *testing.T, c net.Conn, to wire.NetRequest) {
	t.Helper()
	if err := wire.WriteNetRequest(c, to); err != nil {
		t.Fatal(err)
	}
	if reply, err := wire.ReadNetReply(c); err != nil || reply.Code != ok {
		t.Fatal(&reply, err)
	}
}

func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c, far, done := piped(t)
		defer e.Close()
		connectPiped(t, c, toAddr("20.0.0.1", 1))
		begun := time.Now()
		go io.Copy(io.Discard, far)
		go io.Copy(io.Discard, c)
		for range 3 { // movement in either direction counts
			time.Sleep(9 * time.Minute)
			c.Write([]byte("x"))
			time.Sleep(9 * time.Minute)
			far.Write([]byte("x"))
		}
		<-done
		if d := time.Since(begun); d != 64*time.Minute {
			t.Errorf("it ended after %v", d)
		}
	})
}

func TestBlockedPeerIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c, _, done := piped(t)
		defer e.Close()
		connectPiped(t, c, toAddr("20.0.0.1", 1))
		go func() { // the target never reads
			for {
				if _, err := c.Write(make([]byte, 1000)); err != nil {
					return
				}
			}
		}()
		begun := time.Now()
		<-done
		if d := time.Since(begun); d != 10*time.Minute {
			t.Errorf("it ended after %v", d)
		}
	})
}

func TestSlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c, _, done := piped(t)
		defer e.Close()
		time.Sleep(time.Hour) // waiting for the first byte is legal
		begun := time.Now()
		var slow sync.WaitGroup
		slow.Go(func() {
			for i := 0; ; i++ {
				if _, err := c.Write([]byte{"\x00\x00\x0f\xff"[i%4]}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		defer slow.Wait()
		<-done
		if d := time.Since(begun); d > messageTimeout {
			t.Errorf("it ended after %v", d)
		}
	})
}

func TestReplyThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c, _, done := piped(t)
		defer e.Close()
		wire.WriteNetRequest(c, lookup("b.example"))
		begun := time.Now()
		<-done
		if d := time.Since(begun); d != messageTimeout {
			t.Errorf("it ended after %v", d)
		}
	})
}

func TestSlowHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c, far, done := piped(t)
		defer e.Close()
		connectPiped(t, c, toName("a.example", 443))
		begun := time.Now()
		var slow sync.WaitGroup
		slow.Go(func() {
			for _, b := range []byte(strings.Repeat("\x16\x03\x01\x40\x00", 20)) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		defer slow.Wait()
		got, _ := io.ReadAll(far)
		<-done
		if d := time.Since(begun); d != helloTimeout || len(got) > 0 {
			t.Errorf("it ended after %v, and %q came through", d, got)
		}
	})
}

func TestSlowDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c, _, done := piped(t, func(c *Config) {
			c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		begun := time.Now()
		wire.WriteNetRequest(c, toName("a.example", 443))
		reply, _ := wire.ReadNetReply(c)
		if d := time.Since(begun); d != 15*time.Second || reply.Code != unreachable {
			t.Errorf("%v after %v", &reply, d)
		}
		wire.WriteNetRequest(c, toName("a.example", 443))
		time.Sleep(time.Second)
		e.Close() // also ends what is being dialed
		<-done
		if d := time.Since(begun); d != 16*time.Second {
			t.Errorf("closed after %v", d)
		}
	})
}

func TestResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		fail := false
		r := &resolver{names: map[string]*entry{}, lookupIP: func(ctx context.Context, name string) ([]netip.Addr,
			error) {
			asked.Add(1)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if fail {
				return nil, &net.DNSError{IsTemporary: true}
			}
			return []netip.Addr{addr("2a00::1"), addr("20.0.0.1"), addr("::ffff:20.0.0.1")}, nil
		}}
		// The first who asks gives up; the others still get an answer, with one
		// more question.
		first, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := r.lookup(first, "a"); !errors.Is(err, context.Canceled) {
				t.Errorf("the first got %v", err)
			}
		})
		synctest.Wait()
		for range 50 {
			wg.Go(func() {
				if a, err := r.lookup(t.Context(), "a"); err != nil || len(a) != 2 || a[0] != addr("20.0.0.1") {
					t.Errorf("%v, %v", a, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
		// It is remembered for a moment, a failure is not.
		time.Sleep(answerTTL - time.Second)
		r.lookup(t.Context(), "a")
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
		time.Sleep(2 * time.Second)
		fail = true
		for range 2 {
			if _, err := r.lookup(t.Context(), "a"); err == nil || errors.Is(err, errNoName) {
				t.Errorf("%v", err)
			}
		}
		if n := asked.Load(); n != 4 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestResolverIsBounded(t *testing.T) {
	r := &resolver{names: map[string]*entry{}, lookupIP: func(context.Context, string) ([]netip.Addr, error) {
		return nil,
			nil
	}}
	for i := range 3 * maxAnswers {
		if _, err := r.lookup(t.Context(), strings.Repeat("x", 1+i%50)+string(rune(i))); !errors.Is(err, errNoName) {
			t.Fatal(err)
		}
	}
	if len(r.names) > maxAnswers {
		t.Errorf("%d names are kept", len(r.names))
	}
}

func TestOwnAddressesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list, asked := ownForTest, 0
		own := cacheAddresses(func() []netip.Prefix { asked++; return list })
		own()
		list = nil // as when there is no file descriptor left
		own()
		time.Sleep(ownTTL + time.Millisecond)
		if len(own()) != len(ownForTest) || asked != 2 {
			t.Errorf("%v, asked %d times", own(), asked)
		}
		list = []netip.Prefix{netip.MustParsePrefix("2a00:10::1/64")}
		time.Sleep(ownTTL + time.Millisecond)
		if got := own(); len(got) != 1 || got[0] != list[0] {
			t.Errorf("after a change: %v", got)
		}
	})
	if a := interfaceAddresses(); len(a) == 0 {
		t.Error("this machine has no address")
	}
}

// A connection that waits holds no buffers, also after it carried a lot.
func TestIdleMemory(t *testing.T) {
	const n = 1000
	r := newRig(t, &Policy{Mode: Public}, limits(func(l *Limits) { l.Connections = n }))
	// The server's side of this test should not be counted: two goroutines wait
	// for all.
	var mu sync.Mutex
	var served []*net.TCPConn
	hold := make(chan struct{})
	defer close(hold)
	r.serve("20.0.0.1:1", func(c *net.TCPConn) {
		io.CopyN(c, c, 64<<10)
		mu.Lock()
		served = append(served, c)
		mu.Unlock()
		<-hold
	})
	before := memory()
	for range n {
		c := r.connected(toAddr("20.0.0.1", 1))
		go c.Write(make([]byte, 64<<10))
		if _, err := io.CopyN(io.Discard, c, 64<<10); err != nil {
			t.Fatal(err)
		}
	}
	each := (memory() - before) / n
	t.Logf("%d bytes for each of %d idle connections, the test's own two ends included", each, n)
	if each > 64<<10 {
		t.Errorf("that is over 64 KiB")
	}
}

func memory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
