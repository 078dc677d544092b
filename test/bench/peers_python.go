package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sandlot/internal/runtime/docker/dockertest"
)

//go:embed peers/kernel.py
var kernelScript string

//go:embed peers/worker.py
var workerScript string

//go:embed peers/srt.mjs
var srtScript string

// linesBytes is how much linesCode prints, in bytes.
const linesBytes, linesCode = 588890, "for i in range(100000): print(i)"

// python is one running Python, or a way to start one for each call.
type python interface {
	// start makes it, from nothing to the first answer, which it checks, and returns how long that took.
	start() (time.Duration, error)
	// calls makes so many calls one after the other, or as many as fit into a time, and returns how long each took.
	calls(n int, most time.Duration) (samples, error)
	lines() (time.Duration, error)
	// memory returns the proportional set size of all its processes, in bytes.
	memory() (int64, error)
	// stop ends what start has made. It may be started again.
	stop() error
	// close ends its client.
	close() error
}

// contestant is one of the compared ways to run Python.
type contestant struct {
	name, version string
	state, wall   string      // what it keeps between calls, and what is between code and machine
	ours          *contestant // of Sandlot, that does the same; nil: this is Sandlot
	process       bool        // each call is a process
	make          func() (python, error)

	cold, warm, crowd, out samples
	length                 time.Duration // of the turns of crowd
	sizes                  []float64
	failed                 bool // it is measured no more
}

// fail keeps why a peer is measured no more. Sandlot's own failure ends the topic.
func (p *peerBench) fail(c *contestant, doing string, err error) error {
	if err == nil {
		return nil
	}
	if c.ours == nil || p.ctx.Err() != nil {
		return fmt.Errorf("%s, %s: %w", c.name, doing, err)
	}
	c.failed = true
	p.absent.row(c.name+": "+doing, reason(err))
	return nil
}

// python measures Python with state.
func (p *peerBench) python() (tables []table, err error) {
	all, err := p.contestants()
	if err != nil {
		return nil, err
	}
	for _, step := range []func([]*contestant) error{p.takeOne, p.takeCrowd} {
		if err := step(all); err != nil {
			return nil, err
		}
	}
	return pythonTables(all, pick(p.bench, 32, 4)), p.end()
}

// keep starts a server of Sandlot that runs until the end.
func (p *peerBench) keep(settings ...string) (*server, error) {
	started, done, result := make(chan *server, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- p.with(func(s *server) error {
			started <- s
			<-done
			return nil
		}, settings...)
	}()
	select {
	case s := <-started:
		p.ends = append(p.ends, func() error { close(done); return <-result })
		return s, nil
	case err := <-result:
		return nil, err
	}
}

// folder makes an empty folder for one Python: srt covers files of the folder that it is started in for as long as it
// runs, so that two in one folder take each other's mounts away.
func (p *peerBench) folder() (string, error) { return os.MkdirTemp(p.tmp, "srt-") }

// contestants starts what stays (servers, a gateway, a daemon), and returns the compared ways.
func (p *peerBench) contestants() ([]*contestant, error) {
	none, err := p.keep("SANDLOT_POOL_SIZE=0", "MSB_MAX_SESSIONS=200")
	if err != nil {
		return nil, err
	}
	pool, err := p.keep()
	if err != nil {
		return nil, err
	}
	const gvisor = "gVisor's kernel"
	bare := &contestant{name: "Sandlot, bare call", state: "kept", wall: gvisor,
		make: func() (python, error) { return &ourPython{s: none, c: none.bare("")}, nil }}
	client := &contestant{name: "Sandlot, the official Python client", state: "kept", wall: gvisor,
		make: func() (python, error) {
			d, err := p.driver(filepath.Join(p.tools, "py", "bin", "python"), "mcp", none.url+"/mcp")
			return &mcpPython{d, none}, err
		}}
	pooled := &contestant{name: "Sandlot, bare call, from the pool", state: "kept", wall: gvisor,
		make: func() (python, error) { return &ourPython{s: pool, c: pool.bare(""), pooled: true}, nil }}
	all := []*contestant{bare, pooled, client}
	if _, err := os.Stat(filepath.Join(p.tools, "py", "bin", "python")); err != nil {
		return nil, errors.New("the official Python client is not there; run `make tools`")
	}
	gateway, err := p.gateway()
	if err != nil {
		return nil, err
	}
	venv := filepath.Join(p.dir, "py", "bin", "python")
	all = append(all,
		&contestant{name: "`jupyter_client`, over ZMQ", version: "8.10.0, ipykernel 7.4.0", state: "kept",
			wall: "nothing", ours: client, make: func() (python, error) {
				d, err := p.driver(venv, "zmq")
				return &kernel{driver: d}, err
			}},
		&contestant{name: "`jupyter_kernel_gateway`, a websocket", version: "3.0.1, ipykernel 7.4.0", state: "kept",
			wall: "nothing", ours: client, make: func() (python, error) {
				d, err := p.driver(venv, "gateway", gateway.url)
				return &kernel{driver: d, gateway: gateway}, err
			}})
	const spaces, same = "namespaces of Linux", "lost"
	if _, err := exec.LookPath(sandboxProgram); err == nil {
		const version = "0.0.78, bubblewrap"
		settings := filepath.Join(p.tmp, "srt.json")
		if err := errors.Join(
			os.WriteFile(settings, []byte(`{"network": {"allowedDomains": [], "deniedDomains": []},
				"filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []}}`), 0o600),
			os.WriteFile(filepath.Join(p.tmp, "worker.py"), []byte(workerScript), 0o644),
			os.WriteFile(filepath.Join(p.tmp, "srt.mjs"), []byte(srtScript), 0o644)); err != nil {
			return nil, err
		}
		srt := []string{filepath.Join(p.dir, sandboxCommand), "--settings", settings, "-c"}
		all = append(all,
			&contestant{name: "`srt`, a process each", version: version, state: same, wall: spaces, ours: bare,
				process: true, make: func() (python, error) {
					dir, err := p.folder()
					return &commands{dir: dir, args: srt, quote: true}, err
				}},
			&contestant{name: "`srt`'s library, a process each", version: version, state: same, wall: spaces, ours: bare,
				process: true, make: func() (python, error) { return &library{p: p}, nil }},
			&contestant{name: "`srt`, a Python of our own that stays", version: version, state: "kept", wall: spaces,
				ours: bare, make: func() (python, error) {
					dir, err := p.folder()
					return &worker{dir: dir, args: append(srt[:4:4], "python3 "+filepath.Join(p.tmp, "worker.py"))}, err
				}})
	}
	return append(all, p.dockerContestants(bare)...), nil
}

// dockerContestants starts a daemon; without one, the report says why.
func (p *peerBench) dockerContestants(bare *contestant) []*contestant {
	if os.Getuid() != 0 {
		p.absent.row("`docker exec`", "a Docker engine of its own needs root")
		return nil
	}
	started, done, result := make(chan *engine, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- p.withEngine(func(e *engine) error {
			started <- e
			<-done
			return nil
		})
	}()
	var e *engine
	select {
	case e = <-started:
	case err := <-result:
		p.absent.row("`docker exec`", reason(err))
		return nil
	}
	p.ends = append(p.ends, func() error { close(done); return <-result })
	version, _ := e.docker(p.ctx, "version", "--format", "{{.Server.Version}}")
	const wall = "namespaces of Linux"
	return []*contestant{
		{name: "`docker exec`, a process each", version: version, state: "lost", wall: wall, ours: bare, process: true,
			make: func() (python, error) { return &boxed{e: e, p: p}, nil }},
		{name: "`docker exec`, a Python of our own that stays", version: version, state: "kept", wall: wall, ours: bare,
			make: func() (python, error) { return &boxed{e: e, p: p, stays: true}, nil }},
	}
}

// takeOne measures one Python of each: cold starts, warm calls, and lines.
func (p *peerBench) takeOne(all []*contestant) error {
	ones := make([]python, len(all))
	defer func() {
		for _, one := range ones {
			if one != nil {
				one.close()
			}
		}
	}()
	each := func(doing string, times int, f func(*contestant, *python) error) error {
		for range times {
			for i, c := range all {
				if c.failed {
					continue
				}
				if err := p.fail(c, doing, f(c, &ones[i])); err != nil {
					return err
				}
				if c.failed && ones[i] != nil {
					_ = errors.Join(ones[i].stop(), ones[i].close()) // as far as that goes
					ones[i] = nil
				}
			}
		}
		return nil
	}
	if err := each("its client", 1, func(c *contestant, one *python) (err error) {
		*one, err = c.make()
		return err
	}); err != nil {
		return err
	}
	if err := each("a cold start", pick(p.bench, 20, 2), func(c *contestant, one *python) error {
		took, err := (*one).start()
		if err != nil {
			return err
		}
		c.cold = append(c.cold, took)
		return (*one).stop()
	}); err != nil {
		return err
	}
	if err := each("a start", 1, func(_ *contestant, one *python) error { _, err := (*one).start(); return err }); err != nil {
		return err
	}
	if err := each("warm calls", pick(p.bench, 50, 3), func(c *contestant, one *python) error {
		n := 20
		if c.process {
			n = 1
		} else if _, err := (*one).calls(1, 0); err != nil { // does not count
			return err
		}
		took, err := (*one).calls(n, 0)
		c.warm = append(c.warm, took...)
		return err
	}); err != nil {
		return err
	}
	if err := each("printed lines", pick(p.bench, 10, 2), func(c *contestant, one *python) error {
		took, err := (*one).lines()
		if err == nil {
			c.out = append(c.out, took)
		}
		return err
	}); err != nil {
		return err
	}
	return each("its end", 1, func(_ *contestant, one *python) error { return (*one).stop() })
}

// takeCrowd measures the memory of many, and calls of all of them at the same time.
func (p *peerBench) takeCrowd(all []*contestant) (err error) {
	crowds := map[*contestant][]python{}
	defer func() {
		for c, crowd := range crowds {
			for _, one := range crowd {
				if ended := errors.Join(one.stop(), one.close()); !c.failed {
					err = errors.Join(err, ended)
				}
			}
		}
	}()
	each := func(doing string, f func(*contestant) error) error {
		for _, c := range all {
			if c.failed || strings.HasSuffix(c.name, "from the pool") { // its sessions are those of the others
				continue
			}
			if err := p.fail(c, doing, f(c)); err != nil {
				return err
			}
		}
		return nil
	}
	number := pick(p.bench, 32, 4)
	doing := fmt.Sprintf("%d at once", number)
	if err := each(doing, func(c *contestant) error {
		for range number {
			one, err := c.make()
			if err != nil {
				return err
			}
			if _, err := one.start(); err != nil {
				return errors.Join(err, one.close())
			}
			crowds[c] = append(crowds[c], one)
			if _, err := one.calls(2, 0); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	time.Sleep(pick(p.bench, 10*time.Second, time.Second))
	if err := each("memory", func(c *contestant) error {
		for _, one := range crowds[c] {
			n, err := one.memory()
			if err != nil {
				return err
			}
			if n > 0 {
				c.sizes = append(c.sizes, float64(n))
			}
		}
		return nil
	}); err != nil {
		return err
	}
	for range p.rounds() {
		if err := each(doing, func(c *contestant) error { return c.turn(crowds[c], p.turn()) }); err != nil {
			return err
		}
	}
	return nil
}

// turn makes all call for some time.
func (c *contestant) turn(crowd []python, length time.Duration) error {
	took, errs := make([]samples, len(crowd)), make([]error, len(crowd))
	var callers sync.WaitGroup
	for i, one := range crowd {
		callers.Go(func() { took[i], errs[i] = one.calls(0, length) })
	}
	began := time.Now()
	callers.Wait()
	if len(crowd) > 0 {
		c.length += time.Since(began) // slow calls end later
	}
	for _, t := range took {
		c.crowd = append(c.crowd, t...)
	}
	return errors.Join(errs...)
}

func pythonTables(all []*contestant, crowd int) []table {
	what := table{Head: []string{"Python with state", "version", "variables between calls",
		"between code and the machine's kernel"}}
	cold, warm, lines := timings("cold start"), timings("warm call"), timings("100,000 printed lines")
	many := table{Head: append(append([]string{fmt.Sprintf("%d clients at once", crowd), "calls/s"}, headings...), "goal")}
	sizes := table{Head: []string{"memory of each, at rest", "samples", "average MB (10⁶ bytes)", "goal"}}
	for _, t := range []*table{&cold, &warm, &lines, &many, &sizes} {
		t.Head[len(t.Head)-1] = "beside Sandlot"
	}
	rate := func(c *contestant) float64 { return float64(len(c.crowd)) / c.length.Seconds() }
	for _, c := range all {
		version := c.version
		if c.ours == nil {
			version = "this one"
		}
		what.row(c.name, version, c.state, c.wall)
		text := func(of func(*contestant) samples) string {
			if c.ours == nil || len(of(c)) == 0 || len(of(c.ours)) == 0 {
				return ""
			}
			return besideOurs(of(c), of(c.ours)) + " (" + strings.TrimPrefix(c.ours.name, "Sandlot, ") + ")"
		}
		for _, part := range []struct {
			of func(*contestant) samples
			to *table
		}{
			{func(c *contestant) samples { return c.cold }, &cold},
			{func(c *contestant) samples { return c.warm }, &warm},
			{func(c *contestant) samples { return c.out }, &lines},
		} {
			if len(part.of(c)) > 0 {
				part.to.add(c.name, part.of(c), text(part.of))
			}
		}
		if len(c.crowd) > 0 {
			verdict := ""
			if c.ours != nil {
				verdict = "calls/s " + besideOne(rate(c), rate(c.ours), true) + ", " +
					text(func(c *contestant) samples { return c.crowd })
			}
			many.row(append(append([]string{c.name, fmt.Sprintf("%.0f", rate(c))}, c.crowd.cells()...), verdict)...)
			many.keep(c.name, c.crowd)
		}
		if len(c.sizes) > 0 {
			verdict := ""
			if c.ours != nil { // the client does not matter
				verdict = besideOne(average(c.sizes), average(all[0].sizes), false)
			}
			sizes.row(c.name, fmt.Sprint(len(c.sizes)), fmt.Sprintf("%.1f", average(c.sizes)/megabyte), verdict)
			sizes.keepIn("bytes", c.name, c.sizes)
		}
	}
	return []table{what, cold, warm, many, sizes, lines}
}

// until makes calls, so many or as many as begin in a time.
func until(n int, most time.Duration, call func() (time.Duration, error)) (all samples, err error) {
	for end := time.Now().Add(most); len(all) < n || most > 0 && time.Now().Before(end); {
		took, err := call()
		if err != nil {
			return all, err
		}
		all = append(all, took)
	}
	return all, nil
}

// timed returns how long f takes.
func timed(f func() error) (time.Duration, error) {
	var s samples
	if err := s.take(f); err != nil {
		return 0, err
	}
	return s[0], nil
}

// ourPython is a session that gets bare calls.
type ourPython struct {
	s       *server
	c       *bareClient
	session string
	box     string // the id of its sandbox
	pooled  bool
}

func (o *ourPython) start() (time.Duration, error) {
	if o.pooled {
		if err := o.s.waitPool("host", poolSize); err != nil {
			return 0, err
		}
	}
	before := o.s.boxes()
	took, err := timed(func() error {
		r, err := want(o.s.ctx, o.c, "new", "n = 40; n + 2", "42")
		o.session = r.session
		return err
	})
	for _, box := range o.s.boxes() {
		if !slices.Contains(before, box) {
			o.box = filepath.Base(box)
		}
	}
	return took, err
}

func (o *ourPython) calls(n int, most time.Duration) (samples, error) {
	return until(n, most, func() (time.Duration, error) {
		return timed(func() error { _, err := want(o.s.ctx, o.c, o.session, "n + 2", "42"); return err })
	})
}

// outputURI finds in a result the address of output that was cut.
var outputURI = regexp.MustCompile(`sandlot://(sessions/[\w./-]+)`)

func (o *ourPython) lines() (time.Duration, error) {
	return timed(func() error {
		text, err := o.c.post(o.s.ctx, "execute_code", args{"code": linesCode, "session_id": o.session})
		if err != nil {
			return err
		}
		found := outputURI.FindSubmatch(text)
		if found == nil {
			return fmt.Errorf("no address of the whole output: %.200q", text)
		}
		all, err := o.s.get(o.s.ctx, "/v1/"+string(found[1]))
		if err == nil && (len(all) != linesBytes || !strings.HasSuffix(all, "\n99999\n")) {
			err = fmt.Errorf("%d bytes, with the end %q", len(all), all[max(0, len(all)-20):])
		}
		return err
	})
}

func (o *ourPython) memory() (int64, error) {
	m, err := measure(o.box)
	return m.all(), err
}

func (o *ourPython) stop() error  { return discard(o.s.ctx, o.c, o.session) }
func (o *ourPython) close() error { o.c.close(); return nil }

// driver is a running peers/kernel.py or peers/srt.mjs: it gets a line and answers with one.
type driver struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	log *tail
}

type driverAnswer struct {
	Took   samples
	Pids   []int
	Length int
	End    string
}

// driver starts peers/kernel.py.
func (p *peerBench) driver(interpreter string, args ...string) (*driver, error) {
	return newDriver(p.tmp, append([]string{interpreter, "-c", kernelScript}, args...)...)
}

func newDriver(dir string, command ...string) (*driver, error) {
	d := &driver{cmd: exec.Command(command[0], command[1:]...), log: &tail{}}
	d.cmd.Dir, d.cmd.Stderr, d.cmd.Env = dir, d.log, jupyterIn(dir)
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = bufio.NewReader(out)
	return d, d.cmd.Start()
}

// jupyterIn returns variables with which Jupyter keeps its files in a folder, not in the user's home.
func jupyterIn(dir string) []string {
	return append(os.Environ(), "IPYTHONDIR="+filepath.Join(dir, "ipython"),
		"JUPYTER_RUNTIME_DIR="+filepath.Join(dir, "jupyter"))
}

// ask sends a line and decodes the answer.
func (d *driver) ask(line string, to any) error {
	if _, err := io.WriteString(d.in, line+"\n"); err != nil {
		return fmt.Errorf("%w: %s", err, d.log)
	}
	text, err := d.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		err = fmt.Errorf("%w: %.200q: %s", err, text, d.log)
	}
	return err
}

func (d *driver) do(what string, more args) (driverAnswer, error) {
	order := args{"do": what}
	maps.Copy(order, more)
	line, err := json.Marshal(order)
	if err != nil {
		return driverAnswer{}, err
	}
	var a driverAnswer
	err = d.ask(string(line), &a)
	return a, err
}

// one does what takes one time.
func (d *driver) one(what string) (time.Duration, []int, error) {
	a, err := d.do(what, nil)
	if err == nil && len(a.Took) != 1 {
		err = fmt.Errorf("%d times for one %s", len(a.Took), what)
	}
	if err != nil {
		return 0, nil, err
	}
	return a.Took[0], a.Pids, nil
}

func (d *driver) calls(n int, most time.Duration) (samples, error) {
	order, more := "calls", args{"n": n}
	if most > 0 {
		order, more = "for", args{"ns": most.Nanoseconds()}
	}
	a, err := d.do(order, more)
	return a.Took, err
}

func (d *driver) lines() (time.Duration, error) {
	took, _, err := d.one("lines")
	return took, err
}

func (d *driver) stop() error {
	_, err := d.do("stop", nil)
	return err
}

func (d *driver) close() error {
	d.in.Close()
	return d.cmd.Wait()
}

// mcpPython is a session that gets calls of the official Python client.
type mcpPython struct {
	*driver
	s *server
}

func (m *mcpPython) start() (time.Duration, error) {
	took, _, err := m.one("start")
	return took, err
}

// memory is that of ourPython.
func (m *mcpPython) memory() (int64, error) { return 0, nil }

// kernel is a kernel of Jupyter.
type kernel struct {
	*driver
	gateway *gateway // nil: the client's own
	pids    []int
}

func (k *kernel) start() (took time.Duration, err error) {
	before := map[int]bool{}
	if k.gateway != nil {
		before = k.gateway.kernels()
	}
	took, k.pids, err = k.one("start")
	if k.gateway != nil {
		for pid := range k.gateway.kernels() {
			if !before[pid] {
				k.pids = append(k.pids, pid)
			}
		}
	}
	return took, err
}

func (k *kernel) memory() (int64, error) { return proportionalOf(k.pids...) }

// proportionalOf returns the proportional set size of processes and their descendants.
func proportionalOf(pids ...int) (all int64, err error) {
	roots := map[int]bool{}
	for _, pid := range pids {
		roots[pid] = true
	}
	found, err := spaces(roots)
	for _, pid := range found {
		n, e := proportional(pid)
		all, err = all+n, errors.Join(err, e)
	}
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("none of the processes %v is there", pids)
	}
	return all, err
}

// gateway is a Jupyter Kernel Gateway.
type gateway struct {
	url string
	cmd *exec.Cmd
}

func (p *peerBench) gateway() (*gateway, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log := &tail{}
	g := &gateway{url: fmt.Sprintf("http://127.0.0.1:%d", port), cmd: exec.Command(filepath.Join(p.dir, gatewayCommand),
		"--KernelGatewayApp.ip=127.0.0.1", fmt.Sprintf("--KernelGatewayApp.port=%d", port))}
	g.cmd.Dir, g.cmd.Stdout, g.cmd.Stderr, g.cmd.Env = p.tmp, log, log, jupyterIn(p.tmp)
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	p.ends = append(p.ends, func() error {
		g.cmd.Process.Signal(os.Interrupt)
		_ = g.cmd.Wait() // interrupted
		return nil
	})
	return g, p.answers(g.url+"/api/kernels", log)
}

// answers waits until an address answers.
func (p *peerBench) answers(url string, log *tail) error {
	for range 1500 {
		q, err := http.NewRequestWithContext(p.ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if r, err := http.DefaultClient.Do(q); err == nil {
			return r.Body.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer: %s", url, log)
}

// kernels returns the gateway's children.
func (g *gateway) kernels() map[int]bool {
	all := map[int]bool{}
	for pid, parent := range parents() {
		if parent == g.cmd.Process.Pid {
			all[pid] = true
		}
	}
	return all
}

// commands starts a process for each call.
type commands struct {
	dir   string
	args  []string
	quote bool // the last argument is a line for a shell
}

func (c *commands) run(code string, length int) (time.Duration, error) {
	more := []string{"python3", "-c", code}
	if c.quote {
		more = []string{"python3 -c '" + code + "'"}
	}
	return timed(func() error {
		cmd := exec.Command(c.args[0], append(c.args[1:len(c.args):len(c.args)], more...)...)
		cmd.Dir = c.dir
		out, err := cmd.Output()
		if err == nil && (len(out) != length || length == 3 && string(out) != "42\n") {
			err = fmt.Errorf("a wrong answer: %d bytes, %.20q", len(out), out)
		}
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return err
	})
}

func (c *commands) start() (time.Duration, error) { return c.run("print(40 + 2)", 3) }

func (c *commands) calls(n int, most time.Duration) (samples, error) { return until(n, most, c.start) }

func (c *commands) lines() (time.Duration, error) { return c.run(linesCode, linesBytes) }
func (c *commands) memory() (int64, error)        { return 0, nil } // nothing is left after a call
func (c *commands) stop() error                   { return nil }
func (c *commands) close() error                  { return nil }

// library starts a process for each call, by the library of sandbox-runtime.
type library struct {
	p *peerBench
	d *driver
}

func (l *library) run(line string, length int) (time.Duration, error) {
	var a driverAnswer
	err := l.d.ask(line, &a)
	if err == nil && (len(a.Took) != 1 || a.Length != length || length == 3 && a.End != "42\n") {
		err = fmt.Errorf("a wrong answer: %+v", a)
	}
	if err != nil {
		return 0, err
	}
	return a.Took[0], nil
}

func (l *library) start() (time.Duration, error) {
	dir, err := l.p.folder()
	if err != nil {
		return 0, err
	}
	if l.d, err = newDriver(dir, "node", filepath.Join(l.p.tmp, "srt.mjs"), filepath.Join(l.p.dir, sandboxLibrary)); err != nil {
		return 0, err
	}
	init, err := l.run("", 0)
	if err != nil {
		return 0, err
	}
	took, err := l.call()
	return init + took, err
}

func (l *library) call() (time.Duration, error) { return l.run("python3 -c 'print(40 + 2)'", 3) }

func (l *library) calls(n int, most time.Duration) (samples, error) { return until(n, most, l.call) }

func (l *library) lines() (time.Duration, error) {
	return l.run("python3 -c '"+linesCode+"'", linesBytes)
}
func (l *library) memory() (int64, error) { return 0, nil }
func (l *library) stop() error {
	if l.d == nil {
		return nil
	}
	return l.d.close()
}
func (l *library) close() error { return nil }

// worker is a peers/worker.py in a sandbox.
type worker struct {
	dir  string
	args []string
	d    *driver
	root int // a process whose descendants it is, if that is not the command
}

func (w *worker) start() (time.Duration, error) {
	return timed(func() (err error) {
		if w.d, err = newDriver(w.dir, w.args...); err != nil {
			return err
		}
		_, err = w.run("n = 40", nil, 0)
		if err == nil {
			_, err = w.call()
		}
		return err
	})
}

func (w *worker) run(code string, value any, length int) (time.Duration, error) {
	line, err := json.Marshal(code)
	if err != nil {
		return 0, err
	}
	return timed(func() error {
		var a struct {
			Text  string
			Value any
		}
		err := w.d.ask(string(line), &a)
		if err == nil && (a.Value != value || len(a.Text) != length) {
			err = fmt.Errorf("a wrong answer: %v, %d bytes", a.Value, len(a.Text))
		}
		return err
	})
}

func (w *worker) call() (time.Duration, error) { return w.run("n + 2", 42.0, 0) }

func (w *worker) calls(n int, most time.Duration) (samples, error) { return until(n, most, w.call) }

func (w *worker) lines() (time.Duration, error) { return w.run(linesCode, nil, linesBytes) }

func (w *worker) memory() (int64, error) {
	if w.root != 0 {
		return proportionalOf(w.root)
	}
	return proportionalOf(w.d.cmd.Process.Pid)
}

func (w *worker) stop() error {
	if w.d == nil {
		return nil
	}
	return w.d.close()
}
func (w *worker) close() error { return nil }

// boxed is a container with a Python for each call, or one that stays.
type boxed struct {
	e     *engine
	p     *peerBench
	stays bool
	id    string
	python
}

func (b *boxed) start() (took time.Duration, err error) {
	docker := []string{"docker", "--host", b.e.Host, "exec", "-i"}
	took, err = timed(func() error {
		b.id, err = b.e.docker(b.p.ctx, "run", "--detach", "--network", "none", dockertest.BaseImage, "sleep", "infinity")
		return err
	})
	if err != nil {
		return 0, err
	}
	if b.stays {
		w := &worker{dir: b.p.tmp, args: append(docker, b.id, "python3", "-c", workerScript)}
		for pid, line := range commandLines() {
			if strings.Contains(line, "containerd-shim") && strings.Contains(line, b.id) {
				w.root = pid
			}
		}
		if w.root == 0 {
			return 0, fmt.Errorf("the process that runs container %s was not found", b.id)
		}
		b.python = w
	} else {
		b.python = &commands{dir: b.p.tmp, args: append(docker, b.id)}
	}
	first, err := b.python.start()
	return took + first, err
}

func (b *boxed) stop() error {
	err := b.python.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.p.ctx), time.Minute)
	defer cancel()
	_, gone := b.e.docker(ctx, "rm", "--force", b.id)
	return errors.Join(err, gone)
}

func (b *boxed) close() error { return nil }
