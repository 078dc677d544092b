package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// fromCode has the measurements of calls of a third-party tool by code in a sandbox.
type fromCode struct {
	golang, python  samples // by official clients through the hub
	inside, shell   samples // by Python in the home, and by the command mcp there
	module, nothing samples // imports, each in a process of its own: of a generated module, and of json alone
	tree            samples // from the answer to a connection until its module is in the sandbox
	notes           []string
}

// moduleTools is how many tools the module has whose import is measured.
const moduleTools = 50

//go:embed echo.py
var echoScript string

// insideCode makes calls from Python in the sandbox, and prints how long each took, in ns, but for the first one.
const insideCode = `import json, time
from mcp_tools import box
took = []
for n in range(%d):
    began = time.perf_counter_ns()
    answer = box.echo(text=str(n))
    took.append(time.perf_counter_ns() - began)
    assert json.loads(answer) == {"text": str(n)}, answer
print(json.dumps(took[1:]))`

// importCommand prints how long imports take in a new process, in ns.
const importCommand = `python3 -c 'import time; began = time.perf_counter_ns(); %s; ` +
	`print("[%%d]" %% (time.perf_counter_ns() - began))'`

// shellCommand prints how long a call by the command mcp takes, in ns.
const shellCommand = `python3 -c 'import subprocess, time; began = time.perf_counter_ns(); ` +
	`subprocess.run(["mcp", "call", "box", "echo", "text=1"], check=True, stdout=subprocess.DEVNULL); ` +
	`print("[%d]" % (time.perf_counter_ns() - began))'`

// code measures calls of a third-party tool by code in a sandbox.
func code(b *bench) (sec section, err error) {
	dir, err := tempDir()
	if err != nil {
		return sec, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := b.build("mcppeer", dir)
	if err != nil {
		return sec, err
	}
	f := &fromCode{}
	err = b.with(func(s *server) error { return f.measure(s, program) }, "SANDLOT_MCP_IDLE_TIMEOUT=1h")
	if err == nil {
		err = b.with(func(s *server) error { return f.connect(s, program) }, "SANDLOT_MCP_IDLE_TIMEOUT=2s")
	}
	return f.section(), err
}

func (f *fromCode) measure(s *server, program string) error {
	tool, err := s.addPeer(program, fmt.Sprintf("tools=%d", moduleTools))
	if err != nil {
		return err
	}
	c, err := s.connect(newer, "")
	if err != nil {
		return err
	}
	defer c.close()
	py, err := s.runPython(echoScript, s.url+"/mcp", tool)
	if err != nil {
		f.notes = append(f.notes, fmt.Sprintf("The official Python client was not measured: %v.", err))
	} else {
		defer py.close()
	}
	const block = 20
	for range pick(s.bench, 50, 3) {
		for n := range block + 1 {
			took := &f.golang
			if n == 0 {
				took = new(samples) // without the first round
			}
			if err := took.take(func() error { return echoes(s, c, tool, n) }); err != nil {
				return err
			}
		}
		for n := 0; py != nil && n <= block; n++ {
			took := &f.python
			if n == 0 {
				took = new(samples)
			}
			if err := took.take(py.call); err != nil {
				return err
			}
		}
		if err := f.inside.times(s, c, "execute_code", args{"code": fmt.Sprintf(insideCode, block+1)}); err != nil {
			return err
		}
		for to, command := range map[*samples]string{&f.module: fmt.Sprintf(importCommand, "from mcp_tools import box"),
			&f.nothing: fmt.Sprintf(importCommand, "import json"), &f.shell: shellCommand} {
			if err := to.times(s, c, "execute_command", args{"command": command}); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyPeer copies mcppeer to the home.
func (s *server) copyPeer(program string) error {
	if _, err := s.cli("cp", program, "home:mcppeer"); err != nil {
		return err
	}
	_, err := s.cli("exec", "--session", "home", "--", "chmod", "755", "/workspace/mcppeer")
	return err
}

// addPeer adds mcppeer to the home as the server box, and returns the name of its tool echo.
func (s *server) addPeer(program string, arguments ...string) (tool string, err error) {
	if err := s.copyPeer(program); err != nil {
		return "", err
	}
	out, err := s.cli(append([]string{"mcp", "add", "box", "--json", "--", "/workspace/mcppeer"}, arguments...)...)
	if err != nil {
		return "", err
	}
	return "ext_" + between(out, `"connectionId": "`, `"`) + "_echo", nil
}

// otherServers is beside how many others a server is connected whose module is waited for, and otherTools how many
// tools each of these has.
const otherServers, otherTools = 24, 20

// watchCode waits until the module of the server box is there.
const watchCode = `import os, time
path = "/run/mcp/box.py"
assert not os.path.exists(path)
while not os.path.exists(path):
    time.sleep(0.001)
print("def echo(" in open(path).read())`

// connect measures how long after a connection its module is in the sandbox.
func (f *fromCode) connect(s *server, program string) error {
	if err := s.copyPeer(program); err != nil {
		return err
	}
	for n := range otherServers {
		if _, err := s.cli("mcp", "add", fmt.Sprint("other", n), "--", "/workspace/mcppeer",
			fmt.Sprintf("tools=%d", otherTools-1)); err != nil {
			return err
		}
	}
	tool, err := s.addPeer(program, fmt.Sprintf("tools=%d", otherTools-1))
	if err != nil {
		return err
	}
	id := between(tool, "_", "_")
	c, err := s.connect(newer, "")
	if err != nil {
		return err
	}
	defer c.close()
	for range pick(s.bench, 50, 5) {
		took, err := s.connectOnce(c, id)
		if err != nil {
			return err
		}
		f.tree = append(f.tree, took)
	}
	return nil
}

// connectOnce disconnects the server box, which has this id, and connects it again. It returns the time from the answer
// until code in the home has seen the module and said so; 0: that was before the answer.
func (s *server) connectOnce(c client, id string) (time.Duration, error) {
	if _, err := c.call(s.ctx, "disconnect_external_mcp", args{"connectionId": id}); err != nil {
		return 0, err
	}
	time.Sleep(500 * time.Millisecond) // the module goes away
	type seen struct {
		at  time.Time
		err error
	}
	done := make(chan seen, 1)
	go func() {
		a, err := c.call(s.ctx, "execute_code", args{"session_id": "home", "code": watchCode})
		at := time.Now()
		if err == nil && strings.TrimSpace(a.text) != "True" {
			err = fmt.Errorf("the code that waits for the module printed %q", a.text)
		}
		done <- seen{at, err}
	}()
	time.Sleep(500 * time.Millisecond) // the code runs
	_, err := c.call(s.ctx, "restart_external_mcp", args{"connectionId": id})
	answered := time.Now()
	if err != nil {
		return 0, err
	}
	module := <-done
	return max(0, module.at.Sub(answered)), module.err
}

// echoes makes one call through the hub.
func echoes(s *server, c client, tool string, n int) error {
	r, err := c.call(s.ctx, tool, args{"text": fmt.Sprint(n)})
	if want := fmt.Sprintf(`{"text":"%d"}`, n); err == nil && r.text != want {
		err = fmt.Errorf("a wrong answer: %q, not %q", r.text, want)
	}
	return err
}

// times adds the durations that a call in the home prints.
func (s *samples) times(on *server, c client, tool string, a args) error {
	a["session_id"] = "home"
	r, err := c.call(on.ctx, tool, a)
	if err != nil {
		return err
	}
	var took []int64
	if err := json.Unmarshal([]byte(r.text), &took); err != nil || len(took) == 0 {
		return fmt.Errorf("%s printed no times: %q", tool, r.text)
	}
	for _, ns := range took {
		*s = append(*s, time.Duration(ns))
	}
	return nil
}

func (f *fromCode) section() section {
	calls := timings("one call of the tool echo")
	calls.add("through the hub, the official Go client", f.golang)
	if len(f.python) > 0 {
		calls.add("through the hub, the official Python client", f.python)
	}
	calls.add("from Python in the home: `box.echo(text=…)`", f.inside,
		f.inside.against(goal{50, f.golang.p(50) + time.Millisecond})+" (1 ms more than the Go client)")
	calls.add("from a shell in the home, with a process for each: `mcp call box echo text=1`", f.shell)
	imports := timings("an import, in a process of its own")
	imports.add(fmt.Sprintf("`from mcp_tools import box`, which has %d tools", moduleTools+1), f.module,
		f.module.against(goal{50, 30 * time.Millisecond}))
	imports.add("beside: `import json`", f.nothing)
	connected := timings("a connection, from its answer until its module is in the home")
	connected.add(fmt.Sprintf("a server with %d tools, beside %d others with as many", otherTools, otherServers),
		f.tree, f.tree.against(goal{95, 100 * time.Millisecond}))
	return section{title: "Tools called by code",
		method: "A server over standard input and output, made with the official Go SDK " +
			"([test/bench/mcppeer](../test/bench/mcppeer)), runs in the home. Its tool answers with its arguments. " +
			"It is called by official clients on the host, and by code in the home, where Python takes the time of " +
			"each call. All take turns, 20 calls each after one that does not count; all answers are checked. " +
			"Imports and the command are timed once in each turn, by a Python in the home. For the connection, " +
			"`restart_external_mcp` starts a server that was disconnected, and Python in the home looks for the " +
			"module each ms, and answers when it is there. An answer before that of the restart counts as 0.",
		tables: []table{calls, imports, connected}, notes: f.notes}
}
