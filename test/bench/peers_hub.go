package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Servers and tools of a list, and how long a server may be away after a crash.
const listedServers, listedEach, mostAway = 25, 20, 20 * time.Second

// mostStarting bounds the start of a hub.
const mostStarting = 3 * time.Minute

// tollgate is a way to a third-party server: directly, or through Sandlot or a peer.
type tollgate struct {
	name, version string
	direct, ours  *tollgate // what it is compared with; nil: it is that itself

	// begin starts the hub with so many servers of so many tools, and returns where their tools are. Nil: there is none.
	begin func(servers, tools int) (*hubRun, error)

	took, list, ready, back samples
	lost                    int // servers that did not come back
	sizes                   []float64
	failed                  bool // it is measured no more
}

// failHub keeps why a hub is measured no more. A failure of Sandlot, or of the server itself, ends the topic.
func (p *peerBench) failHub(w *tollgate, doing string, err error) error {
	if err == nil {
		return nil
	}
	if w.ours == nil || p.ctx.Err() != nil {
		return fmt.Errorf("%s, %s: %w", w.name, doing, err)
	}
	w.failed = true
	p.absent.row(w.name+": "+doing, reason(err))
	return nil
}

// hubRun is a running hub.
type hubRun struct {
	transports []func() mcp.Transport // one for each address of its tools
	tool       string                 // the name of echo
	pids       []int                  // its processes
	end        func() error
	open       []*mcp.ClientSession
}

// hubs measures calls of a third-party tool through hubs.
func (p *peerBench) hubs() (tables []table, err error) {
	program, err := p.build("mcppeer", p.tmp)
	if err != nil {
		return nil, err
	}
	direct := &tollgate{name: "directly, over stdio", begin: func(servers, tools int) (*hubRun, error) {
		run := &hubRun{tool: "echo", end: func() error { return nil }}
		for range servers {
			run.transports = append(run.transports, func() mcp.Transport {
				return &mcp.CommandTransport{Command: exec.Command(program, toolsOf(tools)),
					TerminateDuration: time.Second}
			})
		}
		return run, nil
	}}
	ours := &tollgate{name: "Sandlot, `where: host`", direct: direct, begin: func(servers, tools int) (*hubRun, error) {
		return p.sandlotHub(program, servers, tools)
	}}
	all := []*tollgate{direct, ours,
		{name: "`mcp-proxy`", version: "0.13.0", direct: direct, ours: ours,
			begin: func(servers, tools int) (*hubRun, error) { return p.mcpProxy(program, servers, tools) }},
		{name: "`supergateway --stateful`", version: "4.0.0", direct: direct, ours: ours,
			begin: func(servers, tools int) (*hubRun, error) { return p.supergateway(program, servers, tools) }}}
	for _, step := range []func([]*tollgate) error{p.takeCalls, p.takeLists,
		func(all []*tollgate) error { return p.takeCrashes(program, all) }} {
		if err := step(all); err != nil {
			return nil, err
		}
	}
	return hubTables(all), nil
}

func toolsOf(n int) string { return fmt.Sprintf("tools=%d", n-1) } // beside echo

// sandlotHub starts a server of Sandlot with third-party servers.
func (p *peerBench) sandlotHub(program string, servers, tools int) (*hubRun, error) {
	text := "mcp:\n"
	for n := range servers {
		text += fmt.Sprintf("  s%02d: {command: %s, args: [%q], where: host, user: \"%d\"}\n", n, program, toolsOf(tools),
			os.Getuid())
	}
	file := filepath.Join(p.tmp, "hub.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s, err := p.keep("SANDLOT_POOL_SIZE=0", "SANDLOT_MCP_IDLE_TIMEOUT=1h", "SANDLOT_CONFIG="+file)
	if err != nil {
		return nil, err
	}
	return &hubRun{transports: []func() mcp.Transport{webTransport(s.url + "/mcp?tools=all")}, tool: "ext_s00_echo",
		pids: []int{s.cmd.Process.Pid}, end: p.pop()}, nil
}

// pop returns the last of ends, which is no longer one.
func (p *peerBench) pop() func() error {
	last := p.ends[len(p.ends)-1]
	p.ends = p.ends[:len(p.ends)-1]
	return last
}

func webTransport(url string) func() mcp.Transport {
	return func() mcp.Transport {
		return &mcp.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true, MaxRetries: -1,
			HTTPClient: &http.Client{Transport: &http.Transport{}}}
	}
}

// mcpProxy starts one mcp-proxy that has all servers, each at an address of its own.
func (p *peerBench) mcpProxy(program string, servers, tools int) (*hubRun, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	all := args{}
	for n := range servers {
		all[fmt.Sprintf("s%02d", n)] = args{"command": program, "args": []string{toolsOf(tools)}}
	}
	text, err := json.Marshal(args{"mcpServers": all})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(p.tmp, "mcp-proxy.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	run := &hubRun{tool: "echo"}
	for n := range servers {
		run.transports = append(run.transports, webTransport(fmt.Sprintf("http://127.0.0.1:%d/servers/s%02d/mcp", port, n)))
	}
	return run, p.launch(run, []int{port}, filepath.Join(p.dir, mcpProxyCommand), "--port", fmt.Sprint(port),
		"--named-server-config", file)
}

// supergateway starts one supergateway for each server.
func (p *peerBench) supergateway(program string, servers, tools int) (*hubRun, error) {
	run := &hubRun{tool: "echo"}
	for range servers {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		run.transports = append(run.transports, webTransport(fmt.Sprintf("http://127.0.0.1:%d/mcp", port)))
		if err := p.launch(run, []int{port}, filepath.Join(p.dir, superCommand), "--stdio", program+" "+toolsOf(tools),
			"--outputTransport", "streamableHttp", "--stateful", "--port", fmt.Sprint(port)); err != nil {
			return nil, errors.Join(err, run.end())
		}
	}
	return run, nil
}

// launch starts a process of a hub. The hub's end ends it, with all that it has started.
func (p *peerBench) launch(run *hubRun, ports []int, command ...string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = p.tmp
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	run.pids = append(run.pids, cmd.Process.Pid)
	before := run.end
	run.end = func() error {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }() // it was ended
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		if before != nil {
			return before()
		}
		return nil
	}
	return nil
}

// connect connects to all addresses, at once, and waits until each answers.
func (r *hubRun) connect(ctx context.Context) error {
	r.open = make([]*mcp.ClientSession, len(r.transports))
	errs := make([]error, len(r.transports))
	var all sync.WaitGroup
	for i, transport := range r.transports {
		all.Go(func() {
			for end := time.Now().Add(mostStarting); time.Now().Before(end) && ctx.Err() == nil; {
				r.open[i], errs[i] = mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx,
					transport(), &mcp.ClientSessionOptions{ProtocolVersion: older})
				if errs[i] == nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// list lists the tools of all addresses at once, and returns how many belong to third-party servers.
func (r *hubRun) list(ctx context.Context) (n int, err error) {
	counts, errs := make([]int, len(r.open)), make([]error, len(r.open))
	var all sync.WaitGroup
	for i, s := range r.open {
		all.Go(func() {
			for t, err := range s.Tools(ctx, nil) {
				if err != nil {
					errs[i] = err
					return
				}
				if r.tool == "echo" || strings.HasPrefix(t.Name, "ext_") {
					counts[i]++
				}
			}
		})
	}
	all.Wait()
	for _, c := range counts {
		n += c
	}
	return n, errors.Join(errs...)
}

// echo makes a call and checks the answer.
func (r *hubRun) echo(ctx context.Context, s *mcp.ClientSession, n int) error {
	a, err := (&sdkClient{session: s}).call(ctx, r.tool, args{"text": fmt.Sprint(n)})
	if want := fmt.Sprintf(`{"text":"%d"}`, n); err == nil && a.text != want {
		err = fmt.Errorf("a wrong answer: %q, not %q", a.text, want)
	}
	return err
}

// close ends the connections and the hub.
func (r *hubRun) close() error {
	for _, s := range r.open {
		if s != nil {
			s.Close()
		}
	}
	return r.end()
}

// awaitEcho waits until the tool answers.
func (r *hubRun) awaitEcho(ctx context.Context) (err error) {
	for range 500 {
		if err = r.echo(ctx, r.open[0], 1); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// withHubs starts hubs of some ways, connects to them, and runs f while all of them run. That of one that failed is nil.
func (p *peerBench) withHubs(all []*tollgate, servers, tools int, f func(runs []*hubRun) error) (err error) {
	runs := make([]*hubRun, len(all))
	defer func() {
		for i, r := range runs {
			if r == nil {
				continue
			}
			if ended := r.close(); !all[i].failed {
				err = errors.Join(err, ended)
			}
		}
	}()
	for i, w := range all {
		if w.failed {
			continue
		}
		if err := p.failHub(w, "its start", func() (err error) {
			if runs[i], err = w.begin(servers, tools); err != nil {
				runs[i] = nil
				return err
			}
			if err := runs[i].connect(p.ctx); err != nil {
				return err
			}
			return runs[i].awaitEcho(p.ctx)
		}()); err != nil {
			return err
		}
	}
	return f(runs)
}

// takeCalls measures calls in turns.
func (p *peerBench) takeCalls(all []*tollgate) error {
	return p.withHubs(all, 1, 1, func(runs []*hubRun) error {
		for range pick(p.bench, 50, 3) {
			for i, w := range all {
				for n := 0; n < 21 && !w.failed; n++ {
					took := &w.took
					if n == 0 {
						took = new(samples)
					}
					if err := p.failHub(w, "calls", took.take(func() error {
						return runs[i].echo(p.ctx, runs[i].open[0], n)
					})); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// takeLists measures the start of hubs with many servers, the lists of their tools, and their memory.
func (p *peerBench) takeLists(all []*tollgate) error {
	for round := range pick(p.bench, 5, 1) {
		for _, w := range all {
			if w.failed {
				continue
			}
			if err := p.failHub(w, "its list", p.takeList(w, round == 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *peerBench) takeList(w *tollgate, weigh bool) error {
	const tools = listedServers * listedEach
	began := time.Now()
	r, err := w.begin(listedServers, listedEach)
	if err != nil {
		return err
	}
	err = r.connect(p.ctx)
	n := 0
	for end := time.Now().Add(mostStarting); err == nil && n < tools && time.Now().Before(end); {
		n, err = r.list(p.ctx)
	}
	if err == nil && n != tools {
		err = fmt.Errorf("%d tools are listed, of %d", n, tools)
	}
	if err == nil {
		w.ready = append(w.ready, time.Since(began))
	}
	for i := 0; err == nil && i < pick(p.bench, 20, 3); i++ {
		err = w.list.take(func() error {
			n, err := r.list(p.ctx)
			if err == nil && n != tools {
				err = fmt.Errorf("%d tools are listed, of %d", n, tools)
			}
			return err
		})
	}
	if err == nil && len(r.pids) > 0 && weigh {
		time.Sleep(pick(p.bench, 5*time.Second, time.Second))
		var size int64
		if size, err = hubMemory(r.pids); err == nil {
			w.sizes = append(w.sizes, float64(size))
		}
	}
	return errors.Join(err, r.close())
}

// hubMemory returns the proportional set size of a hub's processes, without those of mcppeer.
func hubMemory(pids []int) (all int64, err error) {
	roots := map[int]bool{}
	for _, pid := range pids {
		roots[pid] = true
	}
	found, err := spaces(roots)
	lines := commandLines()
	for _, pid := range found {
		if isPeer(lines[pid]) {
			continue
		}
		n, e := proportional(pid)
		all, err = all+n, errors.Join(err, e)
	}
	return all, err
}

// isPeer reports whether a command line is that of mcppeer itself.
func isPeer(line string) bool {
	program, _, _ := strings.Cut(line, "\x00")
	return filepath.Base(program) == "mcppeer"
}

// takeCrashes kills the servers, and measures when they answer again.
func (p *peerBench) takeCrashes(program string, all []*tollgate) error {
	for _, w := range all {
		if w.direct == nil { // nobody starts it again
			continue
		}
		for range pick(p.bench, 5, 1) {
			if err := p.withHubs([]*tollgate{w}, 1, 1, func(runs []*hubRun) error {
				if runs[0] == nil {
					return nil
				}
				return p.failHub(w, "a crash of its server", w.crash(p.ctx, runs[0]))
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// crash kills the hub's server, and adds how long it is away.
func (w *tollgate) crash(ctx context.Context, r *hubRun) error {
	roots := map[int]bool{}
	for _, pid := range r.pids {
		roots[pid] = true
	}
	parent, killed := parents(), 0
	for pid, line := range commandLines() {
		if isPeer(line) && descends(pid, roots, parent) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			killed++
		}
	}
	if killed == 0 {
		return errors.New("the hub runs no server that could be killed")
	}
	for began := time.Now(); time.Since(began) < mostAway; time.Sleep(10 * time.Millisecond) {
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := r.echo(short, r.open[0], 2)
		cancel()
		if err == nil {
			w.back = append(w.back, time.Since(began))
			return nil
		}
		short, cancel = context.WithTimeout(ctx, 2*time.Second)
		again, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(short,
			r.transports[0](), &mcp.ClientSessionOptions{ProtocolVersion: older})
		cancel()
		if err == nil {
			r.open[0].Close()
			r.open[0] = again
		}
	}
	w.lost++
	return ctx.Err()
}

func hubTables(all []*tollgate) []table {
	const last = "beside Sandlot"
	calls := table{Head: append(append([]string{"a third-party tool through a hub", "version"}, headings...),
		"added to P50", "added to P99", last)}
	list, ready := timings(fmt.Sprintf("list of %d tools of %d servers", listedServers*listedEach, listedServers)),
		timings("start of the hub, until all are listed")
	back := timings("a server that was killed, until it answers")
	sizes := table{Head: []string{fmt.Sprintf("memory of a hub with %d servers", listedServers), "MB (10⁶ bytes)", last}}
	for _, t := range []*table{&list, &ready, &back} {
		t.Head[len(t.Head)-1] = last
	}
	for _, w := range all {
		compare := func(of func(*tollgate) samples) string {
			if w.ours == nil || len(of(w)) == 0 {
				return ""
			}
			return besideOurs(of(w), of(w.ours))
		}
		took := func(w *tollgate) samples { return w.took }
		if len(w.took) > 0 {
			row := append([]string{w.name, w.version}, w.took.cells()...)
			if w.direct != nil {
				row = append(row, show(w.took.p(50)-w.direct.took.p(50)), show(w.took.p(99)-w.direct.took.p(99)))
			}
			if w.ours != nil {
				row = append(row, compare(took))
			}
			calls.row(row...)
			calls.keep(w.name, w.took)
		}
		if len(w.list) > 0 {
			list.add(w.name, w.list, compare(func(w *tollgate) samples { return w.list }))
			ready.add(w.name, w.ready, compare(func(w *tollgate) samples { return w.ready }))
		}
		if len(w.sizes) > 0 {
			verdict := ""
			if w.ours != nil {
				verdict = besideOne(w.sizes[0], w.ours.sizes[0], false)
			}
			sizes.row(w.name, fmt.Sprintf("%.1f", w.sizes[0]/megabyte), verdict)
		}
		switch {
		case w.lost > 0 && len(w.back) == 0:
			back.row(w.name, fmt.Sprint(w.lost), "never", "never", "never", peerBehind+
				fmt.Sprintf(" (not within %v)", mostAway))
		case len(w.back) > 0:
			verdict := compare(func(w *tollgate) samples { return w.back })
			if w.lost > 0 {
				verdict += fmt.Sprintf("; %d did not come back within %v", w.lost, mostAway)
			}
			back.add(w.name, w.back, verdict)
		}
	}
	return []table{calls, list, ready, sizes, back}
}
