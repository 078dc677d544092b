// Sandlot's Node driver: it runs the cells that the agent sends on fd 3 in this
// process's global scope, and replies on fd 4. It needs only Node itself. The code of -e has read it from fd 3
// (proc.go), and evaluates it: the stacks of its functions name that code.
'use strict';
(() => {
  // The code may replace what is global.
  const global_ = globalThis;
  const { Promise, Object, Number, String, Symbol, Error, SyntaxError, Reflect, Buffer, Atomics, setInterval, clearInterval } = global_;
  const own = { Promise, Object, Array, Number, String, Boolean, Symbol, Error, SyntaxError, TypeError, RangeError, ReferenceError, Function, Map, Set, RegExp, Date };
  const fs = require('fs'), vm = require('vm'), util = require('util'), path = require('path');
  const { createRequire } = require('module');
  const acorn = require('internal/deps/acorn/acorn/dist/acorn');
  const walk = require('internal/deps/acorn/acorn-walk/dist/walk');
  const proc = process, realExit = process.exit.bind(process), endProcess = process.reallyExit.bind(process), realError = Error;
  const stringify = JSON.stringify, parseJSON = JSON.parse, inspect = util.inspect;
  const MAX_RESULT = 4 << 20, MAX_TRACE = 200000;
  const CLOSED_PIPES_EXIT = 113; // the exit code when the code has closed the driver's pipes (proc.go)

  // Functions that the driver, its parser and util.inspect call. What the code puts in their place stays if it is a function, too.
  const needed = [], { defineProperty } = Object, isOwn = (object, name) => Reflect.apply(Object.prototype.hasOwnProperty, object, [name]);
  for (const place of [Object, Array, Promise, Reflect, JSON, Buffer, String, Number, Symbol, Object.prototype, Function.prototype, Array.prototype,
    String.prototype, RegExp.prototype, Promise.prototype, Map.prototype, Set.prototype, Error.prototype,
    Buffer.prototype, Reflect.getPrototypeOf(Uint8Array.prototype), Reflect.getPrototypeOf([][Symbol.iterator]())]) {
    for (const key of Reflect.ownKeys(place)) {
      const found = Object.getOwnPropertyDescriptor(place, key);
      if (typeof found.value === 'function' && key !== 'constructor') needed.push(place, key, found.value);
    }
  }
  needed.push(proc, 'nextTick', proc.nextTick); // Node's streams call it
  const { from: bufferFrom, concat: bufferConcat, byteLength } = Buffer, ownNames = Object.keys(own);
  // intact reports whether all of them are functions. As one expression it takes a microsecond, where a loop takes thirty.
  const intact = new Function('needed', `const ${needed.map((part, n) => (n % 3 === 2 ? '' : `_${n} = needed[${n}]`)).filter(Boolean).join(', ')};
    return () => ${Array.from({ length: needed.length / 3 }, (_, n) => {
      const key = needed[3 * n + 1];
      return `typeof _${3 * n}[${typeof key === 'symbol' ? `_${3 * n + 1}` : stringify(key)}] === 'function'`;
    }).join(' && ')};`)(needed);
  // mend gives the code back what it has taken away of these, and returns their names. It calls nothing that the code may replace.
  const mend = () => {
    try { if (intact()) return ''; } catch { /* a getter */ }
    let names = '';
    for (let n = 0; n < needed.length; n += 3) {
      const place = needed[n], key = needed[n + 1];
      try { if (typeof place[key] === 'function') continue; } catch { /* a getter */ }
      try { defineProperty(place, key, { __proto__: null, value: needed[n + 2], writable: true, configurable: true, enumerable: false }); } catch { continue; }
      names += (names && ', ') + (typeof key === 'symbol' ? 'a symbol' : key);
    }
    return names;
  };

  // The global scope of the code has what Node's REPL has.
  const base = createRequire(path.join(proc.cwd(), 'sandlot.js'));
  const defineGlobal = (name, value) => defineProperty(global_, name, { __proto__: null, value, writable: true, configurable: true, enumerable: false });
  defineGlobal('__sandlot_global', global_);
  const module_ = { exports: {}, paths: base.resolve.paths('x') || [] };
  defineGlobal('require', base); defineGlobal('module', module_); defineGlobal('exports', module_.exports);
  defineGlobal('__filename', path.join(proc.cwd(), 'code.js')); defineGlobal('__dirname', proc.cwd());
  proc.argv.length = 1;

  const { writeSync } = fs, kill = proc.kill.bind(proc);
  // giveUp ends the process when the code has replaced what the driver needs to answer. An exit would wait for the thread that reads requests.
  const giveUp = () => {
    try { writeSync(2, '[the code has replaced functions of JavaScript without which the interpreter cannot answer]\n'); } catch { /* said in vain */ }
    kill(proc.pid, 'SIGKILL');
  };
  // encode writes a reply as JSON. Objects of the code's making, and what has a toJSON, are not asked.
  const encode = (reply) => {
    let text = `{"id":${reply.id},"ok":${reply.ok},"exit":${reply.exit || 0}`;
    if (reply.interrupted) text += ',"interrupted":true';
    for (const key of ['result', 'error', 'traceback']) if (typeof reply[key] === 'string') text += `,"${key}":${stringify(reply[key])}`;
    if (reply.rich) {
      text += ',"rich":[';
      for (let n = 0; n < reply.rich.length; n++) text += `${n ? ',' : ''}{"mime":${stringify(reply.rich[n].mime)},"data":${stringify(reply.rich[n].data)}}`;
      text += ']';
    }
    if (reply.order) {
      text += ',"order":[';
      for (let n = 0; n < reply.order.length; n++) text += `${n ? ',' : ''}${reply.order[n]}`;
      text += ']';
    }
    return text + '}\n';
  };
  const answer = (reply) => {
    const data = bufferFrom(encode(reply));
    for (let at = 0; at < data.length;) {
      try { at += writeSync(4, data, at); } catch (e) { if (e.code !== 'EAGAIN') endProcess(CLOSED_PIPES_EXIT); }
    }
  };

  // While a cell runs, its output is buffered, since a system call takes as long as a
  // hundred lines. In every 50 ms the first 100 writes of the code go out at once, so that
  // output before a long computation is seen. After that 32 go out together, since nothing
  // can be flushed while the code blocks the event loop. Fewer than 32 go out with the next
  // write after the 50 ms, when the code waits for something, before anything else may write
  // to the same file, or at the end of the cell.
  let running = false, written = false;
  const FLUSH_MS = 50, FLUSH_BYTES = 65536, AT_ONCE = 100, TOGETHER = 32;
  const SIGNAL_MS = 250;
  const clock = performance, later = setTimeout, nextTurn = setImmediate, nextTick = proc.nextTick, sleeper = new Int32Array(new SharedArrayBuffer(4));
  const writeAll = (fd, data) => {
    for (let at = 0; at < data.length;) {
      try { at += writeSync(fd, data, at); } catch (e) {
        if (e.code !== 'EAGAIN') return;
        Atomics.wait(sleeper, 0, 0, 1);
      }
    }
  };
  // How the cell writes to both streams: so many bytes to stdout, then so many to stderr, and so on, before those that
  // are counted now. What is more is not counted.
  const MAX_ORDER = 20000;
  let order = [], lastTo = 1, counted = 0;
  const countOutput = (fd, bytes) => {
    if (fd !== lastTo) {
      if (order.length < MAX_ORDER) order[order.length] = counted;
      lastTo = fd; counted = 0;
    }
    counted += bytes;
  };
  const buffered = (stream, fd) => {
    let text = '', parts = [], size = 0, since = -Infinity, count = 0, timer = null;
    const flush = () => {
      if (!size) return;
      if (text) parts.push(bufferFrom(text));
      const data = parts.length === 1 ? parts[0] : bufferConcat(parts);
      text = ''; parts = []; size = 0;
      writeAll(fd, data);
    };
    stream._writev = null;
    stream._write = (chunk, encoding, done) => {
      written = true;
      countOutput(fd, typeof chunk === 'string' ? byteLength(chunk, encoding) : chunk.length);
      if (typeof chunk === 'string' && (encoding === 'utf8' || encoding === 'utf-8')) text += chunk;
      else {
        if (text) parts.push(bufferFrom(text));
        text = '';
        parts.push(typeof chunk === 'string' ? bufferFrom(chunk, encoding) : bufferFrom(chunk));
      }
      size += chunk.length;
      const t = clock.now();
      if (t - since > FLUSH_MS) { since = t; count = 0; flush(); }
      else if (!running || ++count < AT_ONCE || count % TOGETHER === 0 || size >= FLUSH_BYTES) flush();
      else if (!timer) timer = later(() => { timer = null; flush(); }, FLUSH_MS).unref();
      done();
    };
    return flush;
  };
  const flushes = [buffered(proc.stdout, 1), buffered(proc.stderr, 2)];
  const flush = () => { for (const f of flushes) f(); };
  const flushBefore = (object, name, when) => {
    const inner = object[name];
    if (typeof inner !== 'function') return;
    const outer = { [name](...args) { if (!when || when(...args)) flush(); return Reflect.apply(inner, this, args); } }[name];
    object[name] = Object.assign(outer, inner);
  };
  const { internalBinding } = require('internal/test/binding');
  flushBefore(internalBinding('spawn_sync'), 'spawn');
  flushBefore(internalBinding('process_wrap').Process.prototype, 'spawn');
  for (const name of ['write', 'writeSync', 'writev', 'writevSync', 'writeFile', 'writeFileSync', 'appendFileSync']) {
    flushBefore(fs, name, (to) => to === 1 || to === 2 || typeof to === 'string' && /^\/(dev|proc)\//.test(to));
  }
  for (const name of ['abort', 'kill', 'dlopen']) flushBefore(proc, name);
  require('module').syncBuiltinESMExports();
  proc.on('exit', flush);

  // import() also finds what only require finds: packages that were installed after a
  // failed import, and those of NODE_PATH.
  // Modules of the tool tree change with the connections of the user: each revision has its own address.
  const revised = (name) => {
    const found = /^(?:file:\/\/)?(\/run\/mcp\/[^/_?#%][^/?#%]*\.mjs)$/.exec(String(name));
    if (!found) return name;
    try {
      const st = fs.statSync(found[1], { bigint: true });
      return `${require('url').pathToFileURL(found[1])}?${st.ino}-${st.mtimeNs}`;
    } catch { return name; }
  };
  const load = async (name, options) => {
    name = revised(name);
    try { return await import(name, options); } catch (e) {
      if (!e || e.code !== 'ERR_MODULE_NOT_FOUND' || !/^[@\w]/.test(String(name)) || /^\w+:/.test(String(name))) throw e;
      let file;
      try { file = base.resolve(String(name)); } catch { throw e; }
      return import(require('url').pathToFileURL(file));
    }
  };
  defineGlobal('__sandlot_import', load);

  // _ is the last value, and _error the last error, as in Node's REPL, until the code assigns to the name.
  const latest = {};
  for (const name of ['_', '_error']) {
    defineProperty(global_, name, { __proto__: null, get: () => latest[name], set: (value) => defineGlobal(name, value), configurable: true, enumerable: false });
  }

  // Nobody can answer a question: code that asks one would wait for ever.
  const unanswered = (name) => new Error(`${name} has nobody to answer it here: put the value into the code, or read it from a file`);
  for (const name of ['prompt', 'confirm']) defineGlobal(name, () => { throw unanswered(name + '()'); });
  let readlineUnchanged = true;
  const refuseQuestions = () => {
    readlineUnchanged = false;
    const refuse = (Interface, answer) => {
      const ask = Interface.prototype.question;
      const question = function (...args) { return this.input === proc.stdin ? answer(unanswered('readline')) : Reflect.apply(ask, this, args); };
      const later = ask[util.promisify.custom];
      if (later) question[util.promisify.custom] = function (...args) { return this.input === proc.stdin ? Promise.reject(unanswered('readline')) : Reflect.apply(later, this, args); };
      Interface.prototype.question = question;
    };
    refuse(require('readline').Interface, (e) => { throw e; });
    refuse(require('readline/promises').Interface, (e) => Promise.reject(e));
  };

  // compileTypes removes the types where Node itself cannot, by the package typescript, which is among the ready packages.
  const compileTypes = (code) => {
    let ts;
    try { ts = base('typescript'); } catch {}
    if (!ts || !ts.transpileModule) { // the package has no such interface any more from version 7 on
      throw new Error(`TypeScript needs Node 22.13 or newer, or the package typescript (npm install -g typescript@5); this is ${proc.version}`);
    }
    // Imports stay that this cell does not use: the next one may.
    const { outputText, diagnostics } = ts.transpileModule(code, { reportDiagnostics: true, compilerOptions: {
      target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext, verbatimModuleSyntax: true } });
    const wrong = (diagnostics || []).find((d) => d.category === ts.DiagnosticCategory.Error);
    if (!wrong) return outputText;
    const err = new SyntaxError(ts.flattenDiagnosticMessageText(wrong.messageText, '\n'));
    err.stack = `SyntaxError: ${err.message}`;
    throw err;
  };

  // stripTypes removes the types of TypeScript. Line numbers stay, except in code with
  // constructs that are more than types, such as enum.
  const stripTypes = (code) => {
    const { stripTypeScriptTypes } = require('module');
    if (!stripTypeScriptTypes) return compileTypes(code);
    try {
      try { return stripTypeScriptTypes(code); } catch (e) {
        if (e.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw e;
        return stripTypeScriptTypes(code, { mode: 'transform' });
      }
    } catch (e) {
      if (!/TYPESCRIPT/.test(e && e.code)) throw e;
      const err = new SyntaxError(e.message);
      err.stack = `SyntaxError: ${e.message}`;
      throw err;
    }
  };

  // patternNames returns the names that a pattern declares.
  const patternNames = (p, out = []) => {
    if (!p) return out;
    switch (p.type) {
      case 'Identifier': out.push(p.name); break;
      case 'ObjectPattern': p.properties.forEach((q) => patternNames(q.type === 'RestElement' ? q.argument : q.value, out)); break;
      case 'ArrayPattern': p.elements.forEach((q) => patternNames(q, out)); break;
      case 'AssignmentPattern': patternNames(p.left, out); break;
      case 'RestElement': patternNames(p.argument, out); break;
    }
    return out;
  };

  const rewriteImport = (s) => {
    // `import a, {b as c}, * as d from 'x'` becomes assignments from an awaited import().
    const attributes = (s.attributes || []).map((a) => `${a.key.raw ?? stringify(a.key.name)}: ${a.value.raw}`).join(', ');
    const source = `await __sandlot_import(${s.source.raw}${attributes && `, {with: {${attributes}}}`})`;
    if (!s.specifiers.length) return { code: `${source};`, declared: [] };
    const parts = [], declared = [];
    for (const sp of s.specifiers) {
      declared.push(sp.local.name);
      if (sp.type === 'ImportNamespaceSpecifier') parts.push(`${sp.local.name} = __m`);
      else {
        const from = sp.type === 'ImportDefaultSpecifier' ? 'default' : (sp.imported.name ?? sp.imported.value);
        parts.push(`${sp.local.name} = __m[${stringify(from)}]`);
      }
    }
    return { code: `{ const __m = ${source}; ${parts.join('; ')}; }`, declared };
  };

  // rewriteNested makes globals of the variables and functions that a statement declares for the whole script:
  // var anywhere but in functions, and in sloppy mode functions in blocks.
  const rewriteNested = (statement, strict, code, edit, lines, declared) => {
    const names = (s) => { for (const d of s.declarations) patternNames(d.id, declared); };
    const inHead = (s) => s && s.type === 'VariableDeclaration' && s.kind === 'var';
    const loop = (s, _, c) => {
      if (inHead(s.left) && !s.left.declarations[0].init) {
        names(s.left);
        edit(s.left.start, s.left.declarations[0].start, lines(s.left.start, s.left.declarations[0].start));
      }
      c(s.body, null, 'Statement');
    };
    walk.recursive(statement, null, {
      Function() {}, Class() {}, Expression() {},
      VariableDeclaration(s) {
        if (s.kind !== 'var') return;
        names(s);
        s.declarations.forEach((d, n) => {
          const start = n ? d.start : s.start;
          edit(start, d.start, (n ? '(' : '{(') + lines(start, d.start));
          edit(d.end, d.end, ')');
        });
        const semicolon = code[s.end - 1] === ';' && s.end > s.declarations.at(-1).end;
        edit(semicolon ? s.end - 1 : s.end, s.end, '}');
      },
      ForStatement(s, _, c) {
        if (inHead(s.init)) {
          names(s.init);
          s.init.declarations.forEach((d, n) => {
            const start = n ? d.start : s.init.start;
            edit(start, d.start, '(' + lines(start, d.start));
            edit(d.end, d.end, ')');
          });
        }
        c(s.body, null, 'Statement');
      },
      ForInStatement: loop, ForOfStatement: loop,
      BlockStatement(s, _, c) {
        for (const inner of s.body) {
          if (inner.type === 'FunctionDeclaration' && !strict && !inner.async && !inner.generator) {
            declared.push(inner.id.name);
            edit(s.start + 1, s.start + 1, `__sandlot_global[${stringify(inner.id.name)}] = ${inner.id.name};`);
          }
          c(inner, null, 'Statement');
        }
      },
    });
  };

  // The parser calls these globals, whose names the code may have given to something else.
  const called = { parseInt, parseFloat, BigInt, isNaN };
  const parse = (code) => {
    const lent = [];
    for (const name in called) {
      if (global_[name] === called[name]) continue;
      lent.push([name, Object.getOwnPropertyDescriptor(global_, name)]);
      defineGlobal(name, called[name]);
    }
    try {
      return acorn.parse(code, { ecmaVersion: 'latest', sourceType: 'script', allowAwaitOutsideFunction: true,
        allowImportExportEverywhere: true, allowHashBang: true, allowReturnOutsideFunction: false });
    } finally {
      for (const [name, theirs] of lent) if (theirs) defineProperty(global_, name, theirs); else delete global_[name];
    }
  };

  // asObject returns code that begins with a brace, and is an object, in parentheses, as Node's REPL reads it; else the code.
  const asObject = (code) => {
    if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return code;
    const object = `(${code}\n)`;
    try { parse(object); } catch { return code; }
    return object;
  };

  // rewrite turns a cell into the body of an async function, in which top-level
  // declarations become globals, and the last expression is returned. Line numbers stay.
  const rewrite = (code) => {
    code = asObject(code);
    const ast = parse(code);
    const edits = [], declared = [], functions = [];
    const directives = ast.body.filter((s) => s.directive !== undefined);
    const strict = directives.some((s) => s.directive === 'use strict');
    const edit = (start, end, text) => edits.push({ start, end, text });
    const lines = (start, end) => '\n'.repeat(code.slice(start, end).split('\n').length - 1);
    walk.simple(ast, { ImportExpression(e) { edit(e.start, e.start + 'import'.length, '__sandlot_import'); } });
    const last = ast.body.filter((s) => s.type !== 'EmptyStatement').pop();
    for (const s of ast.body) {
      switch (s.type) {
        case 'VariableDeclaration': {
          for (const d of s.declarations) patternNames(d.id, declared);
          const taken = s.kind === 'var' ? undefined : s.declarations.flatMap((d) => patternNames(d.id)).find((name) => fixed(name));
          if (taken) throw new SyntaxError(`Identifier '${taken}' has already been declared`);
          const first = s.declarations[0];
          edit(s.start, first.start, ';(' + lines(s.start, first.start));
          s.declarations.forEach((d, n) => {
            const open = n === 0 ? '' : '(';
            if (n > 0) edit(d.start, d.start, open);
            if (!d.init) edit(d.end, d.end, s.kind === 'var' ? ` = typeof ${d.id.name} === "undefined" ? undefined : ${d.id.name})` : ' = undefined)');
            else edit(d.end, d.end, ')');
          });
          break;
        }
        case 'FunctionDeclaration': functions.push(s.id.name); break;
        case 'ClassDeclaration':
          declared.push(s.id.name);
          edit(s.start, s.start, `;${s.id.name} = `);
          edit(s.end, s.end, ';');
          break;
        case 'ImportDeclaration': {
          const r = rewriteImport(s);
          declared.push(...r.declared);
          edit(s.start, s.end, r.code + lines(s.start, s.end));
          break;
        }
        case 'ExportNamedDeclaration': case 'ExportDefaultDeclaration': case 'ExportAllDeclaration':
          throw new SyntaxError('export has no meaning here: top-level names are kept for the next call anyway');
        case 'ExpressionStatement':
          if (s === last) {
            const end = s.expression.end;
            edit(s.start, s.start, ';return {__proto__: null, __sandlot_value: (0, (');
            edit(s.end, s.end, '))};');
            if (code[s.end - 1] === ';') edit(s.end - 1, s.end, '');
          }
          break;
        default: rewriteNested(s, strict, code, edit, lines, declared);
      }
    }
    // Functions are there from the beginning of the cell, behind its directives.
    const hoisted = functions.map((f) => `__sandlot_global[${stringify(f)}] = ${f};`).join('');
    if (directives.length) edit(directives.at(-1).end, directives.at(-1).end, directives.at(-1) === last ? '' : ';' + hoisted);
    // Edits at the same position stay in their order (sort is stable).
    edits.sort((a, b) => a.start - b.start || a.end - b.end);
    let out = '', at = 0;
    for (const e of edits) { out += code.slice(at, e.start) + e.text; at = e.end; }
    out += code.slice(at);
    if (out.startsWith('#!')) out = '//' + out;
    return { head: `(async () => {${directives.length ? '' : hoisted}`, code: out, tail: '\n})()', declared };
  };

  // fixed reports whether a name is that of a global that nothing can change, such as undefined.
  const fixed = (name) => {
    const found = Object.getOwnPropertyDescriptor(global_, name);
    return Boolean(found && !found.configurable && !found.writable && !found.set);
  };

  // declare makes a global of a name. One that has a value and cannot be assigned to gets one that can.
  const declare = (name) => {
    const found = Object.getOwnPropertyDescriptor(global_, name);
    if (!found) defineProperty(global_, name, { __proto__: null, value: undefined, writable: true, configurable: true, enumerable: true });
    else if (found.configurable && !found.writable && !found.set) defineGlobal(name, global_[name]);
  };

  const filename = (id) => `<code ${id}>`;

  const compile = (id, code) => {
    let r;
    try { r = rewrite(code); } catch (e) {
      if (!(e instanceof SyntaxError)) {
        try { parse('a = [1]'); } catch { giveUp(); } // the parser does not work any more
      }
      if (!(e instanceof realError) || e.name !== 'SyntaxError' || !e.loc) throw e;
      // V8 has a better message, with the line. In a function an error at the end of the code is behind it.
      try { new vm.Script('(async () => {\n' + code + '\n})', { filename: filename(id), lineOffset: -1 }); } catch (v8) {
        const line = Number((/^<code \d+>:(\d+)/.exec(String(v8.stack)) || [])[1]);
        if (line <= code.split('\n').length) throw v8;
      }
      if (!/\bawait\b|^\s*(?:im|ex)port\b/m.test(code)) new vm.Script(code, { filename: filename(id) });
      const text = `${filename(id)}:${e.loc.line}\n${code.split('\n')[e.loc.line - 1] ?? ''}\n${' '.repeat(e.loc.column)}^\n\n`;
      const err = new SyntaxError(e.message.replace(/ \(\d+:\d+\)$/, ''));
      err.stack = `${text}SyntaxError: ${err.message}\n    at ${filename(id)}:${e.loc.line}:${e.loc.column + 1}`;
      throw err;
    }
    const options = { filename: filename(id), columnOffset: -r.head.length };
    const loader = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
    if (loader) options.importModuleDynamically = loader;
    const script = new vm.Script(r.head + r.code + r.tail, options);
    for (const n of r.declared) declare(n);
    return script;
  };

  const moment = new vm.Script('for (let i = 0; i < 1e7; i++);');
  let wasInterrupted = false;

  class Exit { constructor(code) { this.code = code; } }

  // stop ends the await for the cell that runs; exited is set by process.exit.
  let stop = null, exited = null;
  let signalled = false, onSignal = null;
  proc.on('SIGINT', () => {
    signalled = true;
    if (onSignal) onSignal();
    if (stop) stop({ interrupted: true });
  });
  proc.exit = (code) => {
    if (!running) realExit(code);
    exited = new Exit(Number(code ?? proc.exitCode ?? 0) & 0xff);
    if (stop) stop(exited);
    throw exited;
  };
  proc.reallyExit = proc.exit;
  const reportUncaught = (e) => {
    if (e instanceof Exit) return;
    latest._error = e;
    proc.stderr.write('Uncaught (in a callback or promise) ' + trace(e).replace(/^Uncaught /, '') + '\n');
  };
  proc.on('uncaughtException', reportUncaught);
  proc.on('unhandledRejection', reportUncaught);

  // withoutFrames takes the driver's own frames out of the text of an error. What follows the last frame stays.
  const internalFrames = /\n\s+at [^\n]*(?:\[eval|node:internal|node:vm|internal\/|at new Script|evalmachine)[^\n]*|\n\s+\.\.\. \d+ lines matching cause stack trace \.\.\.[^\n]*/g;
  const cellFrame = /\n\s+at (?:async )?<code (\d+)>:(\d+):\d+(?=,?(?: \{)?(?:\n|$))/g;
  const rest = (frame) => / ?[,{]$/.exec(frame)?.[0] ?? '';
  const lineCounts = []; // of each cell
  const withoutFrames = (text) => text.replace(internalFrames, rest)
    // The driver's call of the cell is behind the cell's last line.
    .replace(cellFrame, (frame, cell, line) => (Number(line) > lineCounts[cell] ? '' : frame));

  const { isNativeError } = util.types;
  const errorOptions = { depth: 4, maxStringLength: MAX_TRACE };
  const isError = (e) => isNativeError(e) || e instanceof realError;
  // describe is an error as Node shows one that nothing catches: with its properties, and the errors in it.
  const describe = (e) => {
    let text;
    try { text = inspect(e, errorOptions); } catch {
      try { text = String(e.stack); } catch { return 'an error whose text could not be made'; }
    }
    return isError(e) && /^\[[^\n]*\]$/.test(text) ? text.slice(1, -1) : text;
  };
  const trace = (e) => {
    let text = describe(e);
    if (!isError(e)) text = 'Uncaught ' + text;
    else if (text.length > 2 * MAX_TRACE) text = text.slice(0, 2 * MAX_TRACE);
    text = withoutFrames(text);
    return text.length > MAX_TRACE ? text.slice(0, MAX_TRACE) + '\n… [cut]' : text;
  };

  // errorLine is the name and the message of an error.
  const errorLine = (e) => {
    const text = describe(e);
    if (!isError(e)) return text;
    const at = text.search(/\n\s+at /);
    const head = at < 0 ? '' : text.slice(0, at);
    return head && /^[\w$]*(?: \[\w+\])?(?::|$)/.test(head) ? head : e.message ? `${e.name}: ${e.message}` : String(e.name);
  };

  const format = (v) => {
    let text;
    try { text = inspect(v, { depth: 4, maxArrayLength: 200, maxStringLength: MAX_RESULT, showProxy: true }); } catch (e) { text = `[a value whose text could not be made: ${e && e.message}]`; }
    if (typeof v === 'object' && text.includes('\n    at ')) text = withoutFrames(text); // an error, or one in a list
    return text.length > MAX_RESULT ? text.slice(0, MAX_RESULT) + '… [cut]' : text;
  };

  const richForms = (v) => {
    const out = [];
    let size = 0;
    if (v === null || typeof v !== 'object') return out;
    try {
      const mime = typeof v[Symbol.for('Jupyter.display')] === 'function' ? v[Symbol.for('Jupyter.display')]() : null;
      for (const [type, data] of Object.entries(mime || {})) {
        if (type === 'text/plain') continue;
        const bytes = /^image\/(png|jpeg|gif|webp)$/.test(type) ? Buffer.from(String(data), 'base64') : Buffer.from(typeof data === 'string' ? data : stringify(data));
        if ((size += bytes.length) < 8 << 20) out.push({ mime: type, data: bytes.toString('base64') });
      }
    } catch { /* the value is shown as text, even when its display function fails */ }
    return out;
  };

  // printsWhere says what a cell that has printed nothing has called in place of Node's own functions, if it has called one.
  const { log } = console, console_ = console;
  const printsWhere = (code) => {
    const name = (f) => inspect(f, { depth: 0 }).slice(0, 200);
    if (/\bconsole\b|\bstdout\b/.test(code) && isOwn(proc.stdout, 'write')) {
      return `[process.stdout.write is ${name(proc.stdout.write)}: what it is called with was not printed; delete process.stdout.write makes it Node's again]\n`;
    }
    if (/\bconsole\s*\.\s*log\b/.test(code) && global_.console === console_ && console_.log !== log) {
      return `[console.log is ${name(console_.log)}: what it is called with was not printed]\n`;
    }
    return '';
  };

  const runCell = async (request) => {
    const reply = { __proto__: null, id: request.id, ok: false, exit: 1, rich: [] }; // without a prototype nobody makes it a promise
    // The signal that was to stop the last cell may still be on its way, when that cell
    // ended by itself, or because a process that it waited for died.
    if (request.signalled && !signalled) {
      await new Promise((done) => { onSignal = done; later(done, SIGNAL_MS); });
      onSignal = null;
    }
    // Node may take a signal of then for one of the next script: one that does nothing but last for a moment gets it.
    if (request.signalled || wasInterrupted) {
      try { moment.runInThisContext({ breakOnSigint: true }); } catch { /* it did */ }
    }
    signalled = wasInterrupted = false;
    const interrupted = new Promise((_, reject) => { stop = reject; });
    interrupted.catch(() => {});
    exited = null;
    const began = clock.now();
    let mended = '';
    running = true;
    written = false;
    order = []; lastTo = 1; counted = 0;
    lineCounts[request.n] = request.code.split('\n').length;
    const keepAlive = setInterval(() => {}, 1 << 30);
    try {
      if (readlineUnchanged && /readline/.test(request.code)) refuseQuestions();
      const code = request.language === 'typescript' ? stripTypes(request.code) : request.code;
      const script = compile(request.n, code);
      // As a tick, and not in a promise's job: then process.nextTick comes before promises, as in a file.
      const end = new Promise((done, fail) => nextTick(() => {
        try { done(script.runInThisContext({ breakOnSigint: true, displayErrors: true })); } catch (e) { fail(e); }
      }));
      const value = await Promise.race([end, interrupted]);
      mended = mend();
      if (exited) throw exited;
      if (value && typeof value === 'object' && isOwn(value, '__sandlot_value')) {
        const v = value.__sandlot_value;
        if (v !== undefined) {
          latest._ = v;
          reply.result = format(v);
          reply.rich = richForms(v);
        }
      }
      reply.ok = true;
      reply.exit = 0;
    } catch (e) {
      mended = mended || mend();
      if (exited || e instanceof Exit) {
        reply.exit = (exited || e).code;
        reply.ok = reply.exit === 0;
      } else if ((e && e.interrupted === true && !(e instanceof realError)) || (e && e.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED')) {
        reply.interrupted = wasInterrupted = true;
        reply.exit = 130;
        reply.error = reply.traceback = 'Interrupted';
      } else {
        latest._error = e;
        reply.traceback = trace(e);
        const error = errorLine(e);
        reply.error = error.length > MAX_TRACE / 10 ? error.slice(0, MAX_TRACE / 10) + '… [cut]' : error;
      }
    }
    clearInterval(keepAlive);
    // A promise that was rejected, and an interrupt that came while the code blocked the event loop, belong to this
    // cell, not to the next one: let the loop run, so that their handlers are called now.
    for (let turn = clock.now() - began > FLUSH_MS ? 2 : 1; turn; turn--) await new Promise((done) => nextTurn(done));
    const gone = ownNames.filter((name) => typeof global_[name] !== 'function');
    for (const name of gone) defineGlobal(name, own[name]);
    const elsewhere = written ? '' : printsWhere(request.code);
    running = false;
    stop = null;
    flush();
    const notes = [];
    if (gone.length) notes[notes.length] = `[constructors that this cell has taken away are back: ${gone.join(', ')}]\n`;
    if (mended) notes[notes.length] = `[functions that this cell has taken away are back: ${mended.length > 200 ? mended.slice(0, 200) + '…' : mended}]\n`;
    if (elsewhere) notes[notes.length] = elsewhere;
    for (let n = 0; n < notes.length; n++) {
      const note = bufferFrom(notes[n]);
      countOutput(2, note.length);
      writeAll(2, note);
    }
    if (order.length) {
      order[order.length] = counted;
      reply.order = order;
    }
    return reply;
  };

  nextTick(() => defineGlobal('module', module_)); // Node has put its module of that name there meanwhile
  let buffer = [], queue = Promise.resolve(), failures = 0;
  const input = fs.createReadStream(null, { fd: 3, autoClose: false, highWaterMark: 65536 });
  input.on('data', (chunk) => {
    try {
      for (;;) {
        const i = chunk.indexOf(10);
        if (i < 0) { buffer.push(chunk); return; }
        const line = Buffer.concat([...buffer, chunk.subarray(0, i)]).toString();
        buffer = [];
        chunk = chunk.subarray(i + 1);
        queue = queue.then(() => runCell(parseJSON(line))).then((reply) => {
          failures = 0;
          answer(reply);
        }, (e) => {
          if (++failures > 1) giveUp(); // it is the driver that fails
          answer({ id: parseJSON(line).id, ok: false, exit: 1, error: String(e), traceback: trace(e) });
        }).then(undefined, () => giveUp());
      }
    } catch { giveUp(); }
  });
  input.on('end', () => endProcess(0));
  input.on('error', () => endProcess(CLOSED_PIPES_EXIT));
  answer({ id: 0, ok: true });
})();
