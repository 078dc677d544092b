package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"sandlot/internal/image/imagetest"
)

// Versions of the peers. Where one is not to be had, the report says why.
const (
	pythonPeers = "ipykernel==7.4.0 jupyter_client==8.10.0 pyzmq==27.3.0 tornado==6.6.1 " +
		"jupyter_kernel_gateway==3.0.1 websocket-client==1.9.2 mcp-proxy==0.13.0 mcp==1.30.0"
	nodePeers       = "@anthropic-ai/sandbox-runtime@0.0.78 supergateway@4.0.0"
	mcpRunPython    = "mcp-run-python==0.0.22"
	mcpGateway      = "github.com/docker/mcp-gateway/cmd/docker-mcp@latest"
	toolHive        = "github.com/stacklok/toolhive/cmd/thv@v0.63.0"
	toolHiveGo      = "go1.27.3" // it needs a newer Go than Sandlot
	accountPeers    = "e2b-code-interpreter==2.11.5 daytona==0.226.1"
	installing      = 10 * time.Minute // at most, of one peer
	sandboxPrograms = "bubblewrap socat ripgrep"
	sandboxProgram  = "bwrap"
	sandboxLibrary  = "node_modules/@anthropic-ai/sandbox-runtime/dist/index.js"
	sandboxCommand  = "node_modules/.bin/srt"
	gatewayCommand  = "py/bin/jupyter-kernelgateway"
	mcpProxyCommand = "py/bin/mcp-proxy"
	superCommand    = "node_modules/.bin/supergateway"
)

// peerBench is Sandlot beside what a user would take in its place.
type peerBench struct {
	*bench
	dir    string // of the peers, in the folder of tools
	tmp    string // removed at the end
	absent table  // peers that cannot run here, with the reason
	ends   []func() error
}

// peers measures Sandlot beside what a user would take in its place.
func peers(b *bench) (sec section, err error) {
	tools, err := filepath.EvalSymlinks(b.tools) // a clone's folder of tools may be a link, and not stay
	if err != nil {
		return sec, err
	}
	p := &peerBench{bench: b, dir: filepath.Join(tools, "peers"),
		absent: table{Head: []string{"cannot be measured here", "why, as found in this run"}}}
	if p.tmp, err = tempDir(); err != nil {
		return sec, err
	}
	defer func() { err = errors.Join(err, p.end(), os.RemoveAll(p.tmp)) }()
	if err := p.install(); err != nil {
		return sec, err
	}
	p.tryOthers()
	sec = section{title: peersTitle, method: fmt.Sprintf(peersMethod, b.rounds(), b.turn(), mostAway)}
	python, err := p.python()
	if err != nil {
		return sec, fmt.Errorf("Python with state: %w", err)
	}
	hubs, err := p.hubs()
	if err != nil {
		return sec, fmt.Errorf("tools through a hub: %w", err)
	}
	sec.tables = append(append(python, hubs...), p.absent)
	return sec, nil
}

func (p *peerBench) end() (err error) {
	for i := len(p.ends) - 1; i >= 0; i-- {
		err = errors.Join(err, p.ends[i]())
	}
	p.ends = nil
	return err
}

// install installs the peers that run everywhere, once for each list of versions.
func (p *peerBench) install() error {
	if _, err := exec.LookPath(sandboxProgram); err != nil {
		if os.Getuid() != 0 {
			p.absent.row("`"+sandboxCommand+"`", "`"+sandboxProgram+"` is not installed, and apt needs root")
		} else {
			h := &harness{ctx: p.ctx}
			if err := h.do(func() {
				imagetest.Install(h, sandboxProgram, strings.Fields(sandboxPrograms)...)
			}); err != nil {
				return err
			}
		}
	}
	if err := p.venv("py", pythonPeers); err != nil {
		return err
	}
	return p.once("node", nodePeers, func() error {
		if err := os.WriteFile(filepath.Join(p.dir, "package.json"), []byte(`{"private": true}`), 0o644); err != nil {
			return err
		}
		return p.command("npm", append([]string{"install", "--prefix", p.dir, "--no-audit", "--no-fund",
			"--loglevel=error"}, strings.Fields(nodePeers)...)...)
	})
}

// venv makes a virtual environment with packages.
func (p *peerBench) venv(name, packages string) error {
	return p.once(name, packages, func() error {
		folder := filepath.Join(p.dir, name)
		if err := errors.Join(os.RemoveAll(folder), p.command("python3", "-m", "venv", folder)); err != nil {
			return err
		}
		return p.command(filepath.Join(folder, "bin", "pip"),
			append([]string{"install", "-q", "--disable-pip-version-check"}, strings.Fields(packages)...)...)
	})
}

// once installs something unless the same versions are there.
func (p *peerBench) once(name, versions string, install func() error) error {
	mark := filepath.Join(p.dir, ".installed-"+name)
	versions += "\n" + p.dir // programs of a virtual environment have its path in them
	if text, err := os.ReadFile(mark); err == nil && string(text) == versions {
		return nil
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	if err := install(); err != nil {
		return err
	}
	return os.WriteFile(mark, []byte(versions), 0o644)
}

// command runs a program that installs something.
func (p *peerBench) command(name string, args ...string) error {
	return p.commandIn(nil, name, args...)
}

// commandIn runs it with more variables.
func (p *peerBench) commandIn(env []string, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(p.ctx, installing)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Dir = p.tmp
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return nil
}

// tryOthers tries the peers that may not be had, or not run, on this machine, and keeps why.
func (p *peerBench) tryOthers() {
	try := func(name string, need func() error) {
		why := "it can be installed here, but this program does not drive it yet"
		if err := need(); err != nil {
			why = reason(err)
		}
		p.absent.row(name, why)
	}
	goBin := "GOBIN=" + filepath.Join(p.dir, "bin")
	try("`docker/mcp-gateway`", func() error { return p.commandIn([]string{goBin}, "go", "install", mcpGateway) })
	try("ToolHive's proxy (`thv` 0.63.0)", func() error {
		return p.commandIn([]string{goBin, "GOTOOLCHAIN=" + toolHiveGo}, "go", "install", toolHive)
	})
	try("`mcp-run-python` 0.0.22", func() error {
		if err := p.venv("run", mcpRunPython); err != nil {
			return err
		}
		return foreignImport(filepath.Join(p.dir, "run"))
	})
	// Without a key, the clients of these services fail before they connect to anything.
	account := func(code string) func() error {
		return func() error {
			if err := p.venv("accounts", accountPeers); err != nil {
				return err
			}
			return p.command("env", "-i", "PATH="+os.Getenv("PATH"), "HOME="+p.tmp,
				filepath.Join(p.dir, "accounts", "bin", "python"), "-c", code)
		}
	}
	try("E2B (`e2b-code-interpreter` 2.11.5)", account("import e2b_code_interpreter as e; e.Sandbox.create()"))
	try("Daytona (`daytona` 0.226.1)", account("import daytona; daytona.Daytona()"))
	p.absent.row("microsandbox", "it needs KVM, and a registry of images. `sandlot doctor` says of KVM: "+p.kvm())
}

// foreignImport returns an error if a package needs packages of a registry other than those that peers come from.
func foreignImport(venv string) error {
	files, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages", "mcp_run_python", "deno",
		"deno.json*"))
	if err != nil || len(files) == 0 {
		return errors.Join(errors.New("not found: the list of its packages"), err)
	}
	text, err := os.ReadFile(files[0])
	if found := regexp.MustCompile(`"(jsr:[^"]+)"`).FindSubmatch(text); err == nil && found != nil {
		err = fmt.Errorf("it installs %s when it starts, which is not found in npm, PyPI or Go's module proxy, and this "+
			"program uses no other registry", found[1])
	}
	return err
}

// kvm returns what sandlot doctor says about virtual machines.
func (p *peerBench) kvm() string {
	for line := range strings.Lines(p.doctor()) {
		if _, text, found := strings.Cut(line, "kvm: "); found {
			return strings.TrimSpace(text)
		}
	}
	return "nothing"
}

var (
	address = regexp.MustCompile(`[a-z]+://\S+`)
	where   = regexp.MustCompile(`^\S+\.go:\d+:\d+: `)
	colours = regexp.MustCompile("\x1b\\[[0-9;]*m")
	blames  = regexp.MustCompile(`(?i)forbidden|not available|error|exception|requires|denied|not found|timed out|killed`)
)

// reason returns the line of an error that says most, without addresses and places in files.
func reason(err error) string {
	text := colours.ReplaceAllString(err.Error(), "")
	best, after := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(where.ReplaceAllString(address.ReplaceAllString(line, "…"), ""))
		if answer, ok := strings.CutPrefix(line, "server response: "); ok { // of the line before
			after = " (" + answer + ")"
		} else if blames.MatchString(line) && !strings.HasPrefix(line, "raise ") {
			best, after = line, ""
		}
	}
	if best == "" {
		best, _, _ = strings.Cut(text, "\n")
	}
	best += after
	if r := []rune(oneLine(best)); len(r) > 300 {
		return string(r[:300]) + "…"
	}
	return oneLine(best)
}

// besideOurs says by how much samples are longer or shorter than Sandlot's.
func besideOurs(theirs, ours samples) string {
	var all []string
	for _, percent := range []float64{50, 99} {
		all = append(all, fmt.Sprintf("P%g %s", percent,
			besideOne(float64(theirs.p(percent)), float64(ours.p(percent)), false)))
	}
	return strings.Join(all, ", ")
}

// besideOne says by how much a figure differs from Sandlot's; more is better of some.
func besideOne(theirs, ours float64, more bool) string {
	form := " (%.2f × Sandlot's)"
	if r := theirs / ours; r >= 100 {
		form = " (%.0f × Sandlot's)"
	} else if r < 0.1 {
		form = " (%.2g × Sandlot's)"
	}
	times := fmt.Sprintf(form, theirs/ours)
	switch {
	case theirs == ours:
		return "equal"
	case (theirs > ours) == more:
		return peerAhead + times
	}
	return peerBehind + times
}

const peersMethod = "What a user would take in place of Sandlot, on this machine, in this run. Each comes from its " +
	"package registry, in the version that the tables name, with its default settings. All take turns, do the same " +
	"work, and have their answers checked. \"Ahead\" and \"behind\" compare a peer's figure with the row of Sandlot " +
	"that does the same, which the last column names where there are several.\n\n" +
	"*Python with state.* `n + 2`, where an earlier call has set `n` to 40. Jupyter's kernels are used with their " +
	"own client in Python, one process for each client, which takes the time; `execute_interactive` of " +
	"`jupyter_client`, and the messages of a websocket for `jupyter_kernel_gateway`. Sandlot's rows are a bare call " +
	"as in \"A warm call\", by this program in Go, and the official MCP client in Python, in a process for each " +
	"client, which takes the time as Jupyter's do. `srt` is the command of `@anthropic-ai/sandbox-runtime`, which " +
	"runs a command in bubblewrap without a network; its library in Node does the same without a new Node each " +
	"time. Neither these nor `docker exec` keep a state by themselves: they compute `40 + 2` in a new process each " +
	"time; or [a Python](../test/bench/peers/worker.py) that this program wrote stays in the sandbox, and gets " +
	"lines of JSON over its standard input. That Python has no limits, time-outs, interrupts or separate errors. " +
	"*Cold start*: from nothing to the first answer, with the programs that stay (a gateway, a daemon, Sandlot's " +
	"server, the client) running. *Clients at once*: each with its own Python; calls one after the other, in %d " +
	"turns of %v. *Memory*: the proportional set size of all processes of one Python and what is around it, of " +
	"as many as there were clients at once, at rest; programs that serve all (a gateway, a daemon, Sandlot's server) " +
	"and clients are not in it. *Lines*: `for i in range(100000): print(i)`, until the client has all. Sandlot's " +
	"answer has the beginning and the end of such a text, and a link to the whole, which the client reads then.\n\n" +
	"*Tools through a hub.* The server and the client are those of \"The hub\". `mcp-proxy` and `supergateway` " +
	"(`--stateful`: else it starts the server anew for each message) put a server of standard input and output " +
	"behind HTTP, as Sandlot does with `where: host`. *Listing*: 25 servers of 20 tools, until the " +
	"client has decoded all 500: from one address of Sandlot (`tools=all`), from 25 addresses of one `mcp-proxy`, and " +
	"of 25 `supergateway`, asked all at once. *Start*: from the start of the hub until that. *Memory*: the " +
	"proportional set size of the hub's processes after it, without the servers'. *Restart*: the server is killed " +
	"with SIGKILL; from then until a call is answered rightly. A call that fails is made again 10 ms later, over a " +
	"new connection, as a client has to if its session is gone; after %v the row says that none was.\n\n" +
	"*Where a peer is ahead, and why.* A Python of our own that stays is asked with one line over a pipe: no HTTP, no " +
	"MCP, no session, rule, event, time-out or bound of the output, and nothing that tells the cell's output from its " +
	"value. Its system calls go to the machine's own kernel, where one of gVisor costs some 10 µs and more. What a raw " +
	"sandbox's Python takes alone, and what the client does, stand in \"A warm call\" as *beside*. Sandlot has taken " +
	"two steps towards it: cells have a connection of their own to the interpreter, and " +
	"ordinary calls a short way through the server " +
	"([decision 25](decisions/0025-fast-path.md)). The rest is what makes it a service. In memory, containers are " +
	"ahead by gVisor's kernel and file server, whose share is in \"Memory of an idle session\": that is the price of " +
	"a wall that is not the machine's kernel."
