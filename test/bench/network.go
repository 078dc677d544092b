package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// netHost is the name under which a sandbox finds this machine's loopback.
	netHost = "bench.test"
	// netCrowd is the number of streams at the same time.
	netCrowd = 50
	// netTimeout bounds each program of the benchmark.
	netTimeout = 3 * time.Minute
)

// wheels are the Python packages that are installed; half of them are pure Python.
var wheels = []string{"requests", "urllib3", "idna", "certifi", "charset-normalizer", "packaging", "click", "jinja2",
	"markupsafe", "pyyaml"}

//go:embed connect.py
var connectScript string

// networkBench is a session with access to a server on the host.
type networkBench struct {
	*server
	c       client
	session string
	python  string
	dir     string // on the host
	peer    string // the program, on the host
	port    int
	serving *exec.Cmd
	orders  io.WriteCloser

	kinds        []*kind
	lookup, name samples
	streams      []*stream
	installs     []*install
	noPip        error
	idle         idleCost
}

// kind is a program that connects.
type kind struct {
	name                    string
	host, box               []string // its command on the host, and in the sandbox
	direct, within, through times
}

// stream is a number of streams at the same time, in one direction.
type stream struct {
	way             string
	count, megabyte int // streams, and the length of each
	inside, outside samples
}

// idleCost is by how many bytes the memory of the processes grew with count connections more than the first ones.
type idleCost struct {
	first, count    int
	server, sandbox int64
}

// network measures connections from a sandbox to the host.
func network(b *bench) (section, error) {
	e := &networkBench{}
	// Without preboot images there is one sandbox at a time, so it is known which processes belong to it.
	settings := []string{"SANDLOT_NETWORK_HOSTS=" + netHost + "=127.0.0.1", "SANDLOT_NETWORK_ALLOW_PRIVATE=" + netHost +
		"=127.0.0.0/8",
		"SANDLOT_NETWORK_CONNECTION_RATE=100000", "SANDLOT_NETWORK_MAX_CONNECTIONS=2000",
		"SANDLOT_NETWORK_REGISTRIES=auto", "SANDLOT_POOL_SIZE=0", "SANDLOT_SNAPSHOTS=false"}
	settings = append(settings, inherited("PIP_", "SSL_CERT", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy",
		"http_proxy")...)
	direct := netHost + "," + os.Getenv("NO_PROXY") + "," + os.Getenv("no_proxy")
	settings = append(settings, "NO_PROXY="+direct, "no_proxy="+direct)
	err := b.with(func(s *server) (err error) {
		e.server, e.c = s, s.bare("")
		defer e.c.close()
		if err := e.enter(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.endPeer()) }()
		return e.run()
	}, settings...)
	if err != nil {
		return section{}, err
	}
	return e.section(), nil
}

// inherited returns the environment variables with these prefixes: they say how this machine reaches its package
// registries.
func inherited(prefixes ...string) (settings []string) {
	for _, kv := range os.Environ() {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(kv, p) }) {
			settings = append(settings, kv)
		}
	}
	return settings
}

// enter creates the session, starts the server on the host, and uploads the client to the session.
func (e *networkBench) enter() (err error) {
	if e.dir, err = tempDir(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.endPeer())
		}
	}()
	if e.peer, err = e.build("netpeer", e.dir); err != nil {
		return err
	}
	if err := e.servePeer(); err != nil {
		return err
	}
	if e.session, err = open(e.ctx, e.c); err != nil {
		return err
	}
	if e.python, err = interpreter(e.server, e.c, e.session); err != nil {
		return err
	}
	script := filepath.Join(e.dir, "connect.py")
	if err := os.WriteFile(script, []byte(connectScript), 0o600); err != nil {
		return err
	}
	for _, f := range []string{e.peer, script} {
		if _, err := e.cli("cp", f, e.session+":"+filepath.Base(f)); err != nil {
			return err
		}
	}
	e.kinds = []*kind{
		{name: "Python", host: []string{e.python, script}, box: []string{e.python, "/workspace/connect.py"}},
		{name: "Go", host: []string{e.peer, "connect"}, box: []string{"/workspace/netpeer", "connect"}},
	}
	_, err = e.shell("chmod 755 /workspace/netpeer && echo done")
	return err
}

// run measures all. It begins with the memory, which the other measurements change.
func (e *networkBench) run() error {
	for _, f := range []func() error{e.idling, e.connections, e.allStreams, e.packages} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (e *networkBench) servePeer() error {
	cmd := exec.Command(e.peer, "serve")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	e.serving, e.orders = cmd, in
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		e.port, err = strconv.Atoi(strings.TrimSpace(line))
	}
	return err
}

func (e *networkBench) endPeer() error {
	var err error
	if e.serving != nil {
		e.orders.Close()
		err = e.serving.Wait()
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}

// shell runs a command in the sandbox, and returns its output, which must not be empty.
func (e *networkBench) shell(command string) (string, error) {
	ctx, cancel := context.WithTimeout(e.ctx, netTimeout)
	defer cancel()
	c := e.bare("") // two commands can run at once
	defer c.close()
	r, err := c.call(ctx, "execute_command", args{"command": command, "session_id": e.session,
		"timeout": int(netTimeout.Seconds())})
	if err == nil && (r.session != e.session || r.text == "") {
		err = fmt.Errorf("%s: a wrong answer: %q", command, r.text)
	}
	return r.text, err
}

// times are the measurements that the clients print.
type times struct{ Connect, Both, Took samples }

func parseTimes(text string, err error) (t times, _ error) {
	if err == nil {
		if e := json.Unmarshal([]byte(text), &t); e != nil {
			err = fmt.Errorf("a client's wrong answer: %q", text)
		}
	}
	return t, err
}

// peerHere returns the server's address for programs on the host.
func (e *networkBench) peerHere() string { return "127.0.0.1:" + strconv.Itoa(e.port) }

// peerThere returns the server's address for programs in the sandbox.
func (e *networkBench) peerThere() string { return netHost + ":" + strconv.Itoa(e.port) }

// sandboxed runs a client in the sandbox.
func (e *networkBench) sandboxed(command ...string) (times, error) {
	return parseTimes(e.shell(strings.Join(command, " ")))
}

// within runs a client and a server in the sandbox.
func (e *networkBench) within(client, count string) (times, error) {
	return e.sandboxed(`d=$(mktemp -d) && mkfifo $d/in && { /workspace/netpeer serve < $d/in > $d/port & } && exec 3> $d/in && until [ -s $d/port ]; do sleep 0.05; done;`,
		client, `127.0.0.1:$(cat $d/port)`, count, `; exec 3>&-; wait; rm -r $d`)
}

// plain runs a client on the host.
func (e *networkBench) plain(command ...string) (times, error) {
	ctx, cancel := context.WithTimeout(e.ctx, netTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
	return parseTimes(string(out), err)
}

// connections measures connections, alternating between the kinds.
func (e *networkBench) connections() error {
	n := strconv.Itoa(pick(e.bench, 100, 20))
	for range pick(e.bench, 10, 2) {
		for _, k := range e.kinds {
			if err := errors.Join(
				k.direct.more(e.plain(append(slices.Clone(k.host), e.peerHere(), n)...)),
				k.within.more(e.within(strings.Join(k.box, " "), n)),
				k.through.more(e.sandboxed(append(slices.Clone(k.box), e.peerThere(), n)...))); err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
		}
		name, err := e.sandboxed("/workspace/netpeer name", e.peerThere(), n)
		if err != nil {
			return err
		}
		lookup, err := e.sandboxed("/workspace/netpeer lookup", netHost, n)
		if err != nil {
			return err
		}
		e.name, e.lookup = append(e.name, name.Took...), append(e.lookup, lookup.Took...)
	}
	return nil
}

func (t *times) more(other times, err error) error {
	if err == nil && len(other.Both) == 0 {
		err = errors.New("no samples")
	}
	t.Connect, t.Both = append(t.Connect, other.Connect...), append(t.Both, other.Both...)
	return err
}

// allStreams measures the streams, alternating between the kinds.
func (e *networkBench) allStreams() error {
	one, each := pick(e.bench, 500, 50), pick(e.bench, 10, 1)
	for _, way := range []string{"down", "up"} {
		e.streams = append(e.streams, &stream{way: way, count: 1, megabyte: one},
			&stream{way: way, count: netCrowd, megabyte: each})
	}
	for range pick(e.bench, 5, 2) {
		for _, s := range e.streams {
			in, err := e.sandboxed("/workspace/netpeer", s.way, e.peerThere(), strconv.Itoa(s.count),
				strconv.Itoa(s.megabyte))
			if err != nil {
				return fmt.Errorf("%d streams %s: %w", s.count, s.way, err)
			}
			out, err := e.plain(e.peer, s.way, e.peerHere(), strconv.Itoa(s.count), strconv.Itoa(s.megabyte))
			if err != nil {
				return err
			}
			s.inside, s.outside = append(s.inside, in.Took...), append(s.outside, out.Took...)
		}
	}
	return nil
}

// install is a way to install the wheels, in the sandbox and on the host.
type install struct {
	name            string
	options         string
	inside, outside samples
}

// packages installs the wheels from the registry and from a folder: the difference is the network's. Each time
// the same versions must be installed. Before, it tries on the host whether the registry can be reached.
func (e *networkBench) packages() error {
	all := []*install{{name: "from the registry"}, {name: "from a folder, without a network",
		options: "--no-index --find-links %s/wheels"}}
	const common = "-q --no-cache-dir --no-deps --only-binary :all:"
	fetch := func(dir string) string {
		return fmt.Sprintf("%s -m pip download %s --dest %s/wheels %s && echo done", e.python, common, dir,
			strings.Join(wheels, " "))
	}
	if out, err := e.onHost(fetch(e.dir)); err != nil || out != "done" {
		e.noPip = errors.New("this machine's own pip reaches no registry")
		return nil
	}
	if _, err := e.shell(fetch("/tmp")); err != nil {
		return fmt.Errorf("pip: %w", err)
	}
	installed := ""
	for range pick(e.bench, 3, 1) {
		for _, i := range all {
			command := func(dir string) string {
				return fmt.Sprintf("%s -m pip install --root-user-action ignore %s %s --target %s/new %s && ls "+
					"%[4]s/new | grep dist-info; rm -rf %[4]s/new",
					e.python, common, strings.ReplaceAll(i.options, "%s", dir), dir, strings.Join(wheels, " "))
			}
			for _, w := range []struct {
				to  *samples
				run func(string) (string, error)
				dir string
			}{{&i.outside, e.onHost, e.dir}, {&i.inside, e.shell, "/tmp"}} {
				var got string
				err := w.to.take(func() (err error) { got, err = w.run(command(w.dir)); return err })
				if installed == "" {
					installed = got
				}
				if err == nil && (got != installed || len(strings.Fields(got)) != len(wheels)) {
					err = fmt.Errorf("a wrong answer: %q was installed, not %q", got, installed)
				}
				if err != nil {
					return fmt.Errorf("pip: %w", err)
				}
			}
		}
	}
	e.installs = all
	return nil
}

// onHost runs a command in the server's environment.
func (e *networkBench) onHost(command string) (string, error) {
	ctx, cancel := context.WithTimeout(e.ctx, netTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", command)
	cmd.Env = e.env
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// idling measures the memory of idle connections. It opens them in two parts: the first part has the cost that does
// not depend on their number.
func (e *networkBench) idling() (err error) {
	e.idle.first, e.idle.count = pick(e.bench, 200, 100), pick(e.bench, 1000, 300)
	before, err := e.holding(e.idle.first, e.idle.first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, before.end()) }()
	after, err := e.holding(e.idle.count, e.idle.first+e.idle.count)
	if err != nil {
		return err
	}
	e.idle.server, e.idle.sandbox = after.server-before.server, after.sandbox-before.sandbox
	return after.end()
}

// held has the idle connections, and the memory of all processes with them.
type held struct {
	*networkBench
	ended           chan error
	server, sandbox int64
}

// holding opens connections until there are as many as given.
func (e *networkBench) holding(some, all int) (*held, error) {
	h := &held{networkBench: e, ended: make(chan error, 1)}
	go func() {
		_, err := e.sandboxed("/workspace/netpeer idle", e.peerThere(), strconv.Itoa(some))
		h.ended <- err
	}()
	err := e.waitOpen(all, h.ended)
	if err == nil {
		time.Sleep(pick(e.bench, 5*time.Second, time.Second))
		err = h.weigh()
	}
	if err != nil {
		return nil, errors.Join(err, h.end())
	}
	return h, nil
}

func (h *held) weigh() error {
	boxes := h.boxes()
	if len(boxes) != 1 {
		return fmt.Errorf("%d sandboxes for one session", len(boxes))
	}
	s, err := measure(filepath.Base(boxes[0]))
	if err != nil {
		return err
	}
	h.sandbox = s.all()
	h.server, err = proportional(h.cmd.Process.Pid)
	return err
}

// end ends all idle connections.
func (h *held) end() error {
	_, err := io.WriteString(h.orders, "\n")
	return errors.Join(err, <-h.ended)
}

// waitOpen waits until that many connections are open.
func (e *networkBench) waitOpen(n int, ended chan error) error {
	ctx, cancel := context.WithTimeout(e.ctx, time.Minute)
	defer cancel()
	for {
		open, err := e.metric(ctx, "sandlot_network_connections_open")
		if err != nil || open == float64(n) {
			return err
		}
		select {
		case err := <-ended:
			close(ended)
			return errors.Join(errors.New("the idle connections ended"), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (e *networkBench) section() section {
	s := section{title: "The network",
		method: fmt.Sprintf("A program in a sandbox of the default flavor reaches a server on the host's loopback by "+
			"the transparent way out, under a name that is allowed; and the same program does it directly on the "+
			"host. It measures by itself. The server, and the programs in Go, are "+
			"[test/bench/netpeer](../test/bench/netpeer), static. "+
			"`network.max_connections` and `network.connection_rate` are raised for this.\n\n"+
			"*Connections*: the name is looked up once; each connection is new, and one byte goes there and comes "+
			"back. In a sandbox, connect alone ends at the agent, and the echo waits for the broker to connect. "+
			"Within the sandbox means that the server is there too: what gVisor's own network takes. "+
			"A look-up is answered by the agent for two seconds, then by the broker. All take turns, each after 20 "+
			"that do not count. *Streams*: connected before the clock starts, %d MB (2²⁰ bytes) in sum; what comes "+
			"is compared byte by byte. "+
			"*`pip install`*: ten wheels (%s) into a new folder below the temporary one, from this machine's own "+
			"registry, and from a folder for comparison, with `--no-cache-dir --no-deps` and the same Python, in "+
			"turns; the same versions must be there after. "+
			"*Idle connections*: each has echoed a byte and rests; what the proportional set size of the processes "+
			"grows by for each, beyond the first %d. The host kernel's buffers are not in it, and the sandbox's part "+
			"is bounded by its memory limit.", e.streams[0].megabyte, strings.Join(wheels, ", "), e.idle.first),
		tables: []table{e.delays(), e.speeds()}}
	if e.noPip != nil {
		s.notes = append(s.notes, fmt.Sprintf("`pip install` was not measured: %v.", e.noPip))
	} else {
		s.tables = append(s.tables, e.pip())
	}
	s.tables = append(s.tables, e.idles())
	return s
}

func (e *networkBench) delays() table {
	t := timings("connections")
	for _, k := range e.kinds {
		t.add(k.name+", direct: connect", k.direct.Connect)
		t.add(k.name+", within the sandbox: connect", k.within.Connect)
		t.add(k.name+", sandbox: connect", k.through.Connect)
		t.add(k.name+", direct: connect and echo", k.direct.Both)
		t.add(k.name+", within the sandbox: connect and echo", k.within.Both)
		t.add(k.name+", sandbox: connect and echo", k.through.Both,
			k.through.Both.against(goal{50, k.direct.Both.p(50) + time.Millisecond})+" (1 ms more than direct)")
	}
	t.add("Go, sandbox: look-up", e.lookup)
	t.add("Go, sandbox: look-up, connect and echo", e.name)
	return t
}

func (e *networkBench) speeds() table {
	t := table{Head: []string{"streams", "samples", "sandbox, P50 MB/s", "slowest", "direct, P50 MB/s", "goal"}}
	var one float64
	for _, s := range e.streams {
		size := s.count * s.megabyte
		p50 := speed(size, s.inside.p(50))
		row := []string{fmt.Sprintf("%d %s", s.count, s.way), fmt.Sprint(len(s.inside)), fmt.Sprintf("%.0f", p50),
			fmt.Sprintf("%.0f", speed(size, s.inside.p(100))), fmt.Sprintf("%.0f", speed(size, s.outside.p(50)))}
		if s.count == 1 {
			one = p50
			row = append(row, verdict("P50 ≥ 150 MB/s", p50 >= 150))
		} else {
			row = append(row, fmt.Sprintf("%.0f %% of one; ", 100*p50/one)+verdict("≥ 80 %", p50 >= 0.8*one))
		}
		t.Rows = append(t.Rows, row)
		t.keep(row[0]+", sandbox", s.inside)
		t.keep(row[0]+", direct", s.outside)
	}
	return t
}

func (e *networkBench) pip() table {
	t := timings("`pip install` of ten wheels")
	for n, i := range e.installs {
		r := ratio(i.inside, i.outside, 50)
		more := fmt.Sprintf("%.2f × the host's", r)
		if n == 0 {
			more += "; " + verdict("median ≤ 1.3 ×", r <= 1.3)
		}
		t.add(i.name+", on the host", i.outside)
		t.add(i.name+", in a sandbox", i.inside, more)
	}
	return t
}

func (e *networkBench) idles() table {
	each := func(n int64) float64 { return float64(n) / float64(e.idle.count) / 1000 }
	row := func(name string, n int64) []string {
		return []string{name, fmt.Sprint(e.idle.count), fmt.Sprintf("%.1f", each(n))}
	}
	return table{Head: []string{"idle connections", "connections", "KB (10³ bytes) each", "goal"}, Rows: [][]string{
		append(row("the server", e.idle.server), verdict("≤ 64 KB", each(e.idle.server) <= 64)),
		row("the sandbox: its kernel, the agent and the program", e.idle.sandbox),
	}}
}
