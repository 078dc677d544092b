package toolfiles

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fake answers calls as the host does. The names of tools say what it does.
type fake struct {
	t         testing.TB
	listener  net.Listener
	work      sync.WaitGroup
	conns     atomic.Int64 // that were ever accepted
	calls     atomic.Int64
	cancelled atomic.Int64
	together  atomic.Int64 // calls under way
	most      atomic.Int64
	restarts  atomic.Int64 // calls of the tool restart
	over      atomic.Int64 // calls of the tool over
	all       sync.Map     // open connections
}

type request struct {
	Call *struct {
		Server, Tool string
		Arguments    map[string]any
		Timeout      float64
	}
	Search *struct{ Query string }
}

func startFake(t testing.TB, dir string) *fake {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{t: t, listener: l}
	f.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.conns.Add(1)
			f.all.Store(c, true)
			f.work.Go(func() { defer f.all.Delete(c); defer c.Close(); f.serve(c) })
		}
	})
	t.Cleanup(func() { f.stop(); f.work.Wait() })
	return f
}

func (f *fake) stop() {
	f.listener.Close()
	f.breakAll()
}

func (f *fake) breakAll() {
	f.all.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
}

func (f *fake) serve(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil || r.Call == nil && r.Search == nil {
			f.t.Errorf("the request %.200s: %v", line, err)
			return
		}
		if r.Search != nil {
			send(c, map[string]any{"found": "found " + r.Search.Query})
			continue
		}
		f.calls.Add(1)
		now := f.together.Add(1)
		for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
		}
		open := f.answer(c, in, r)
		f.together.Add(-1)
		if !open {
			return
		}
	}
}

func send(c net.Conn, v any) bool {
	text, _ := json.Marshal(v)
	_, err := c.Write(append(text, '\n'))
	return err == nil
}

func result(structured any, blocks ...any) map[string]any {
	r := map[string]any{"content": append([]any{}, blocks...)}
	if structured != nil {
		r["structuredContent"] = structured
	}
	return map[string]any{"result": r}
}

type block map[string]any

func text(s string) block { return block{"type": "text", "text": s} }

// answer answers a call, and reports whether the connection stays.
func (f *fake) answer(c net.Conn, in *bufio.Reader, r request) bool {
	size, _ := r.Call.Arguments["size"].(float64)
	data := base64.StdEncoding.EncodeToString([]byte("\x00\x01binary"))
	switch r.Call.Tool {
	case "echo":
		return send(c, map[string]any{"progress": "a moment"}) && send(c, result(map[string]any{"tool": r.Call.Tool,
			"server": r.Call.Server, "arguments": r.Call.Arguments, "timeout": r.Call.Timeout}, text("not this")))
	case "pause": // a busy machine needs longer to make many calls at once
		for n := 0; n == 0 || n < 100 && f.most.Load() < 32; n++ {
			time.Sleep(20 * time.Millisecond)
		}
		return send(c, result(r.Call.Arguments["n"]))
	case "text":
		return send(c, result(nil, text("one"), text("zwei ä\u2028")))
	case "nothing":
		return send(c, result(nil))
	case "image":
		return send(c, result(nil, block{"type": "image", "data": data, "mimeType": "image/png"}))
	case "mixed":
		return send(c, result(nil, text("t"), block{"type": "audio", "data": data, "mimeType": "audio/wav"},
			block{"type": "resource_link", "uri": "file:///x", "name": "x"},
			block{"type": "resource", "resource": block{"uri": "u:1", "blob": data, "mimeType": "a/b"}},
			block{"type": "resource", "resource": block{"uri": "u:2", "text": "inner"}}))
	case "big":
		return send(c, result(nil, text(strings.Repeat("x", int(size)))))
	case "fail":
		send(c, map[string]any{"result": map[string]any{"isError": true, "content": []any{text("no such issue")}}})
		return true
	case "refuse":
		send(c, map[string]any{"error": map[string]any{"code": "busy", "message": "too many calls"}})
		return true
	case "restart": // two of three calls come while there is no server
		if f.restarts.Add(1)%3 == 0 {
			return send(c, result(nil, text("done")))
		}
		send(c, unavailable(true))
		return false
	case "away":
		send(c, unavailable(true))
		return false
	case "over":
		f.over.Add(1)
		send(c, unavailable(false))
		return false
	case "garbage":
		_, err := c.Write([]byte("{]\n"))
		return err == nil
	case "half":
		c.Write([]byte(`{"result": {"cont`))
		return false
	case "die":
		return false
	case "wait": // until the caller goes
		send(c, map[string]any{"progress": "waiting"})
		_, err := in.ReadByte()
		if err != nil {
			f.cancelled.Add(1)
		}
		return false
	}
	f.t.Errorf("the tool %q", r.Call.Tool)
	return false
}

// unavailable is the answer of a server that is being stopped, or with retry false of an agent without one.
func unavailable(retry bool) map[string]any {
	return map[string]any{"error": map[string]any{"code": "unavailable", "message": "not made", "retry": retry}}
}

var fakeTools = strings.Fields("restart away over echo pause text nothing image mixed big fail refuse garbage half die wait")

// clientTree writes a tree with the fake's tools, and starts the fake.
func clientTree(t testing.TB) (string, *fake) {
	t.Helper()
	s := Server{Name: "fake-server"}
	for _, name := range fakeTools {
		s.Tools = append(s.Tools, Tool{Name: "fake_" + name, Remote: name, Input: schema(`{"additionalProperties":false,"properties":{"n":{},
			"size":{"type":"integer"},"in-reply":{"type":"string"},"class":{"type":"string"}}}`)})
	}
	dir := write(t, Tree([]Server{s, {Name: "new"}, {Name: "broken", State: "it does not work; ask"},
		{Name: "off-line", Off: true, State: "disconnected; connect it again"}}))
	return dir, startFake(t, dir)
}

const pythonValues = `
import mcp_tools, array, pickle
from mcp_tools import fake_server as f, ToolError
def fails(call, code, words, **named):
    try: call(**named)
    except ToolError as e:
        assert e.code == code and words in str(e), (e.code, str(e)); return e
    raise AssertionError("it did not fail")
r = f.echo(in_reply="ü", class_="x", timeout=5)
assert r == {"tool": "echo", "server": "fake-server", "arguments": {"in-reply": "ü", "class": "x"}, "timeout": 5}, r
assert f.echo(n=None)["arguments"] == {"n": None}
assert f.echo(n={1})["arguments"] == {"n": [1]}
assert f.text() == "one\nzwei ä\u2028", f.text()
assert f.nothing() is None
i = f.image()
assert i == b"\x00\x01binary" and i.mime_type == "image/png" and isinstance(i, bytes), i
m = f.mixed()
assert [type(v).__name__ for v in m] == ["str", "Binary", "Link", "Binary", "str"] and m[2].uri == "file:///x" and m[3].uri == "u:1", m
e = fails(f.fail, "tool_error", "no such issue")
assert (e.server, e.tool, e.content["isError"]) == ("fake-server", "fail", True)
assert pickle.loads(pickle.dumps(e)).code == "tool_error"
fails(f.refuse, "busy", "too many calls")
assert [f.restart() for n in range(2)] == ["done", "done"]
fails(f.away, "unavailable", "not made", timeout=0)
fails(f.over, "unavailable", "not made")
assert f.echo(n="z" * 5_000_000)["arguments"]["n"][-2:] == "zz"
for n in range(3):
    for broken in f.die, f.half: fails(broken, "broken", "the tool may have run")
    fails(f.garbage, "broken", "not an answer")
    assert f.text() == "one\nzwei ä\u2028"
assert fails(f.wait, "timeout", "in time", timeout=-0.9)
fails(f.wait, "timeout", "in time", _timeout=-0.9)
assert len(f.big(size=50_000_000)) == 50_000_000
assert f.echo(n="y" * 5_000_000)["arguments"]["n"][-2:] == "yy"
assert mcp_tools.call("fake-server", "text")["content"][0] == {"type": "text", "text": "one"}
assert mcp_tools.search("words") == "found words"
for bad, words in ("f.missing()", "no tool missing"), ("mcp_tools.missing", "no MCP server missing"), ("f.echo(nothing=1)", "nothing"):
    try: eval(bad)
    except (AttributeError, TypeError) as e: assert words in str(e), e
    else: raise AssertionError(bad)
from mcp_tools import broken, new_
import mcp_tools.broken
assert not hasattr(mcp_tools, "missing") and not hasattr(broken, "say") and getattr(broken, "say", 3) == 3
there = "connected are: broken, fake_server, new_."
not_now = "has no tool say that is known, and cannot be called now: it does not work; ask"
for line, words in (("from mcp_tools import missing", there), ("from mcp_tools import fake_server, missing", there),
    ("from mcp_tools import new", "has another name: from mcp_tools import new_"),
    ("from mcp_tools import off_line", "off-line cannot be called now: disconnected; connect it again"),
    ("from mcp_tools.broken import say", not_now), ("from mcp_tools.fake_server import say", "mcp ls fake_server")):
    try: exec(line)
    except ImportError as e: assert words in str(e), (line, e)
    else: raise AssertionError(line)
for line, words in (("mcp_tools.new", "import new_"), ("mcp_tools.off_line", "connect it again"), ("broken.say", not_now),
    ("getattr(mcp_tools, 'off-line')", "connect it again")):
    try: eval(line)
    except AttributeError as e: assert words in str(e), (line, e)
    else: raise AssertionError(line)
try: f.echo(n=object())
except TypeError as e: assert "JSON" in str(e)
else: raise AssertionError("an object was sent")
`

const pythonAio = `
import asyncio, inspect, time
from mcp_tools import fake_server as f, ToolError
assert list(inspect.signature(f.aio.echo).parameters) == list(inspect.signature(f.echo).parameters)
async def main():
    assert await f.aio.text() == "one\nzwei ä\u2028"
    slots = asyncio.Semaphore(32)
    async def one(n):
        async with slots: return await f.aio.pause(n=n)
    assert await asyncio.gather(*(one(n) for n in range(320))) == list(range(320))
    assert len(await f.aio.big(size=50_000_000)) == 50_000_000
    assert (await f.aio.echo(n="y" * 5_000_000))["arguments"]["n"][-2:] == "yy"
    for name, code in ("fail", "tool_error"), ("refuse", "busy"), ("die", "broken"), ("half", "broken"), ("garbage", "broken"):
        try: await getattr(f.aio, name)()
        except ToolError as e: assert e.code == code, (name, e.code)
        else: raise AssertionError(name)
    assert await f.aio.text() == "one\nzwei ä\u2028"
    assert await asyncio.gather(f.aio.restart(), f.aio.restart()) == ["done", "done"]
    for name in "away", "over":
        try: await getattr(f.aio, name)(timeout=0)
        except ToolError as e: assert (e.code, str(e)) == ("unavailable", "not made"), (name, e.code, e)
        else: raise AssertionError(name)
    try: await f.aio.wait(timeout=-0.9)
    except ToolError as e: assert e.code == "timeout"
    task = asyncio.create_task(f.aio.wait())
    await asyncio.sleep(0.2)
    task.cancel()
    try: await task
    except asyncio.CancelledError: pass
    else: raise AssertionError("not cancelled")
asyncio.run(main())
asyncio.run(main())
assert f.text() == "one\nzwei ä\u2028"
`

const pythonThreads = `
import os, threading, signal, sys, subprocess
from concurrent.futures import ThreadPoolExecutor
from mcp_tools import fake_server as f, ToolError
for n in range(1000): assert f.echo(n=n)["arguments"]["n"] == n
with ThreadPoolExecutor(32) as pool:
    assert list(pool.map(lambda n: f.pause(n=n), range(320))) == list(range(320))
    # Children of a fork do not use the connections of the parent, also while it calls.
    stop = threading.Event()
    def busy():
        while not stop.is_set(): assert f.pause(n=1) == 1
    others = [pool.submit(busy) for _ in range(8)]
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            try: os._exit(0 if [f.pause(n=n) for n in range(5)] == list(range(5)) else 1)
            except BaseException as e: print(repr(e), flush=True); os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        assert f.echo(n=5)["arguments"]["n"] == 5
    stop.set()
    for o in others: o.result()
# An interrupt of a call closes its connection, also if a child has a copy of it.
def interrupt():
    import time; time.sleep(0.2); os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try: f.wait()
except KeyboardInterrupt: pass
else: raise AssertionError("not interrupted")
assert f.text().startswith("one")
assert len(os.listdir("/proc/self/fd")) < 20
`

func TestPythonClient(t *testing.T) {
	dir, f := clientTree(t)
	run(t, dir, "python3", "-c", pythonValues)
	f.wantOver(1)
	before := f.cancelled.Load()
	if before < 2 {
		t.Errorf("%d of 2 calls whose time was over were cancelled", before)
	}
	conns, calls := f.conns.Load(), f.calls.Load()
	run(t, dir, "python3", "-c", pythonThreads)
	if conns = f.conns.Load() - conns; conns > 120 {
		t.Errorf("%d calls made %d connections", f.calls.Load()-calls, conns)
	}
	if most := f.most.Load(); most < 32 {
		t.Errorf("at most %d calls were under way", most)
	}
	f.awaitCancelled(before + 1)
}

func TestPythonAsync(t *testing.T) {
	dir, f := clientTree(t)
	run(t, dir, "python3", "-X", "dev", "-W", "error", "-c", pythonAio)
	f.awaitCancelled(4)
	f.wantOver(2) // main runs twice
	if most := f.most.Load(); most < 32 {
		t.Errorf("at most %d calls were under way", most)
	}
}

// wantOver wants so many calls of the tool over: none was made again, as no server comes.
func (f *fake) wantOver(n int64) {
	f.t.Helper()
	if got := f.over.Load(); got != n {
		f.t.Errorf("%d calls without a server, not %d", got, n)
	}
}

// awaitCancelled waits until calls have found their connections closed.
func (f *fake) awaitCancelled(n int64) {
	f.t.Helper()
	for range 1000 {
		if f.cancelled.Load() >= n && f.together.Load() == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	f.t.Errorf("%d calls were cancelled, not %d; %d are under way", f.cancelled.Load(), n, f.together.Load())
}

const javascript = `
import assert from 'node:assert';
import * as f from './fake_server.mjs';
import { ToolError, call, search } from './_client.mjs';
const fails = async (promise, code, words) => {
  try { await promise; } catch (e) { assert(e instanceof ToolError && e.code === code && e.message.includes(words), e); return e; }
  assert.fail('it did not fail');
};
assert.deepEqual(await f.echo({ 'in-reply': 'ü', class: 'x' }, { timeout: 5 }), { tool: 'echo', server: 'fake-server', arguments: { 'in-reply': 'ü', class: 'x' }, timeout: 5 });
assert.equal(await f.text(), 'one\nzwei ä\u2028');
assert.equal(await f.nothing(), null);
const i = await f.image();
assert(Buffer.isBuffer(i) && i.mimeType === 'image/png' && i.toString('latin1') === '\0\x01binary');
const m = await f.mixed();
assert(m.length === 5 && m[0] === 't' && m[1].mimeType === 'audio/wav' && m[2].uri === 'file:///x' && m[3].uri === 'u:1' && m[4] === 'inner');
const e = await fails(f.fail(), 'tool_error', 'no such issue');
assert(e.server === 'fake-server' && e.tool === 'fail' && e.content.isError);
await fails(f.refuse(), 'busy', 'too many calls');
assert.deepEqual(await Promise.all([f.restart(), f.restart()]), ['done', 'done']);
await fails(f.away({}, { timeout: 0 }), 'unavailable', 'not made');
await assert.rejects(f.away({}, { signal: AbortSignal.timeout(200) }), { name: 'TimeoutError' });
await fails(f.over(), 'unavailable', 'not made');
for (let n = 0; n < 3; n++) {
  await fails(f.die(), 'broken', 'the tool may have run');
  await fails(f.half(), 'broken', 'the tool may have run');
  await fails(f.garbage(), 'broken', 'not an answer');
  assert.equal(await f.text(), 'one\nzwei ä\u2028');
}
await fails(f.wait({}, { timeout: -0.9 }), 'timeout', 'in time');
const aborted = new AbortController();
setTimeout(() => aborted.abort(new Error('enough')), 100);
await assert.rejects(f.wait({}, { signal: aborted.signal }), /enough/);
await assert.rejects(f.wait({}, { signal: aborted.signal }), /enough/);
for (let n = 0; n < 1000; n++) assert.equal((await f.echo({ n })).arguments.n, n);
const todo = [...Array(320).keys()], done = [];
await Promise.all([...Array(32)].map(async () => { for (let n; (n = todo.shift()) !== undefined;) done.push(await f.pause({ n })); }));
assert.equal(done.length, 320);
assert.equal((await f.big({ size: 50_000_000 })).length, 50_000_000);
assert.equal((await f.echo({ n: 'y'.repeat(5_000_000) })).arguments.n.length, 5_000_000);
assert.equal((await call('fake-server', 'text')).content[0].text, 'one');
assert.equal(await search('words'), 'found words');
const broken = await import('./broken.mjs');
assert.equal(await broken.default.text(), 'one\nzwei ä\u2028'); // it is known by now
await fails(broken.default.refuse(), 'busy', 'too many calls');
globalThis[Symbol.for('sandlot.mcp.endOfCell')]();
assert.equal(await f.text(), 'one\nzwei ä\u2028');
`

func TestJavaScriptClient(t *testing.T) {
	dir, f := clientTree(t)
	run(t, dir, "node", "--input-type=module", "-e", javascript) // which ends, though connections are idle
	f.awaitCancelled(2)
	f.wantOver(1)
	if most := f.most.Load(); most < 32 {
		t.Errorf("at most %d calls were under way", most)
	}
	if f.conns.Load() > 400 {
		t.Errorf("%d calls made %d connections", f.calls.Load(), f.conns.Load())
	}
}

// A host that goes, and comes back, costs the call under way alone; and a module that changes is seen.
func TestPythonFollows(t *testing.T) {
	dir, f := clientTree(t)
	run(t, dir, "python3", "-c", `
import json, os, sys
import mcp_tools
from mcp_tools import fake_server as f
assert f.text().startswith("one")
from mcp_tools import _client
def write(path, text):
    with open(path + ".new", "w") as file: file.write(text)
    os.rename(path + ".new", path)
source = open("fake_server.py").read()
write("fake_server.py", source.replace("def text(", "def fresh(").replace("def nothing(", "def fresh2("))
assert f.fresh().startswith("one")  # also without another import
assert not hasattr(f, "text")
from mcp_tools import fake_server
assert fake_server is f and f.aio.fresh2
write("second.py", source)
from mcp_tools import second
import mcp_tools.second as again
assert second.text().startswith("one") and again is second
assert dir(mcp_tools).count("second") == 1
os.remove("second.py")
for n in range(2):
    try: from mcp_tools import second
    except ImportError: pass
    else: raise AssertionError("it is gone")
write("fake_server.py", "a mistake (")
try: from mcp_tools import fake_server
except SyntaxError: pass
assert f.fresh2() is None
write("fake_server.py", source)
from mcp_tools import fake_server
assert f.text().startswith("one")
os.rename("socket", "away")
_client.end_of_cell()
try: f.text()
except mcp_tools.ToolError as e: assert e.code == "unavailable" and "was not called" in str(e), e
os.rename("away", "socket")
assert f.text().startswith("one")
`)
	f.breakAll()
}
