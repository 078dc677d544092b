package test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// rich connects test/servers/rich.py as a server of that name. Program is the name that it gives itself.
func (c *client) rich(name, program string) *result {
	c.t.Helper()
	r := c.call("connect_external_mcp", args{"name": name, "command": "python3",
		"args": []string{"/workspace/rich.py", program}})
	if r.IsError {
		c.t.Fatal(r.All)
	}
	return r
}

// way is one in which code calls tools. %q stands for the label of a call.
type way struct {
	name    string
	tool    string // that runs code
	code    string // its argument for the code
	a       args   // of it, beside the code
	head    string // before all code
	waits   string // code that calls a tool that does not answer
	leaves  string // code that ends while such a call is under way
	follows string // code that calls a tool until the server's program has another name, and prints errors
}

var codeWays = []way{
	{name: "Python", tool: "execute_code", code: "code", head: "from mcp_tools import rich, ToolError\n",
		waits: "rich.wait(label=%q)",
		leaves: `import threading
threading.Thread(target=lambda: rich.wait(label=%q)).start()
while not rich.noted()['open']: pass`,
		follows: `import time
first = now = rich.echo(title='f', class_='a')['server']
while now == first:
    try: now = rich.echo(title='f', class_='a')['server']
    except ToolError as e: print(e.code, e)
    time.sleep(0.01)
print('now', now)`},
	{name: "JavaScript", tool: "execute_code", code: "code", a: args{"language": "node"},
		head:   "import * as rich from '/run/mcp/rich.mjs';\n",
		waits:  "await rich.wait({ label: %q })",
		leaves: "rich.wait({ label: %q }).catch(() => {});\nwhile (!(await rich.noted()).open.length);",
		follows: `const first = (await rich.echo({ title: 'f', class: 'a' })).server;
let now = first;
while (now === first) {
  try { now = (await rich.echo({ title: 'f', class: 'a' })).server } catch (e) { console.log(e.code, e.message) }
  await new Promise((done) => setTimeout(done, 10));
}
console.log('now', now);`},
	{name: "the command", tool: "execute_command", code: "command",
		waits: "mcp call rich wait label=%q",
		leaves: `mcp call rich wait label=%q > /dev/null 2>&1 &
until mcp call rich noted | grep -q '"open":\["'; do :; done`,
		follows: `server() { mcp call rich echo title=f class=a 2>&1 | sed -n 's/.*"server":"\([^"]*\)".*/\1/p; t; p'; }
first=$(server)
now=$first
while [ "$now" = "$first" ]; do now=$(server); case "$now" in mcp:*) echo "$now"; now=$first;; esac; done
echo now "$now"`},
}

// try runs code in the home. Seconds are the most that it may take; 0: as much as it likes.
func (w way) try(ctx context.Context, c *client, code string, seconds int) (*result, error) {
	a := args{"session_id": "home", w.code: w.head + code}
	maps.Copy(a, w.a)
	if seconds > 0 {
		a["timeout"] = seconds
	}
	return c.try(ctx, w.tool, a)
}

// wayCases are what code does in each way, in the order of ways, and what its output has then.
var wayCases = []struct {
	what string
	code [3]string
	want [3]string
}{
	{"many calls", [3]string{
		// TestCodeModules has more.
		"sum(rich.echo(title=str(n), class_='a')['arguments']['title'] == str(n) for n in range(100))",
		"let n = 0, last = '0';\nwhile (n < 1000 && last === `${n}`)\n" +
			"  last = (await rich.echo({ title: `${++n}`, class: 'a' })).arguments.title;\nn",
		`for n in $(seq 50); do mcp call rich echo title=$n class=a; done | grep -o '"title":"[0-9]*"' | sort -u |
wc -l`,
	}, [3]string{"100", "1000", "50"}},
	{"32 at once", [3]string{
		"import asyncio\nlen(await asyncio.gather(*(rich.aio.together(calls=32) for _ in range(32))))",
		"(await Promise.all([...Array(32)].map(() => rich.together({ calls: 32 })))).length",
		"seq 32 | xargs -P 32 -I{} mcp call rich together calls:=32 | grep -c together",
	}, [3]string{"32", "32", "32"}},
	{"all bytes", [3]string{
		"b = rich.bytes(times=4000)\nbytes(b) == bytes(range(256)) * 4000, b.mime_type, b.uri",
		"const b = await rich.bytes({ times: 4000 });\n" +
			"[b.every((v, i) => v === i % 256), b.length, b.mimeType, b.uri].join()",
		`cat $(mcp call rich bytes times:=4000) | python3 -c "import sys
print(sys.stdin.buffer.read() == bytes(range(256)) * 4000)"`,
	}, [3]string{"(True, 'application/x-rich', 'rich://bytes')", "true,1024000,application/x-rich,rich://bytes",
		"True"}},
	{"a tool that fails", [3]string{
		"try: rich.fail()\nexcept ToolError as e: print(e.code, e.server, e.tool, e)",
		"try { await rich.fail() } catch (e) { console.log(e.code, e.server, e.tool, e.message) }",
		"mcp call rich fail; echo code $?",
	}, [3]string{"tool_error rich fail there is no größe 7", "tool_error rich fail there is no größe 7",
		"mcp: there is no größe 7"}},
	{"a server that answers with an error", [3]string{
		"try: rich.refuse()\nexcept ToolError as e: print(e.code, e, e.content)",
		"try { await rich.refuse() } catch (e) { console.log(e.code, e.message, JSON.stringify(e.content)) }",
		"mcp call rich refuse; echo code $?",
	}, [3]string{"server_error the shop is closed {'code': -32099, 'data': {'until': 8}}",
		`server_error the shop is closed {"code":-32099,"data":{"until":8}}`, "mcp: the shop is closed"}},
	{"a time limit", [3]string{
		"try: rich.wait(timeout=0.2)\nexcept ToolError as e: print(e.code, e)",
		"try { await rich.wait({}, { timeout: 0.2 }) } catch (e) { console.log(e.code, e.message) }",
		"mcp call --timeout 0.2 rich wait; echo code $?",
	}, [3]string{"timeout there was no answer in 0.2 seconds", "timeout there was no answer in 0.2 seconds",
		"mcp: there was no answer in 0.2 seconds"}},
	{"a server that dies", [3]string{
		"try: rich.die()\nexcept ToolError as e: print(e.code, e)\nprint(rich.echo(title='t', class_='b')['tool'])",
		"try { await rich.die() } catch (e) { console.log(e.code, e.message) }\n" +
			"(await rich.echo({ title: 't', class: 'b' })).tool",
		"mcp call rich die; mcp call rich echo title=t class=b",
	}, [3]string{"connection_error", "connection_error", "exit code 3"}},
	{"and is there again", [3]string{"rich.echo(title='t', class_='b')['tool']",
		"(await rich.echo({ title: 't', class: 'b' })).tool", "mcp call rich echo title=t class=b"},
		[3]string{"'echo'", "echo", `"tool":"echo"`}},
	{"names", [3]string{
		"rich.await_(title='t', class_='a', function=False, größe=1.5)['arguments'] == " +
			"{'title': 't', 'class': 'a', 'function': False, 'größe': 1.5}",
		"const r = await rich.await_({ title: 't', class: 'a', function: false, 'größe': 1.5 });\n" +
			"JSON.stringify(r.arguments)",
		"mcp call rich await_ title=t class_=a function=false größe=1.5",
	}, [3]string{"True",
		`{"title":"t","class":"a","function":false,"größe":1.5}`,
		`"arguments":{"class":"a","function":false,"größe":1.5,"title":"t"}`}},
	{"a name that is no word of a language", [3]string{
		"rich.検索_alle(title='検', class_='a')['tool']",
		"(await rich.検索_alle({ title: '検', class: 'a' })).tool",
		"mcp call rich 検索_alle title=検 class_=a",
	}, [3]string{"検索.alle", "検索.alle", `"検索.alle"`}},
	{"references, unions, nested objects", [3]string{
		"rich.echo(title='', class_='b', in_reply_to={'value': 'x', 'next': {'value': 'y'}}, " +
			"where={'city': 'Köln', 'at': {'tags': ['z']}})['arguments'] == {'title': '', 'class': 'b', " +
			"'in-reply-to': {'value': 'x', 'next': {'value': 'y'}}, 'where': {'city': 'Köln', 'at': {'tags': ['z']}}}",
		"JSON.stringify((await rich.echo({ title: '', class: 'b', " +
			"'in-reply-to': { value: 'x', next: { value: 'y' } }, " +
			"where: { city: 'Köln', at: { tags: ['z'] } } })).arguments)",
		`mcp call rich echo title= class=b in_reply_to='{"value":"x","next":{"value":"y"}}' ` +
			`where='{"city":"Köln","at":{"tags":["z"]}}'`,
	}, [3]string{"True",
		`{"title":"","class":"b","in-reply-to":{"value":"x","next":{"value":"y"}},` +
			`"where":{"city":"Köln","at":{"tags":["z"]}}}`,
		`{"value":"x","next":{"value":"y"}},"title":"","where":{"city":"Köln","at":{"tags":["z"]}}`}},
	{"another kind of a union", [3]string{
		"[rich.echo(title='', class_='b', in_reply_to=v)['arguments']['in-reply-to'] for v in (7, None)]",
		"const u = await rich.echo({ title: '', class: 'b', 'in-reply-to': null });\n" +
			"JSON.stringify([u.arguments['in-reply-to'], 7])",
		`mcp call rich echo title= class=b in_reply_to:=null; mcp call rich echo title= class=b in_reply_to=7`,
	}, [3]string{"[7, None]", "[null,7]", `"in-reply-to":7`}},
}

// TestCodeToolsEachWay: what code needs of tools works in each way in which it calls them: by the module for Python, by
// that for JavaScript, and by the command.
func TestCodeToolsEachWay(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "rich.py")
	c := s.connect(older, "", nil)
	if d := c.toolNames()["execute_code"].Description; strings.Contains(d, "mcp_tools") ||
		strings.Contains(d, "/run/mcp") {
		t.Errorf("without servers, execute_code says %q", d)
	}
	noted := c.rich("rich", "first").exposed(t, "noted")
	if d := c.toolNames()["execute_code"].Description; !strings.Contains(d, "/run/mcp") {
		t.Errorf("with a server, execute_code says %q", d)
	}
	for i, w := range codeWays {
		t.Run(w.name, func(t *testing.T) {
			c := &client{t, c.ClientSession}
			for _, tt := range wayCases {
				r, err := w.try(t.Context(), c, tt.code[i], 0)
				if err != nil || !strings.Contains(r.All, tt.want[i]) {
					t.Errorf("%s: %v, %+v; want %q", tt.what, err, r, tt.want[i])
				}
			}
			w.reconnects(t, c, noted)
			w.cancels(t, c, noted)
		})
	}
	if r := c.call("disconnect_external_mcp", args{"name": "rich", "delete": true}); r.IsError {
		t.Fatal(r.All)
	}
	until(t, "execute_code says nothing of servers again", func() bool {
		return !strings.Contains(c.toolNames()["execute_code"].Description, "/run/mcp")
	})
}

// reconnects replaces the server while code calls its tools.
func (w way) reconnects(t *testing.T, c *client, tool string) {
	before := c.echoed(tool)
	ended := make(chan string, 1)
	go func() {
		r, err := w.try(context.Background(), c, w.follows, 60)
		ended <- fmt.Sprintf("%v, %+v", err, r)
	}()
	until(t, "the code calls", func() bool { return c.echoed(tool) > before+1 })
	c.rich("rich", "new for "+w.name)
	if got := <-ended; !strings.Contains(got, "now new for "+w.name) {
		t.Errorf("while its server is connected again, code says %s", got)
	}
}

// echoed is how many calls the server has answered.
func (c *client) echoed(tool string) float64 {
	n, _ := c.call(tool, nil).Fields["echoed"].(float64)
	return n
}

// noted is what the server has noted.
func (c *client) noted(tool string) (cancelled, open []string) {
	c.t.Helper()
	r := c.call(tool, nil)
	texts := func(field string) (all []string) {
		list, _ := r.Fields[field].([]any)
		for _, e := range list {
			all = append(all, fmt.Sprint(e))
		}
		return all
	}
	return texts("cancelled"), texts("open")
}

// cancels: the server is told when the client cancels the code that calls it, when the code's time is over, and when
// the code ends before the call does.
func (w way) cancels(t *testing.T, c *client, tool string) {
	told := func(label string) {
		t.Helper()
		until(t, "the server is told that the call was cancelled: "+label, func() bool {
			cancelled, open := c.noted(tool)
			return slices.Contains(cancelled, label) && len(open) == 0
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.try(ctx, c, fmt.Sprintf(w.waits, w.name+" cancelled"), 0)
		ended <- err
	}()
	until(t, "the call is under way", func() bool {
		_, open := c.noted(tool)
		return len(open) > 0
	})
	cancel()
	if err := <-ended; err == nil {
		t.Error("a call that was cancelled has a result")
	}
	told(w.name + " cancelled")
	r, err := w.try(t.Context(), c, fmt.Sprintf(w.waits, w.name+" late"), 1)
	if err != nil || !strings.Contains(r.All, "timed out after 1 seconds") {
		t.Errorf("code whose time is over: %v, %+v", err, r)
	}
	told(w.name + " late")
	if r, err := w.try(t.Context(), c, fmt.Sprintf(w.leaves, w.name+" left"), 30); err != nil || r.IsError {
		t.Errorf("code that leaves a call: %v, %+v", err, r)
	}
	told(w.name + " left")
}
