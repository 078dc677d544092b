package interp

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNodeValues(t *testing.T) {
	l := node(t)
	for _, tt := range []struct{ code, value, out string }{
		{"1 + 1", "2", ""},
		{"console.log(42)", "", "42\n"},
		{"const a = 1", "", ""},
		{"a + 1", "2", ""},
		{"_ + 1", "3", ""},
		{"const a = 5; a", "5", ""}, // declared again
		{"let a = 6, b = a * 2; b;", "12", ""},
		{"var a", "", ""}, // keeps its value
		{"a", "6", ""},
		{"'text'", "'text'", ""},
		{"undefined", "", ""},
		{"null", "null", ""},
		{"({x: 1})", "{ x: 1 }", ""},
		{"const {x, y: [z = 9], ...rest} = {x: 1, y: [], q: 4}; [x, z, rest.q]", "[ 1, 9, 4 ]", ""},
		{"function f(n) { return n * a }", "", ""},
		{"f(2)", "12", ""},
		{"class C { v() { return 8 } }", "", ""},
		{"new C().v()", "8", ""},
		{"class C { v() { return 9 } }; new C().v()", "9", ""},
		{"// nothing but a comment", "", ""},
		{"for (const i of [1, 2]) console.log(i)", "", "1\n2\n"},
		{"if (a > 1) { var inner = 3 }", "", ""},
		// await
		{"await Promise.resolve(7)", "7", ""},
		{"const w = await new Promise(r => setTimeout(() => r('late'), 5)); w", "'late'", ""},
		{"for await (const v of [Promise.resolve(1)]) console.log(v)", "", "1\n"},
		// import
		{"import fs from 'fs'; typeof fs.readFileSync", "'function'", ""},
		{"import { join as j, sep } from 'node:path'\nimport * as os from 'os'\nj('a', 'b') + sep + typeof os.cpus",
			"'a/b/function'", ""},
		{"j('c', 'd')", "'c/d'", ""},
		{"(await import('path')).default.join('x', 'y')", "'x/y'", ""},
		{"require('path').join('p', 'q')", "'p/q'", ""},
		// other ways of writing
		{"process.stdout.write('no newline'); void 0", "", "no newline"},
		{"require('child_process').execSync('echo child', {stdio: 'inherit'}); void 0", "", "child\n"},
		{"'ä😀'", "'ä😀'", ""},
		{"console.log('ä😀')", "", "ä😀\n"},
		{"'use strict'; a", "6", ""},
		{"x = 3; x // the last value", "3", ""},
		{"[1,2,3].map(n => n * 2)", "[ 2, 4, 6 ]", ""},
		{"`a\nb`", "'a\\nb'", ""},
		{"10n ** 20n", "100000000000000000000n", ""},
	} {
		l.want(tt.code, tt.value, tt.out)
	}
}

func TestNodeErrors(t *testing.T) {
	l := node(t)
	l.want("var kept = 1", "", "")
	o := l.fails("function f() {\n  throw new Error('oh')\n}\n\nf()", 1, "Error: oh", ":2:", ":5:")
	if o.Error != "Error: oh" {
		t.Errorf("the error is %q", o.Error)
	}
	if strings.Contains(o.Traceback, "node:") || strings.Contains(o.Traceback, "[eval]") {
		t.Errorf("the traceback shows the driver:\n%s", o.Traceback)
	}
	l.fails("const ok = 1\nconst = 2", 1, "SyntaxError", ":2")
	l.fails("let s = 'unclosed", 1, "SyntaxError")
	l.fails("function (", 1, "SyntaxError")
	l.fails("export const e = 1", 1, "SyntaxError", "export")
	l.fails("return 5", 1, "SyntaxError")
	l.fails("nowhere", 1, "ReferenceError", "nowhere")
	l.fails("await Promise.reject(new TypeError('later'))", 1, "TypeError: later")
	l.fails("throw 5", 1, "5")
	l.fails("throw null", 1, "null")
	l.fails("throw new Error('outer', {cause: new Error('inner')})", 1, "outer", "inner")
	l.fails("import nothing from 'no-such-module'", 1, "no-such-module")
	l.fails("(function r() { r() })()", 1, "RangeError")
	l.want("kept", "1", "")
	// What fails after the call's end is told, and kills nothing.
	if o := l.run("setTimeout(() => { throw new Error('afterwards') }, 1); Promise.reject(new Error('unheard')); " +
		"await new Promise(r => setTimeout(r, 50)); 'end'"); !o.OK || o.value() != "'end'" || !strings.Contains(o.err,
		"afterwards") || !strings.Contains(o.err, "unheard") {
		t.Errorf("a late failure: %s", o)
	}
	if o := l.run("console.error('careful'); 1"); !o.OK || o.err != "careful\n" || o.value() != "1" {
		t.Errorf("a warning: %s", o)
	}
	l.want("kept", "1", "")
}

func TestNodeExit(t *testing.T) {
	l := node(t)
	l.want("var kept = 1", "", "")
	l.fails("process.exit(3)", 3)
	l.want("process.exit(0)", "", "")
	l.want("process.exit()", "", "")
	l.fails("await new Promise(() => { setTimeout(() => process.exit(4), 5) })", 4)
	l.fails("try { process.exit(5) } finally { void 0 }", 5)
	l.want("kept", "1", "")
	if o := l.run("process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})"); o.OK || o.Exit != 137 ||
		!o.StateLost {
		t.Errorf("a death: %s", o)
	}
	l.fails("kept", 1, "ReferenceError")
}

func TestNodeTimeouts(t *testing.T) {
	l := node(t)
	l.want("var kept = 1", "", "")
	for _, code := range []string{"while (true) {}", "console.log('begun'); await new Promise(() => {})",
		"for (;;) { try { for (;;); } catch {} }", "require('child_process').spawnSync('sleep', ['60'])"} {
		o := l.timed(code)
		if o.OK || !o.TimedOut || o.StateLost {
			t.Errorf("%q: %s", code, o)
		}
		if strings.Contains(code, "begun") && o.out != "begun\n" {
			t.Errorf("what was printed until then is lost: %s", o)
		}
		l.want("kept", "1", "")
	}
	l.want("await Promise.resolve('awake')", "'awake'", "")
}

// A cell may end before the process has heard the signal that was to stop it.
func TestNodeHearsASignalLate(t *testing.T) {
	l := node(t)
	l.want("var kept = 1", "", "")
	l.process.signalPending = true
	late := time.AfterFunc(30*time.Millisecond, func() { l.Signal(unix.SIGINT) })
	defer late.Stop()
	l.want("await new Promise(r => setTimeout(r, 100)); kept", "1", "")
	l.want("kept", "1", "")
	l.process.signalPending = true // and one that never comes costs a moment
	l.want("kept", "1", "")
}

func TestNodeRich(t *testing.T) {
	l := node(t)
	o := l.run("({[Symbol.for('Jupyter.display')]: () => ({'text/html': '<b>ä</b>', 'image/png': " +
		"Buffer.from('png').toString('base64'), 'text/plain': 'x'})})")
	got := map[string]string{}
	for _, r := range o.Rich {
		got[r.MIME] = string(r.Data)
	}
	if !o.OK || len(got) != 2 || got["text/html"] != "<b>ä</b>" || got["image/png"] != "png" {
		t.Errorf("rich %v: %s", got, o)
	}
}

func TestNodeHugeResults(t *testing.T) {
	l := node(t)
	for _, code := range []string{"'x'.repeat(9 << 20)", "'\\u0001'.repeat(9 << 20)", "'😀'.repeat(9 << 20)",
		"Array.from({length: 1000000}, (_, i) => i)"} {
		if o := l.run(code); !o.OK || o.value() == "" || len(o.value()) > 17<<20 {
			t.Errorf("%q: %d bytes: %s", code, len(o.value()), o)
		}
	}
	for _, code := range []string{"throw new Error('x'.repeat(60 << 20))", "throw 'y'.repeat(60 << 20)",
		"throw new Error('😀'.repeat(10 << 20))"} {
		if o := l.run(code); o.OK || o.Exit != 1 || o.Error == "" || len(o.Error)+len(o.Traceback) > 2<<20 ||
			o.StateLost {
			t.Errorf("%q: error of %d bytes, traceback of %d: %s", code, len(o.Error), len(o.Traceback), o)
		}
	}
	if o := l.run("({[Symbol.for('Jupyter.display')]: () => Object.fromEntries([1, 2, 3, 4, 5, 6].map(n => " +
		"['text/x' + n, 'z'.repeat(7 << 20)]))})"); !o.OK || len(o.Rich) > 1 {
		t.Errorf("%d rich values of 7 MB: %s", len(o.Rich), o)
	}
	l.want("1", "1", "")
}

// What a cell breaks does not take the next cell's answer.
func TestNodeBrokenByACell(t *testing.T) {
	l := node(t)
	for _, code := range []string{"Promise = null", "Object = Array = null", "Buffer = null", "Error = SyntaxError = null", "JSON = null",
		"setTimeout = setInterval = setImmediate = clearInterval = null", "process = null", "Reflect = Symbol = null",
		"require('fs').writeSync = require('fs').statSync = null", "require = module = null", "performance = undefined", "String = Number = null",
		"Object.defineProperty(globalThis, '_', { value: 1, configurable: true })", "require = undefined; _error = 5",
		"const inspect = globalThis.util?.inspect; if (inspect) inspect.defaultOptions.depth = 0",
		"Array.prototype[Symbol.iterator] = null", "Array.prototype.push = Array.prototype.map = undefined", "delete Array.prototype.slice",
		"Promise.prototype.then = null", "Promise.race = Promise.resolve = null", "Buffer.from = Buffer.concat = null",
		"Object.prototype.toJSON = () => 5", "Object.prototype.get = Object.prototype.value = 5", "Object.prototype.then = (f) => f(7)",
		"delete Object.prototype.then; delete Object.prototype.get; delete Object.prototype.value", "globalThis = 5", "var globalThis = null",
		"Object.defineProperty = Object.keys = Object.entries = null", "String.prototype.replace = String.prototype.split = null",
		"RegExp.prototype.exec = RegExp.prototype.test = null", "Function.prototype.call = Function.prototype.apply = null",
		"Reflect.apply = null", "JSON.stringify = JSON.parse = null", "Uint8Array.prototype.__proto__.subarray = null",
		"Object.defineProperty(Array.prototype, 'filter', { get() { throw 1 }, configurable: true })", "process.removeAllListeners()",
		"process.stdout.write = null", "delete process.stdout.write", "console = null", "process.nextTick = queueMicrotask = null",
		"Error.stackTraceLimit = 0"} {
		if o := l.run(code); o.StateLost {
			t.Errorf("%q: %s", code, o)
		}
		l.want("1 + 1", "2", "")
		if o := l.run("nowhere"); o.OK || o.Error != "ReferenceError: nowhere is not defined" {
			t.Errorf("an error after %q: %s", code, o)
		}
	}
	l.fails("let s = 'unclosed", 1, "SyntaxError: Invalid or unexpected token")
	l.want("await 7", "7", "")
	if o := node(t).run("Array.prototype.map = null; Buffer.from = null"); !strings.Contains(o.err, "functions that this cell has taken away are back: from, map") {
		t.Errorf("%s", o)
	}
	// What was replaced by something that does not do its work is the code's. The interpreter answers, or is started again and says why.
	for _, code := range []string{"Array.prototype.push = () => { throw 1 }", "Buffer.from = () => 5", "Object.keys = () => { throw 2 }",
		"String.prototype.replace = () => ''", "Array.prototype[Symbol.iterator] = () => 5", "Promise.prototype.then = () => {}",
		"Error.prepareStackTrace = () => { throw 1 }", "RegExp.prototype.exec = () => null", "Object.freeze(globalThis)"} {
		l := node(t)
		o := l.timed(code)
		next := l.call(t.Context(), Cell{Code: "1 + 1", Timeout: 10 * time.Second})
		if next.value() != "2" && !o.StateLost && !next.StateLost {
			t.Errorf("after %q, which says\n%s\nthe next cell says\n%s", code, o, next)
		}
		l.want("2 + 2", "4", "")
		l.Close()
	}
}

// A declaration may have the name of any global, but for those that nothing can change.
func TestNodeDeclaresEveryGlobal(t *testing.T) {
	l := node(t)
	var names []string
	if err := json.Unmarshal([]byte(l.run("console.log(JSON.stringify(Object.getOwnPropertyNames(globalThis)))").out), &names); err != nil || len(names) < 60 {
		t.Fatalf("%d names, %v", len(names), err)
	}
	fixed := []string{"undefined", "NaN", "Infinity"}
	for _, name := range names {
		if !isWord.MatchString(name) || strings.HasPrefix(name, "__sandlot") {
			continue
		}
		code := "const " + name + " = 5; " + name
		if slices.Contains(fixed, name) {
			l.fails(code, 1, "SyntaxError: Identifier '"+name+"' has already been declared")
			continue
		}
		if o := l.run(code); o.value() != "5" || o.StateLost {
			t.Errorf("%q: %s", code, o)
		}
		l.want("2 + 3", "5", "")
	}
}

var isWord = regexp.MustCompile(`^[A-Za-z_$][\w$]*$`)

// A cell that prints to what it has put in the place of Node's functions says so.
func TestNodeOutputElsewhere(t *testing.T) {
	l := node(t)
	for _, tt := range []struct{ code, said string }{
		{"const seen = []; process.stdout.write = (text) => seen.push(text)", "process.stdout.write is [Function"},
		{"console.log('where')", "process.stdout.write is [Function"},
		{"delete process.stdout.write; console.log(seen.join(''))", ""},
		{"const log = console.log; console.log = () => {}", "console.log is [Function"},
		{"console.log('where')", "console.log is [Function"},
		{"console.error('there')", "there\n"},
		{"console.log = log; console.log('here')", ""},
	} {
		if o := l.run(tt.code); !o.OK || !strings.Contains(o.err, tt.said) || tt.said == "" && o.err != "" {
			t.Errorf("%q: %s, want %q", tt.code, o, tt.said)
		}
	}
}
