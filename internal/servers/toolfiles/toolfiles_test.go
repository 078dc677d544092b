package toolfiles

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func schema(s string) json.RawMessage { return json.RawMessage(s) }

// issueSchema has what schemas of real servers have: a reference, a choice, nested objects, defaults and an enum.
const issueSchema = `{"type":"object","properties":{
	"title":{"type":"string","description":"What it is about"},
	"labels":{"type":"array","items":{"type":"string"},"default":[]},
	"state":{"enum":["open","closed"],"default":"open"},
	"assignee":{"anyOf":[{"$ref":"#/$defs/User"},{"type":"string"},{"type":"null"}],"default":null},
	"place":{"type":"object","properties":{"file-name":{"type":"string"},"line":{"type":"integer"}},
		"required":["file-name"]},
	"class":{"type":"string"},"in-reply-to":{"type":["integer","null"]},"timeout":{"type":"number"}},
	"required":["title"],
	"$defs":{"User":{"type":"object","properties":{"login":{"type":"string"},
		"team":{"type":"array","items":{"$ref":"#/$defs/User"}}},"required":["login"]}}}`

func sample() []Server {
	return []Server{
		{Name: "git-hub", Title: "GitHub",
			Instructions: "Ask first.\n# No heading\n- and \"\"\" no end */", Tools: []Tool{
				{Name: "github_create-issue", Remote: "create-issue",
					Description: "Creates an issue. It returns its number.", Input: schema(issueSchema), Output: schema(
						`{"type":"object","properties":{"number":{"type":"integer"}},"required":["number"]}`)},
				{Name: "github_list", Remote: "list", Title: "Lists issues"},
				{Name: "github_class", Remote: "class", Held: "its definition has changed", Input: schema(`{"type":"object",
				"properties":{"node":{"$ref":"#/definitions/Node"}},"definitions":{"Node":{"anyOf":[{"$ref":"#/definitions/Node"},
				{"type":"string"}]}}}`)},
			}},
		{Name: "mcp", State: "it needs a log-in; `mcp search mcp` says where"},
		{Name: "off-line", Off: true, State: "disconnected; the tool restart_external_mcp connects it again"},
	}
}

func TestGolden(t *testing.T) {
	for _, f := range Tree(sample()) {
		if f.Link != "" || strings.Contains(f.Path, "_client") || strings.HasPrefix(f.Path, "python/") {
			continue
		}
		path := filepath.Join("testdata", "golden", f.Path)
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f.Content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || string(want) != string(f.Content) {
			t.Errorf("%s is not as it was (%v); it is now, which -update writes:\n%s", f.Path, err, f.Content)
		}
	}
}

// hostile has texts that try to leave their place.
var hostile = []string{"", "x", `"""`, `\"""`, `"`, `\`, "*/", "`", "\n## other\n", "${x}", "'''", "\u2028code", "\x00",
	"\u202eevil", "a\u3164\ufe00b", "print", "class", "await", "constructor", "__proto__", "then", "default", "a b",
	"Ä", "検索", "ﬁ", "e\u0301",
	"-", "_", "__import__", "1", "\xff\xfe", "</script>", "-->", "import('x')", "a.b/../../c", "..", "type",
	"undefined",
	"aio", "_call", "...", "#", "timeout", "_timeout", "self", "TYPE_CHECKING", "annotations", "CON", "README",
	"ReadMe",
	strings.Repeat("long", 100), strings.Repeat("é", 100), "x_", "X", "globalThis", "\\u0022", "\r", "%s", "{}",
	"async"}

// hostileServers has every hostile text at every place.
func hostileServers() []Server {
	properties := map[string]any{}
	for _, h := range hostile {
		properties[h] = map[string]any{"type": "string", "description": h, "default": h, "enum": []string{h, h + "2"}}
	}
	nested, _ := json.Marshal(map[string]any{"type": "object", "properties": properties, "required": hostile})
	deep := strings.Repeat(`{"type":"array","items":`, 60) + `{}` + strings.Repeat(`}`, 60)
	schemas := []string{``, `null`, `[]`, `{`, `{"type":"object","properties":[]}`, string(nested),
		`{"properties":{"a":` + string(nested) + `,"b":` + deep + `}}`,
		`{"properties":{"a":{"$ref":"#"},"b":{"$ref":"#/properties/b"},"c":{"$ref":"#/properties/a"},"d":{"$ref":"#/%zz"}}}`,
		`{"$ref":"#/$defs/A","$defs":{"A":{"properties":{"x":{"allOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]},
			"y":{"allOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/B"}]}}},"B":{"properties":{"z":{"allOf":[{"$ref":"#/$defs/A"},
			{"$ref":"#/$defs/B"}]},"w":{"allOf":[{"$ref":"#/$defs/A"},{"$ref":"#/$defs/A"}]}}}}}`,
		`{"properties":{"a":{"const":1e999},"b":{"enum":[1,1.5,true,null,"x",{}]},"c":{"enum":[true,false,-1]},"d":{"type":["string","null",7]}}}`,
		`{"properties":{"a":{"anyOf":[{"$ref":"#/$defs/*~1"},{"type":"null"}]}},"$defs":{"*/":{"type":"object","properties":{"*/":{}}}}}`,
	}
	var servers []Server
	for i, h := range hostile {
		s := Server{Name: h, Title: h, Instructions: h, State: h}
		for n, name := range hostile {
			if i >= 2 && n != i {
				continue // each text is a server, and two have all as tools
			}
			at := (i + n) % len(schemas)
			s.Tools = append(s.Tools, Tool{Name: name, Remote: name, Title: h, Description: h + "\n" + name, Held: h,
				Input: schema(schemas[at]), Output: schema(schemas[(at+i)%len(schemas)])})
		}
		servers = append(servers, s)
	}
	return servers
}

// write writes a tree into a folder, whose modules find each other there, and returns the folder.
func write(t testing.TB, files []File) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, f.Path)
		if !filepath.IsLocal(f.Path) {
			t.Fatalf("the path %q leaves the folder", f.Path)
		}
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil && f.Link == "" {
			if _, there := os.Lstat(path); there == nil {
				t.Fatalf("there are two of %q", f.Path)
			}
			err = os.WriteFile(path, f.Content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func run(t testing.TB, dir string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(dir, "python"), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%.200q: %v\n%.4000s", argv, err, out)
	}
	return string(out)
}

// Real interpreters take what is made of hostile definitions, and every tool has its function.
func TestHostile(t *testing.T) {
	servers := hostileServers()
	testHostile(t, Tree(servers[:2]), 2*len(hostile))
	testHostile(t, Tree(servers[2:]), len(hostile)-2)
}

// attackSchemas are made to cost memory and time.
func attackSchemas() map[string]string {
	names := strings.Repeat(`"x",`, 15_000) + `"x"`
	refs := func(n int) string { return "[" + strings.Repeat(`{"$ref":"#/$defs/r"},`, n) + `{"$ref":"#/$defs/r"}]` }
	members, other := "", ""
	for n := range 6_000 {
		members += fmt.Sprintf(`"property number %d":{},`, n)
		other += fmt.Sprintf(`"x%d":1,`, n)
	}
	return map[string]string{
		"required of all parts": `{"properties":{"a":{"allOf":` + refs(1000) + `}},"$defs":{"r":{"properties":{"x":{}},"required":[` + names + `]}}}`,
		"members of all parts":  `{"properties":{"a":{"allOf":` + refs(1000) + `}},"$defs":{"r":{"properties":{` + members + `"y":{}}}}}`,
		"many members":          `{"properties":{` + members + `"y":{}},"required":[` + names + `]}`,
		"many types":            `{"properties":{"a":{` + other + `"type":[` + strings.Repeat(`"object",`, 5_000) + `"array"]}}}`,
		"values again":          `{"properties":{"a":{"anyOf":[` + strings.Repeat(`{"items":{"enum":["1",1.5,{}]},"properties":{"a":{"allOf":`+refs(1)+`}}},`, 1500) + `{}]}},"$defs":{"r":{"enum":[` + names + `]}}}`,
	}
}

// Schemas that are made to cost memory and work cost little of both.
func TestAttacks(t *testing.T) {
	for name, s := range attackSchemas() {
		if len(s) > 256<<10 {
			t.Errorf("%s: a schema of %d bytes", name, len(s))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		one := Server{Tools: []Tool{{Name: "t", Remote: "t", Input: schema(s), Output: schema(s)}}}
		made := describe(one, "m", maxServer, true)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%s: %d MB are allocated", name, n>>20)
		}
		// The last step of each type may be as large as the schema.
		if work := made.tools[0].work; work > 4*(maxWork+len(s)) {
			t.Errorf("%s: work of %d steps", name, work)
		}
		root := decode(schema(s))
		properties, _ := root["properties"].(map[string]any)
		if n := len(memberOrder(schema(s), properties, nil)); n > maxMembers {
			t.Errorf("%s: %d names are looked for", name, n)
		}
	}
	many, attack := Server{}, schema(attackSchemas()["required of all parts"])
	for n := range 300 {
		many.Tools = append(many.Tools, Tool{Name: fmt.Sprint("t", n), Remote: fmt.Sprint("t", n),
			Input: attack})
	}
	work := 0
	for _, tool := range describe(many, "m", maxServer, true).tools {
		work += tool.work
	}
	if work > 2*maxServerWork {
		t.Errorf("many tools: work of %d steps", work)
	}
}

func testHostile(t *testing.T, files []File, count int) {
	dir := write(t, files)
	out := run(t, dir, "python3", "-W", "error", "-c", `
import glob, importlib, inspect, typing
n = 0
for path in sorted(glob.glob("*.py")):
    if path[0] == "_": continue
    m = importlib.import_module("mcp_tools." + path[:-3])
    found = [f for k, f in vars(m).items() if inspect.isfunction(f) and not k.startswith("_")]
    assert set(dir(m.aio)) == {f.__name__ for f in found}, path
    for f in found:
        inspect.signature(f)
        assert f.__doc__ is not None
    n += len(found)
print(n)`)
	if strings.TrimSpace(out) != fmt.Sprint(count) {
		t.Errorf("Python has %s functions, and there are %d tools", out, count)
	}
	out = run(t, dir, "node", "--input-type=module", "-e", `
import fs from 'node:fs';
let n = 0;
for (const f of fs.readdirSync('.')) if (f.endsWith('.mjs') && f[0] !== '_') n += Object.values(await import(process.cwd() + '/' + f)).filter((v) => typeof v === 'function').length;
console.log(n);`)
	if strings.TrimSpace(out) != fmt.Sprint(count) {
		t.Errorf("JavaScript has %s functions, and there are %d tools", out, count)
	}
}

// Types that only type checkers read are right, too: Python runs them.
func TestPythonTypes(t *testing.T) {
	dir := write(t, Tree(hostileServers()[:2]))
	run(t, dir, "python3", "-c", `
import glob, sys, typing
for name in ("Required", "TypeAlias"):
    if not hasattr(typing, name): setattr(typing, name, typing.Optional)
n = 0
for path in sorted(glob.glob("*.py")):
    if path[0] == "_": continue
    source = open(path).read().replace("\nTYPE_CHECKING = False\n", "\nTYPE_CHECKING = True\n")
    ns = {"__name__": "mcp_tools.checked", "__file__": path}
    exec(compile(source, path, "exec"), ns)
    for k, v in list(ns.items()):
        if callable(v) and getattr(v, "__annotations__", None) and not k.startswith("_"):
            for a in v.__annotations__.values():
                compile(a, path, "eval")
                n += 1
assert n > 500, n`)
}

// TestTreeIsBounded: the bounds hold, and what has no room is said.
func TestTreeIsBounded(t *testing.T) {
	big := Server{Name: "big"}
	for i := range 1000 {
		big.Tools = append(big.Tools, Tool{Name: fmt.Sprint("t", i), Remote: fmt.Sprint("t", i),
			Description: strings.Repeat("word ", 2000), Input: schema(issueSchema)})
	}
	var all []Server
	for i := range 30 {
		big.Name = fmt.Sprint("big", i)
		all = append(all, big)
		big.Tools = big.Tools[:200] // what there is room for where there are many servers is less
	}
	for _, n := range []int{1, 30} {
		total, said := 0, false
		for _, f := range Tree(all[:n]) {
			total += len(f.Content)
			said = said || strings.Contains(string(f.Content), "have no room")
		}
		if limit := min(n*maxServer, maxTree); total > limit+(64<<10) || !said {
			t.Errorf("%d servers have %d bytes; that tools are left out is said: %v", n, total, said)
		}
	}
}

// TestMemberOrder: arguments are in the order of the schema, wherever their properties are in it.
func TestMemberOrder(t *testing.T) {
	raw := schema(`{"properties":{"z\"\\":{"description":"\"b\":1, \\"},"b":{"type":"string","enum":["m","a"]},"m":{},` +
		`"é":{"properties":{"z2":{}}}},"$defs":{"x":{"properties":{"a":{},"b":{}}}}}`)
	properties := map[string]any{"a": 1, "b": 1, "m": 1, "z\"\\": 1, "é": 1}
	if got := memberOrder(raw, properties, nil); !slices.Equal(got, []string{"z\"\\", "b", "m", "é", "a"}) {
		t.Errorf("%q", got)
	}
	if got := memberOrder(schema(`{"a`), properties, nil); len(got) != 5 {
		t.Errorf("%q", got)
	}
}

// A name stays what it is when others come and go.
func TestIdentifiers(t *testing.T) {
	one := identifiers([]string{"get-user"}, functionWords)
	two := identifiers([]string{"get_user", "get-user", "GET_USER", "class", "then", "Ünï"}, functionWords)
	if one[0] != "get_user" || two[0] != "get_user" || !strings.HasPrefix(two[1], "get_user_") ||
		!strings.HasPrefix(two[2], "GET_USER_") || two[3] != "class_" || two[4] != "then_" || two[5] != "Ünï" {
		t.Errorf("%q, %q", one, two)
	}
}

// FuzzTree makes a tree of one tool. Go's part has no panic, leaves no folder and no literal, and ends soon.
func FuzzTree(f *testing.F) {
	for _, h := range hostile {
		f.Add(h, h, issueSchema)
	}
	for _, s := range hostileServers()[0].Tools {
		f.Add("server", s.Remote, string(s.Input))
	}
	f.Fuzz(func(t *testing.T, name, text, input string) {
		files := Tree([]Server{{Name: name, Title: text, Instructions: text, State: text, Tools: []Tool{
			{Name: text, Remote: name, Description: text, Input: schema(input), Output: schema(input), Held: text}}}})
		for _, file := range files {
			if !filepath.IsLocal(file.Path) || strings.ContainsAny(file.Path, "\x00\n") {
				t.Errorf("the path %q", file.Path)
			}
			if len(file.Content) > maxServer {
				t.Errorf("%s has %d bytes", file.Path, len(file.Content))
			}
			if strings.HasSuffix(file.Path, ".md") && strings.ContainsAny(string(file.Content), "\x00\x1b\u202e\u3164\ufe00") {
				t.Errorf("%s has control characters", file.Path)
			}
		}
	})
}

// TypeScript's compiler takes the declarations, and finds what is wrong in a program that uses them.
func TestDeclarations(t *testing.T) {
	tools := os.Getenv("SANDLOT_TOOLS")
	if tools == "" {
		tools = "../../../.tools"
	}
	tsc, err := filepath.Abs(filepath.Join(tools, "node_modules/typescript/bin/tsc"))
	if err == nil {
		_, err = os.Stat(tsc)
	}
	if err != nil {
		t.Fatalf("TypeScript is missing, run `make tools`: %v", err)
	}
	dir := write(t, Tree(append(hostileServers()[:2], sample()...)))
	use := `import * as hub from './git_hub.mjs';
import { ToolError } from './_client.mjs';
const made = await hub.create_issue({ title: 'x', assignee: { login: 'a', team: [{ login: 'b' }] }, place: { 'file-name': 'f' } });
const n: number = made.number;
try { await hub.list(); } catch (e) { if (e instanceof ToolError) console.log(e.code, n); }
`
	wrong := []string{"hub.create_issue({});", "hub.create_issue({ title: 1 });",
		"hub.create_issue({ title: '', state: 'x' });",
		"hub.create_issue({ title: '', place: {} });", "hub.nothing();"}
	use += "// @ts-expect-error\n" + strings.Join(wrong, "\n// @ts-expect-error\n") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "use.mts"), []byte(use), 0o644); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.d.mts"))
	run(t, dir, append([]string{"node", tsc, "--noEmit", "--strict", "--target", "es2022", "--module", "nodenext",
		"use.mts"}, files...)...)
}
