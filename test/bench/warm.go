package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// contender is one of the compared ways to evaluate 1+1.
type contender struct {
	name  string
	goals []goal
	rest  time.Duration // pause before each call, which is not measured
	run   func() error
	took  samples
}

// race has the compared ways.
type race struct {
	*server
	session string
	python  string       // the interpreter
	fast    []*contender // over connections
	beside  []*contender // parts of a call, measured separately
	slow    []*contender // with a new process for each call
	docker  *contender   // one of slow; nil: there is no Docker
	notes   []string
	ends    []func()
}

// warm measures a call in an existing session.
func warm(b *bench) (sec section, err error) {
	err = b.alone(func(raw *bundle) error {
		return b.with(func(s *server) (err error) {
			r := &race{server: s}
			defer r.close()
			if err := r.enter(); err != nil {
				return err
			}
			end, err := r.enterParts(raw)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, end()) }()
			if err := r.start(); err != nil {
				return err
			}
			sec = r.section()
			return nil
		})
	})
	return sec, err
}

func (r *race) section() section {
	return section{title: "A warm call",
		method: "`execute_code(\"1+1\")` in one session that exists, from the client's call to its answer, each " +
			"client over one connection that is kept. " +
			"The official clients speak Streamable HTTP, the bare call is one JSON-RPC request as curl sends it. For " +
			"comparison, what starts a process for each expression; on the host it is the same interpreter, `" +
			r.python + "`. " +
			"All take turns: 20 calls of each client after one that is not counted, then one process of each " +
			"kind.\n\n" +
			"*Beside* is what parts of a call take by themselves here: the official client with a server that " +
			"answers every call with the bytes of Sandlot's answer, and does nothing else; and a Python in a sandbox " +
			"of raw `sandlot-runsc` that reads `1+1` from a socket of the host, and writes 2, each time after " +
			partRest.String() + " without a question.",
		tables: []table{results("1+1", slices.Concat(r.fast, r.beside, r.slow))}, notes: append(r.notes, r.faster()...)}
}

// timesFaster is how many times faster than `docker exec` a call has to be.
const timesFaster = 50

// faster compares the call with `docker exec`, if that was measured.
func (r *race) faster() (notes []string) {
	if r.docker == nil {
		return nil
	}
	bare := r.fast[2]
	times := float64(r.docker.took.p(50)) / float64(bare.took.p(50))
	met := "met"
	if times < timesFaster {
		met = "**missed**"
	}
	return []string{fmt.Sprintf("At P50 the %s is %.0f times faster than `docker exec` (image `%s`); goal: at least "+
		"%d times: %s.", bare.name, times, dockerImage(), timesFaster, met)}
}

func results(what string, all []*contender) table {
	t := timings(what)
	for _, c := range all {
		t.add(c.name, c.took, c.took.against(c.goals...))
	}
	return t
}

// enter prepares the compared ways. It notes those that this machine does not have.
func (r *race) enter() error {
	goals := []goal{{50, time.Millisecond}, {99, 5 * time.Millisecond}}
	bare := r.bare("")
	r.ends = append(r.ends, bare.close)
	var err error
	if r.session, err = open(r.ctx, bare); err != nil {
		return err
	}
	if r.python, err = interpreter(r.server, bare, r.session); err != nil {
		return err
	}
	for _, version := range []string{older, newer} {
		c, err := r.connect(version, "")
		if err != nil {
			return err
		}
		r.ends = append(r.ends, c.close)
		r.fast = append(r.fast, &contender{name: "MCP " + version + ", the official Go client", goals: goals,
			run: r.calls(c)})
	}
	r.fast = append(r.fast, &contender{name: "bare call, HTTP keep-alive", goals: goals, run: r.calls(bare)})
	r.enterOthers()
	return nil
}

func (r *race) calls(c client) func() error {
	return func() error { return onePlusOne(r.ctx, c, r.session) }
}

// partRest is the pause between two expressions in a raw sandbox. In a call, it waits that long for the client and
// the server.
const partRest = 700 * time.Microsecond

// enterParts prepares the parts of a call.
func (r *race) enterParts(raw *bundle) (end func() error, err error) {
	bare := r.bare("")
	defer bare.close()
	text, err := bare.post(r.ctx, "execute_code", args{"code": "1+1", "session_id": r.session})
	if err != nil {
		return nil, err
	}
	var answer struct{ Result json.RawMessage }
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	program, err := r.build("mcppeer", raw.dir)
	if err != nil {
		return nil, err
	}
	p, err := startPeer(program, "=", string(answer.Result))
	if err != nil {
		return nil, err
	}
	r.ends = append(r.ends, p.end)
	c, err := connectTo(r.ctx, p.url(), older, "")
	if err != nil {
		return nil, err
	}
	r.ends = append(r.ends, c.close)
	box, err := raw.newRawPython("spoken")
	if err != nil {
		return nil, err
	}
	r.beside = []*contender{
		{name: "beside: the official Go client, MCP " + older + ", and a constant", run: r.calls(c)},
		{name: "beside: a Python in a raw sandbox, over a socket", rest: partRest, run: r.calls(box)},
	}
	return box.end, nil
}

// enterOthers prepares the ways without Sandlot.
func (r *race) enterOthers() {
	if py, err := r.pythonClient(r.session); err != nil {
		r.notes = append(r.notes, fmt.Sprintf("The official Python client was not measured: %v.", err))
	} else {
		r.ends = append(r.ends, py.close)
		r.fast = append(r.fast, &contender{name: "MCP " + newer + ", the official Python client", run: py.call})
	}
	r.slow = append(r.slow, &contender{name: "a process on the host: `python3 -c 'print(1+1)'`",
		run: func() error { return prints("2\n", r.python, "-c", "print(1+1)") }})
	if box, err := dockerBox(r.ctx); err != nil {
		r.notes = append(r.notes, fmt.Sprintf("`docker exec` was not measured: %v.", err))
	} else {
		r.ends = append(r.ends, box.remove)
		r.docker = &contender{name: "`docker exec` of `python3 -c 'print(1+1)'` in a running container", run: box.exec}
		r.slow = append(r.slow, r.docker)
	}
}

// start measures all, alternating.
func (r *race) start() error {
	const turn = 20
	for range pick(r.bench, 100, 3) {
		for _, c := range slices.Concat(r.fast, r.beside) {
			err := c.run()
			for i := 0; i < turn && err == nil; i++ {
				time.Sleep(c.rest)
				err = c.took.take(c.run)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		for _, c := range r.slow {
			if err := c.took.take(c.run); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

func (r *race) close() {
	for _, end := range r.ends {
		end()
	}
}

// interpreter returns the path of the sandbox's Python, which is the same on the host.
func interpreter(s *server, c client, session string) (string, error) {
	r, err := c.call(s.ctx, "execute_code", args{"code": "import sys; print(sys.executable)", "session_id": session})
	if err == nil && !strings.HasPrefix(r.text, "/") {
		err = fmt.Errorf("no path of an interpreter: %q", r.text)
	}
	return r.text, err
}
