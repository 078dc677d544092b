package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// fromCode has the measurements of calls of a third-party tool by code in a sandbox.
type fromCode struct {
	golang, python  samples // by official clients through the hub
	inside, shell   samples // by Python in the home, and by the command mcp there
	module, nothing samples // imports, each in a process of its own: of a generated module, and of json alone
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

// addPeer adds mcppeer to the home as the server box, and returns the name of its tool echo.
func (s *server) addPeer(program string, arguments ...string) (tool string, err error) {
	if _, err := s.cli("cp", program, "home:mcppeer"); err != nil {
		return "", err
	}
	if _, err := s.cli("exec", "--session", "home", "--", "chmod", "755", "/workspace/mcppeer"); err != nil {
		return "", err
	}
	out, err := s.cli(append([]string{"mcp", "add", "box", "--json", "--", "/workspace/mcppeer"}, arguments...)...)
	if err != nil {
		return "", err
	}
	return "ext_" + between(out, `"connectionId": "`, `"`) + "_echo", nil
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
	return section{title: "Tools called by code",
		method: "A server over standard input and output, made with the official Go SDK " +
			"([test/bench/mcppeer](../test/bench/mcppeer)), runs in the home. Its tool answers with its arguments. " +
			"It is called by official clients on the host, and by code in the home, where Python takes the time of " +
			"each call. All take turns, 20 calls each after one that does not count; all answers are checked. " +
			"Imports and the command are timed once in each turn, by a Python in the home.",
		tables: []table{calls, imports}, notes: f.notes}
}
