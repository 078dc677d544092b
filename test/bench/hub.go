package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// hubServer is the third-party server whose start is measured.
const hubServer = "@modelcontextprotocol/server-memory"

// hubBench is a Sandlot server with third-party servers.
type hubBench struct {
	*server
	dir     string
	program string  // mcppeer, on the host
	peers   []*peer // mcppeer over HTTP, and a proxy to it
	clients []client
	ways    []*way

	starts, first       samples // of hubServer
	nodeHere, nodeThere samples // of Node alone, on the host and in a sandbox
	tools               catalog
}

// way is one way to call the echo tool: with or without Sandlot, over one of the transports.
type way struct {
	name string
	tool string
	c    client
	base *way // the way without Sandlot that this one is compared with
	goal time.Duration
	took samples
}

// hub measures calls of third-party servers.
func hub(b *bench) (sec section, err error) {
	h := &hubBench{}
	if h.dir, err = tempDir(); err != nil {
		return sec, err
	}
	defer func() { err = errors.Join(err, h.end(), os.RemoveAll(h.dir)) }()
	if h.program, err = b.build("mcppeer", h.dir); err != nil {
		return sec, err
	}
	if err := h.serve(); err != nil {
		return sec, err
	}
	settings := []string{"SANDLOT_NETWORK_REGISTRIES=auto", "SANDLOT_POOL_SIZE=0"}
	settings = append(settings, inherited("npm_config_", "NPM_CONFIG_", "SSL_CERT", "NODE_EXTRA", "HTTPS_PROXY",
		"https_proxy")...)
	file := filepath.Join(h.dir, "sandlot.yaml")
	text := fmt.Sprintf("mcp:\n  web: {url: %q}\n  host: {command: %s, where: host, user: \"%d\"}\n", h.peers[0].url(),
		h.program, os.Getuid())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return sec, err
	}
	err = b.alone(func(raw *bundle) error {
		return b.with(func(s *server) error {
			h.server = s
			if err := h.enter(); err != nil {
				return err
			}
			end, err := h.enterParts(raw)
			if err != nil {
				return err
			}
			return errors.Join(h.calls(), end())
		}, append(settings, "SANDLOT_MCP_IDLE_TIMEOUT=1h", "SANDLOT_CONFIG="+file)...)
	})
	if err == nil {
		err = b.with(func(s *server) error {
			h.server = s
			return h.startsUp()
		}, append(settings, "SANDLOT_MCP_IDLE_TIMEOUT=1s")...)
	}
	if err == nil {
		err = h.tools.measure(b, h.dir)
	}
	return h.section(), err
}

func (h *hubBench) end() error {
	for _, c := range h.clients {
		c.close()
	}
	for _, p := range h.peers {
		p.end()
	}
	return h.tools.end()
}

// serve starts mcppeer over HTTP, and a proxy to it.
func (h *hubBench) serve() error {
	p, err := startPeer(h.program)
	if err != nil {
		return err
	}
	h.peers = append(h.peers, p)
	proxy, err := startPeer(h.program, "http://"+p.address)
	if err == nil {
		h.peers = append(h.peers, proxy)
	}
	return err
}

// direct connects to a server without Sandlot.
func (h *hubBench) direct(t mcp.Transport) (client, error) {
	c, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(h.ctx, t, nil)
	if err != nil {
		return nil, err
	}
	k := &sdkClient{c, &http.Transport{}}
	h.clients = append(h.clients, k)
	return k, nil
}

func (h *hubBench) enter() error {
	stdio, err := h.direct(&mcp.CommandTransport{Command: exec.Command(h.program)})
	if err != nil {
		return err
	}
	web, err := h.direct(&mcp.StreamableClientTransport{Endpoint: h.peers[0].url(), DisableStandaloneSSE: true})
	if err != nil {
		return err
	}
	box, err := h.addPeer(h.program)
	if err != nil {
		return err
	}
	h.ways = []*way{{name: "stdio, directly on the host", tool: "echo", c: stdio},
		{name: "HTTP, directly on the host", tool: "echo", c: web}}
	for _, era := range []string{older, newer} {
		c, err := h.connect(era, "")
		if err != nil {
			return err
		}
		h.clients = append(h.clients, c)
		h.ways = append(h.ways,
			&way{name: "through the hub to stdio in a sandbox, MCP " + era, tool: box, c: c,
				base: h.ways[0], goal: 500 * time.Microsecond},
			&way{name: "through the hub to stdio on the host, MCP " + era, tool: "ext_host_echo", c: c,
				base: h.ways[0]},
			&way{name: "through the hub to HTTP, MCP " + era, tool: "ext_web_echo", c: c, base: h.ways[1],
				goal: 300 * time.Microsecond})
	}
	return nil
}

// enterParts adds the least that a gateway costs: one more HTTP server between client and server, and a sandbox
// for the program. End ends the sandbox.
func (h *hubBench) enterParts(raw *bundle) (end func() error, err error) {
	proxied, err := h.direct(&mcp.StreamableClientTransport{Endpoint: h.peers[1].url(), DisableStandaloneSSE: true})
	if err != nil {
		return nil, err
	}
	const id = "peer"
	if err := os.Link(h.program, filepath.Join(raw.dir, "workspace", "mcppeer")); err != nil {
		return nil, err
	}
	raw.config.Process.Args = []string{"/workspace/mcppeer"}
	if err := raw.write(id); err != nil {
		return nil, err
	}
	boxed, err := h.direct(&mcp.CommandTransport{Command: raw.command(id, "run", "-bundle", filepath.Join(raw.dir, id),
		id), TerminateDuration: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	h.ways = append(h.ways,
		&way{name: "beside: HTTP, through a proxy that only passes on (`net/http/httputil`)", tool: "echo", c: proxied,
			base: h.ways[1]},
		&way{name: "beside: stdio in a raw sandbox, through no hub", tool: "echo", c: boxed, base: h.ways[0]})
	return func() error {
		boxed.close()
		_ = raw.command(id, "delete", "-force", id).Run() // it has ended
		return os.RemoveAll(filepath.Join(raw.dir, id))
	}, nil
}

func between(s, before, after string) string {
	_, s, _ = strings.Cut(s, before)
	s, _, _ = strings.Cut(s, after)
	return s
}

// calls calls the echo tool in each way, alternating.
func (h *hubBench) calls() error {
	const block = 20
	for range pick(h.bench, 50, 3) {
		for _, w := range h.ways {
			for n := range block + 1 {
				took := &w.took
				if n == 0 {
					took = new(samples) // without the first round
				}
				text := fmt.Sprintf("%d", n)
				if err := took.take(func() error {
					r, err := w.c.call(h.ctx, w.tool, args{"text": text})
					if err == nil && r.text != fmt.Sprintf(`{"text":"%s"}`, text) {
						err = fmt.Errorf("%s: a wrong answer: %q", w.name, r.text)
					}
					return err
				}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// startsUp compares the first call of a server that does not run with the server's start on the host.
func (h *hubBench) startsUp() error {
	host := filepath.Join(h.dir, "npm")
	if out, err := exec.CommandContext(h.ctx, "npm", "install", "--prefix", host, "--no-audit", "--no-fund",
		"--loglevel=error", hubServer).CombinedOutput(); err != nil {
		return fmt.Errorf("npm install on the host: %w\n%s", err, out)
	}
	out, err := h.cli("mcp", "add", "memory", "--json", "--npm", hubServer)
	if err != nil {
		return err
	}
	tool := "ext_" + between(out, `"connectionId": "`, `"`) + "_read_graph"
	c, err := h.connect(older, "")
	if err != nil {
		return err
	}
	h.clients = append(h.clients, c)
	for range pick(h.bench, 20, 2) {
		if err := h.node(c); err != nil {
			return err
		}
		if err := h.starts.take(func() error { return h.startOnHost(host) }); err != nil {
			return err
		}
		// Sandlot stops it after a second without a call.
		for {
			time.Sleep(500 * time.Millisecond)
			out, err := h.cli("mcp", "list", "--json")
			if err != nil {
				return err
			}
			if strings.Contains(out, `"state": "idle"`) {
				break
			}
		}
		if err := h.first.take(func() error {
			r, err := c.call(h.ctx, tool, args{})
			if err == nil && !strings.Contains(r.text, "entities") {
				err = fmt.Errorf("a wrong answer: %q", r.text)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// node measures an empty program of Node, in the home session and on the host. A Python program beside it takes
// the time.
func (h *hubBench) node(c client) error {
	r, err := c.call(h.ctx, "execute_code",
		args{"session_id": "home", "code": "import shutil; print(shutil.which('node'))"})
	if err != nil {
		return err
	}
	code := "import subprocess, time; t = time.monotonic_ns(); subprocess.run([" + strconv.Quote(r.text) +
		", '-e', '0'], check=True); print(time.monotonic_ns() - t)"
	add := func(s *samples, text string, err error) error {
		if err != nil {
			return err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		*s = append(*s, time.Duration(ns))
		return err
	}
	out, err := exec.CommandContext(h.ctx, "python3", "-c", code).Output()
	if err := add(&h.nodeHere, string(out), err); err != nil {
		return err
	}
	r, err = c.call(h.ctx, "execute_code", args{"session_id": "home", "code": code})
	return add(&h.nodeThere, r.text, err)
}

func (h *hubBench) startOnHost(dir string) error {
	ctx, cancel := context.WithTimeout(h.ctx, time.Minute)
	defer cancel()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx,
		&mcp.CommandTransport{Command: exec.Command(filepath.Join(dir, "node_modules/.bin/mcp-server-memory")),
			TerminateDuration: 2 * time.Second}, &mcp.ClientSessionOptions{ProtocolVersion: older})
	if err != nil {
		return err
	}
	_, err = c.CallTool(ctx, &mcp.CallToolParams{Name: "read_graph", Arguments: args{}})
	go c.Close() // the end is not measured
	return err
}

func (h *hubBench) section() section {
	calls := timings("the tool echo")
	for _, w := range h.ways {
		verdict := ""
		if w.base != nil {
			verdict = fmt.Sprintf("P50 %s more than directly", show(w.took.p(50)-w.base.took.p(50)))
			if w.goal > 0 {
				verdict = w.took.against(goal{50, w.base.took.p(50) + w.goal}) + " (" + show(w.goal) +
					" more than directly)"
			}
		}
		calls.add(w.name, w.took, verdict)
	}
	starts := timings("from nothing to the first answer")
	starts.add("on the host, the official Go client over stdio", h.starts)
	times := ratio(h.first, h.starts, 50)
	starts.add("the first call of the stopped server through the hub", h.first,
		fmt.Sprintf("%.2f × the host's; ", times)+verdict("P50 ≤ 1.3 ×", times <= 1.3))
	starts.add("beside: `node -e 0` on the host, timed by a Python", h.nodeHere)
	starts.add("beside: the same `node -e 0` in the home, timed there", h.nodeThere,
		fmt.Sprintf("%.2f × the host's", ratio(h.nodeThere, h.nodeHere, 50)))
	return section{title: "The hub",
		method: "A server with one tool, made with the official Go SDK " +
			"([test/bench/mcppeer](../test/bench/mcppeer)), is called with the official Go client: directly over its " +
			"standard input and output, directly over Streamable HTTP, and through Sandlot, where it runs in the " +
			"caller's home, on the host (`where: host`), or is connected to over HTTP; all answers are checked. " +
			"Directly, the newest revision of the protocol is spoken that both know; what stands in a row is what " +
			"the client speaks to Sandlot. All take turns, 20 calls each after one that does not count. *Beside* is " +
			"what a hub cannot do without, alone: one more HTTP server in between, and a sandbox around the program, " +
			"whose standard input and output raw `sandlot-runsc` passes on.\n\n" +
			"*Starts*: `" + hubServer + "`, installed in the home and on the host with this machine's own Node, from " +
			"its start (on the host), or a call while it does not run (through the hub), to the answer of " +
			"`read_graph`; the sandbox runs. *Listing*: `tools/list`, all pages, from the first request to the last " +
			"byte, with a plain HTTP client; and to the last tool that the official client has decoded, from Sandlot " +
			"and from a server that does nothing but send it the same bytes.",
		tables: []table{calls, starts, h.tools.table()},
		notes: []string{fmt.Sprintf("The server's resident memory grew by %.1f MB (10⁶ bytes) when these %d tools "+
			"were connected and listed.", float64(h.tools.grown)/1e6, h.tools.listed)}}
}
