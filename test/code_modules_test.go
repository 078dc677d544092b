package test

import (
	"fmt"
	"strings"
	"testing"
)

// typed connects test/servers/typed.py.
func (c *client) typed(name string, more int) {
	c.t.Helper()
	r := c.call("connect_external_mcp", args{"name": name, "command": "python3",
		"args": []string{"/workspace/typed.py", name, fmt.Sprint(more)}})
	if r.IsError {
		c.t.Fatal(r.All)
	}
}

// TestCodeModules: code calls tools by the modules and the command of the tool tree, in every way in which it runs.
func TestCodeModules(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.put("", "typed.py")
	c := s.connect(older, "", nil)
	if r := c.code("home", "import mcp_tools"); !strings.Contains(r.All, "No module named 'mcp_tools'") {
		t.Errorf("without servers: %q", r.All)
	}
	c.typed("git-hub", 0)
	t.Run("Python", func(t *testing.T) { pythonModules(t, c) })
	t.Run("JavaScript", func(t *testing.T) { javascriptModules(t, c) })
	t.Run("shell", func(t *testing.T) { toolCommand(t, c) })
	t.Run("changes", func(t *testing.T) { changedModules(t, c) })
}

// pythonModules runs in an interpreter that is older than the first connection.
func pythonModules(t *testing.T, c *client) {
	c.want("home", "from mcp_tools import git_hub, ToolError\n"+
		"git_hub.create_issue(title='x', labels=['a'], class_='c', in_reply_to=1, assignee={'login': 'me'})",
		"{'tool': 'create-issue',\n 'arguments': {'title': 'x',\n  'assignee': {'login': 'me'},\n  'class': 'c',\n"+
			"  'in-reply-to': 1,\n  'labels': ['a']}}")
	c.want("home", "(await git_hub.aio.import_())['tool']", "'import'")
	c.want("home", "git_hub.検索(Größe=3)['arguments']", "{'Größe': 3}")
	c.want("home", "i = git_hub.images()\ntype(i).__mro__[1], bytes(i), i.mime_type",
		`(bytes, b'\x89PNG\r\n', 'image/png')`)
	c.want("home", "try: git_hub.refuse()\nexcept ToolError as e: print(e, e.code, e.tool)",
		"no such issue: 7 tool_error refuse")
	c.want("home", "try: git_hub.pause(seconds=5, timeout=0.2)\nexcept ToolError as e: print(e.code)", "timeout")
	c.want("home", "[git_hub.pause(seconds=0)['tool'] for _ in range(1000)] == ['pause'] * 1000", "True")
	c.want("home", "import asyncio\nlen(await asyncio.gather(*(git_hub.aio.pause() for _ in range(64))))", "64")
	script := "import sys\nfrom mcp_tools import git_hub\nprint(git_hub.create_issue(title=sys.argv[1])['arguments'])\n"
	c.code("home", "open('/workspace/call.py', 'w').write("+quotePython(script)+")")
	for _, command := range []string{"python3 /workspace/call.py one",
		"python3 -m venv --without-pip /tmp/venv && /tmp/venv/bin/python /workspace/call.py one",
		"cd / && sh -c 'python3 /workspace/call.py one | cat'", "PYTHONPATH=/nowhere python3 /workspace/call.py one",
		"python3 -E /workspace/call.py one",
		"python3 -I /workspace/call.py one", "PYTHONPATH=/nowhere /tmp/venv/bin/python -I /workspace/call.py one",
		// Root of the sandbox moves the tree: it is put back.
		"mv /run/mcp /tmp/x; i=0; until [ -e /run/mcp/mcp ] || [ $i = 500 ]; do i=$((i+1)); sleep 0.01; done; " +
			"mcp ls >&2 && python3 /workspace/call.py one"} {
		if r := c.shell("home", command); !strings.Contains(r.All, "{'title': 'one'}") {
			t.Errorf("%s: %q", command, r.All)
		}
	}
	c.want("home", "import sys, importlib\n"+
		"path, sys.path[:] = sys.path[:], [p for p in sys.path if '/run/mcp' not in p]\n"+
		"for m in [m for m in sys.modules if m.startswith('mcp_tools')]: del sys.modules[m]\n"+
		"from mcp_tools import git_hub\ngit_hub.pause(seconds=0)['tool']", "'pause'")
	c.want("home", "import subprocess\n"+
		"subprocess.run(['python3', '/workspace/call.py', 'sub'], capture_output=True, text=True).stdout",
		`"{'title': 'sub'}\n"`)
	r := c.call("execute_command", args{"command": "python3 /workspace/call.py back", "background": true,
		"session_id": "home"})
	id, _ := r.Fields["process_id"].(string)
	until(t, "a process in the background has called", func() bool {
		return strings.Contains(c.call("read_process", args{"process_id": id}).All, "{'title': 'back'}")
	})
}

// node runs a cell of JavaScript.
func (c *client) node(code string) *result {
	c.t.Helper()
	return c.call("execute_code", args{"code": code, "language": "node", "session_id": "home"})
}

const importHub = "import * as hub from '/run/mcp/git_hub.mjs';\n"

func javascriptModules(t *testing.T, c *client) {
	for code, want := range map[string]string{
		"(await hub.create_issue({ title: 'x', 'in-reply-to': 1 })).arguments":             "'in-reply-to': 1",
		"const { import_ } = await import('/run/mcp/git_hub.mjs'); (await import_()).tool": "import",
		"(await hub.images()).mimeType":                                                    "image/png",
		"try { await hub.refuse() } catch (e) { console.log([e.name, e.message, e.code].join()) }": "ToolError," +
			"no such issue: 7,tool_error",
		"(await Promise.all([...Array(64)].map(() => hub.pause()))).length": "64",
		"(await hub.検索({ 'Größe': 3 })).arguments":                          "'Größe': 3",
	} {
		if r := c.node(importHub + code); !strings.Contains(r.Text, want) {
			t.Errorf("%s: %q", code, r.All)
		}
	}
	script := `node --input-type=module -e "import { pause } from '/run/mcp/git_hub.mjs'; console.log((await pause()).tool)"`
	if r := c.shell("home", script); !strings.Contains(r.Text, "pause") {
		t.Errorf("from a script: %q", r.All)
	}
}

func toolCommand(t *testing.T, c *client) {
	for command, want := range map[string]string{
		"mcp ls": "git_hub (6 tools)",
		"mcp ls git-hub | head -1": "create_issue(title, assignee?, class_?, in_reply_to?, labels?, " +
			"state?) Creates an issue.",
		"mcp help git_hub create_issue": "- title: `string`, required — What it is about",
		"mcp search create issue":       "git_hub create_issue(title,",
		"mcp call git_hub create_issue title='a b' labels=x labels=y in_reply_to=2": `"arguments":` +
			`{"in-reply-to":2,"labels":["x","y"],"title":"a b"}`,
		`echo '{"title":"j"}' | mcp call git_hub create_issue --json -`: `{"title":"j"}`,
		"cat $(mcp call git_hub images) | head -c 4":                    "PNG",
		"mcp call git_hub refuse; echo code $?":                         "code 1",
		"mcp call git_hub create_issue; echo code $?":                   "code 2",
		"/run/mcp/mcp ls": "git_hub",
		"cat /run/mcp/README.md /run/mcp/git_hub/README.md /run/mcp/git_hub/create_issue.md": "in_reply_to " +
			"(\"in-reply-to\"): `number`",
		"ls -A /run/mcp": "README.md",
	} {
		if r := c.shell("home", command); !strings.Contains(r.All, want) && !strings.Contains(r.Text, want) {
			t.Errorf("%s: %q", command, r.Text)
		}
	}
	r := c.call("execute_code", args{"code": "mcp call git_hub pause | tr -d ' '", "language": "bash",
		"session_id": "home"})
	if !strings.Contains(r.Text, `"tool":"pause"`) {
		t.Errorf("from a cell of bash: %q", r.All)
	}
}

// changedModules: interpreters that have a module see what changes.
func changedModules(t *testing.T, c *client) {
	c.want("home", "hasattr(git_hub, 'tool_1')", "False")
	c.typed("second", 1)
	until(t, "a new module is there", func() bool {
		code := "from mcp_tools import second\nsecond.tool_0(owner='o', repo='r', title='t')['tool']"
		return c.code("home", code).Text == "'tool_0'"
	})
	if r := c.call("disconnect_external_mcp", args{"connectionId": "git-hub"}); r.IsError {
		t.Fatal(r.All)
	}
	until(t, "its module is gone", func() bool {
		return strings.Contains(c.code("home", "from mcp_tools import git_hub as again").All, "ImportError")
	})
	c.typed("git-hub", 3)
	until(t, "the module is there again, with more", func() bool {
		code := "from mcp_tools import git_hub\ngit_hub.tool_2(owner='o', repo='r', title='t')['tool']"
		return c.code("home", code).Text == "'tool_2'"
	})
	r := c.node(importHub + "(await hub.tool_2({ owner: 'o', repo: 'r', title: 't' })).tool")
	if !strings.Contains(r.Text, "tool_2") {
		t.Errorf("JavaScript has the old module: %q", r.All)
	}
}
