// Sandlot's Node driver: runs cells that the agent sends on fd 3 in
// this process's global scope, and answers on fd 4. It needs nothing but Node.
'use strict';
(() => {
  const fs = require('fs'), vm = require('vm'), util = require('util'), path = require('path');
  const { createRequire } = require('module');
  const acorn = require('internal/deps/acorn/acorn/dist/acorn');
  const walk = require('internal/deps/acorn/acorn-walk/dist/walk');
  const proc = process, realExit = process.exit.bind(process), endProcess = process.reallyExit.bind(process), realError = Error;
  const stringify = JSON.stringify, parseJSON = JSON.parse, inspect = util.inspect;
  const MAX_RESULT = 4 << 20, MAX_TRACE = 200000;
  const CLOSED = 113; // how this process ends when the code has closed what it needs (interp.go)

  // The user's global scope looks as in the REPL.
  const base = createRequire(path.join(proc.cwd(), 'sandlot.js'));
  const hide = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  const module_ = { exports: {}, paths: base.resolve.paths('x') || [] };
  hide('require', base); hide('module', module_); hide('exports', module_.exports);
  hide('__filename', path.join(proc.cwd(), 'code.js')); hide('__dirname', proc.cwd());
  proc.argv.length = 1;

  const { writeSync } = fs;
  const answer = (reply) => {
    let data = Buffer.from(stringify(reply) + '\n');
    while (data.length) {
      try { data = data.subarray(writeSync(4, data)); } catch (e) { if (e.code !== 'EAGAIN') endProcess(CLOSED); }
    }
  };

  // Output is buffered while a cell runs: each write costs a sandbox as much as a
  // hundred lines. The first ones of every 50 ms go out at once, so that what is
  // said before long work is heard; then each 32 together, since nothing can be
  // written while the code blocks the event loop in silence; what is fewer with the
  // first write 50 ms later, when the code waits for something, before anything else
  // can write to the same place, and at the end.
  let running = false;
  const FLUSH_MS = 50, FLUSH_BYTES = 65536, AT_ONCE = 100, TOGETHER = 32;
  const SIGNAL_MS = 250;
  const clock = performance, later = setTimeout, soon = setImmediate, never = new Int32Array(new SharedArrayBuffer(4));
  const writeAll = (fd, data) => {
    while (data.length) {
      try { data = data.subarray(writeSync(fd, data)); } catch (e) {
        if (e.code !== 'EAGAIN') return;
        Atomics.wait(never, 0, 0, 1);
      }
    }
  };
  const buffered = (stream, fd) => {
    let text = '', parts = [], size = 0, since = -Infinity, count = 0, timer = null;
    const flush = () => {
      if (!size) return;
      if (text) parts.push(Buffer.from(text));
      const data = parts.length === 1 ? parts[0] : Buffer.concat(parts);
      text = ''; parts = []; size = 0;
      writeAll(fd, data);
    };
    stream._writev = null;
    stream._write = (chunk, encoding, done) => {
      if (typeof chunk === 'string' && (encoding === 'utf8' || encoding === 'utf-8')) text += chunk;
      else {
        if (text) parts.push(Buffer.from(text));
        text = '';
        parts.push(typeof chunk === 'string' ? Buffer.from(chunk, encoding) : Buffer.from(chunk));
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
  const ahead = (object, name, when) => {
    const inner = object[name];
    if (typeof inner !== 'function') return;
    const outer = { [name](...args) { if (!when || when(...args)) flush(); return Reflect.apply(inner, this, args); } }[name];
    object[name] = Object.assign(outer, inner);
  };
  const { internalBinding } = require('internal/test/binding');
  ahead(internalBinding('spawn_sync'), 'spawn');
  ahead(internalBinding('process_wrap').Process.prototype, 'spawn');
  for (const name of ['write', 'writeSync', 'writev', 'writevSync', 'writeFile', 'writeFileSync', 'appendFileSync']) {
    ahead(fs, name, (to) => to === 1 || to === 2 || typeof to === 'string' && /^\/(dev|proc)\//.test(to));
  }
  for (const name of ['abort', 'kill', 'dlopen']) ahead(proc, name);
  require('module').syncBuiltinESMExports();
  proc.on('exit', flush);

  // import() finds what require finds too: packages that were installed after they
  // had been asked for, and those of NODE_PATH.
  const load = async (name, options) => {
    try { return await import(name, options); } catch (e) {
      if (!e || e.code !== 'ERR_MODULE_NOT_FOUND' || !/^[@\w]/.test(String(name)) || /^\w+:/.test(String(name))) throw e;
      let file;
      try { file = base.resolve(String(name)); } catch { throw e; }
      return import(require('url').pathToFileURL(file));
    }
  };
  hide('__sandlot_import', load);

  // Nobody can answer a question. One that was asked would wait for ever.
  const unanswered = (name) => new Error(`${name} has nobody to answer it here: put the value into the code, or read it from a file`);
  for (const name of ['prompt', 'confirm']) hide(name, () => { throw unanswered(name + '()'); });
  let patient = true;
  const refuseQuestions = () => {
    patient = false;
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

  // TypeScript's types are taken out, with each line left where it was but for what
  // is more than types, such as enum.
  const strip = (code) => {
    const { stripTypeScriptTypes } = require('module');
    if (!stripTypeScriptTypes) {
      throw new Error(`TypeScript needs Node 22.13 or newer, and this is ${proc.version}: write JavaScript, or install a newer Node`);
    }
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

  // names that a pattern declares
  const names = (p, out = []) => {
    if (!p) return out;
    switch (p.type) {
      case 'Identifier': out.push(p.name); break;
      case 'ObjectPattern': p.properties.forEach((q) => names(q.type === 'RestElement' ? q.argument : q.value, out)); break;
      case 'ArrayPattern': p.elements.forEach((q) => names(q, out)); break;
      case 'AssignmentPattern': names(p.left, out); break;
      case 'RestElement': names(p.argument, out); break;
    }
    return out;
  };

  const imported = (s) => {
    // `import a, {b as c}, * as d from 'x'` becomes assignments from await import.
    const source = `await __sandlot_import(${s.source.raw})`;
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

  // rewrite makes of a cell the body of an async function whose
  // top-level declarations are globals, and whose last expression is returned.
  // No line moves.
  const rewrite = (code) => {
    const ast = acorn.parse(code, { ecmaVersion: 'latest', sourceType: 'script', allowAwaitOutsideFunction: true,
      allowImportExportEverywhere: true, allowHashBang: true, allowReturnOutsideFunction: false });
    const edits = [], declared = [], functions = [];
    const edit = (start, end, text) => edits.push({ start, end, text });
    const lines = (start, end) => '\n'.repeat(code.slice(start, end).split('\n').length - 1);
    walk.simple(ast, { ImportExpression(e) { edit(e.start, e.start + 'import'.length, '__sandlot_import'); } });
    const last = ast.body[ast.body.length - 1];
    for (const s of ast.body) {
      switch (s.type) {
        case 'VariableDeclaration': {
          for (const d of s.declarations) names(d.id, declared);
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
          const r = imported(s);
          declared.push(...r.declared);
          edit(s.start, s.end, r.code + lines(s.start, s.end));
          break;
        }
        case 'ExportNamedDeclaration': case 'ExportDefaultDeclaration': case 'ExportAllDeclaration':
          throw new SyntaxError('export has no meaning here: top-level names are kept for the next call anyway');
        case 'ExpressionStatement':
          if (s === last) {
            const end = s.expression.end;
            edit(s.start, s.start, ';return {__sandlot_value: (0, (');
            edit(s.end, s.end, '))};');
            if (code[s.end - 1] === ';') edit(s.end - 1, s.end, '');
          }
          break;
      }
    }
    // Edits at one place keep their order.
    edits.sort((a, b) => a.start - b.start || a.end - b.end);
    let out = '', at = 0;
    for (const e of edits) { out += code.slice(at, e.start) + e.text; at = e.end; }
    out += code.slice(at);
    if (out.startsWith('#!')) out = '//' + out;
    const hoisted = functions.map((f) => `globalThis[${stringify(f)}] = ${f};`).join('');
    return { head: `(async () => {${hoisted}`, code: out, tail: '\n})()', declared };
  };

  const filename = (id) => `<code ${id}>`;

  const compile = (id, code) => {
    let r;
    try { r = rewrite(code); } catch (e) {
      if (!(e instanceof realError) || e.name !== 'SyntaxError') throw e;
      // V8 says it better, and with the line, unless it missed the end.
      try { new vm.Script('(async () => {\n' + code + '\n})', { filename: filename(id), lineOffset: -1 }); } catch (v8) {
        const line = Number((/^<code \d+>:(\d+)/.exec(String(v8.stack)) || [])[1]);
        if (line <= code.split('\n').length) throw v8;
      }
      const at = e.loc ? `\n    at ${filename(id)}:${e.loc.line}:${e.loc.column + 1}` : '';
      const text = e.loc ? `${filename(id)}:${e.loc.line}\n${code.split('\n')[e.loc.line - 1] ?? ''}\n${' '.repeat(e.loc.column)}^\n\n` : '';
      const err = new SyntaxError(e.message.replace(/ \(\d+:\d+\)$/, ''));
      err.stack = `${text}SyntaxError: ${err.message}${at}`;
      throw err;
    }
    const options = { filename: filename(id), columnOffset: -r.head.length };
    const loader = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
    if (loader) options.importModuleDynamically = loader;
    const script = new vm.Script(r.head + r.code + r.tail, options);
    for (const n of r.declared) {
      if (!Object.prototype.hasOwnProperty.call(globalThis, n)) {
        Object.defineProperty(globalThis, n, { value: undefined, writable: true, configurable: true, enumerable: true });
      }
    }
    return script;
  };

  class Exit { constructor(code) { this.code = code; } }

  // What interrupts an await, and process.exit.
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
  const late = (e) => {
    if (e instanceof Exit) return;
    proc.stderr.write('Uncaught (in a callback or promise) ' + trace(e) + '\n');
  };
  proc.on('uncaughtException', late);
  proc.on('unhandledRejection', late);

  const own = /\n\s+at .*(\[eval\]|node:internal|node:vm|internal\/|at new Script).*/g;
  let lineCount = Infinity;
  const trace = (e) => {
    let text;
    try {
      text = e instanceof realError || (e && typeof e.stack === 'string') ? String(e.stack) : 'Uncaught ' + inspect(e);
    } catch { text = 'an error whose text could not be made'; }
    text = text.replace(own, '').replace(/\n\s+at [^\n]*\(?(evalmachine|\[eval)[^\n]*/g, '');
    // The last frame is this driver's call of the code.
    text = text.replace(/\n\s+at <code \d+>:(\d+):\d+(?=\n|$)/g, (frame, line) => (Number(line) > lineCount ? '' : frame));
    if (e && e.cause !== undefined && e instanceof realError) text += '\n[cause]: ' + trace(e.cause);
    return text.length > MAX_TRACE ? text.slice(0, MAX_TRACE) + '\n… [cut]' : text;
  };

  const show = (v) => {
    let text;
    try { text = inspect(v, { depth: 4, maxArrayLength: 200, maxStringLength: MAX_RESULT }); } catch (e) { text = `[a value whose text could not be made: ${e && e.message}]`; }
    return text.length > MAX_RESULT ? text.slice(0, MAX_RESULT) + '… [cut]' : text;
  };

  const rich = (v) => {
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
    } catch { /* a broken display is no result's fault */ }
    return out;
  };

  const runCell = async (request) => {
    const reply = { id: request.id, ok: false, exit: 1, rich: [] };
    // The signal that was to stop the cell before may still be on its way: that cell
    // ended by itself, or by the death of a process that it waited for.
    if (request.signalled && !signalled) {
      await new Promise((done) => { onSignal = done; later(done, SIGNAL_MS); });
      onSignal = null;
    }
    signalled = false;
    const interrupted = new Promise((_, reject) => { stop = reject; });
    interrupted.catch(() => {});
    exited = null;
    const began = clock.now();
    running = true;
    lineCount = request.code.split('\n').length;
    const keep = setInterval(() => {}, 1 << 30);
    try {
      if (patient && /readline/.test(request.code)) refuseQuestions();
      const code = request.language === 'typescript' ? strip(request.code) : request.code;
      const script = compile(request.n, code);
      const end = script.runInThisContext({ breakOnSigint: true, displayErrors: true });
      const value = await Promise.race([end, interrupted]);
      if (exited) throw exited;
      if (value && typeof value === 'object' && Object.prototype.hasOwnProperty.call(value, '__sandlot_value')) {
        const v = value.__sandlot_value;
        if (v !== undefined) {
          hide('_', v);
          reply.result = show(v);
          reply.rich = rich(v);
        }
      }
      reply.ok = true;
      reply.exit = 0;
    } catch (e) {
      if (exited || e instanceof Exit) {
        reply.exit = (exited || e).code;
        reply.ok = reply.exit === 0;
      } else if ((e && e.interrupted === true && !(e instanceof realError)) || (e && e.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED')) {
        reply.interrupted = true;
        reply.exit = 130;
        reply.error = reply.traceback = 'Interrupted';
      } else {
        reply.traceback = trace(e);
        const error = e instanceof realError ? `${e.name}: ${e.message}` : inspect(e);
        reply.error = error.length > MAX_TRACE / 10 ? error.slice(0, MAX_TRACE / 10) + '… [cut]' : error;
      }
    }
    clearInterval(keep);
    // An interrupt that came while the code did not let the event loop turn is this
    // cell's, not the next one's.
    if (clock.now() - began > FLUSH_MS) for (let turn = 0; turn < 2; turn++) await new Promise((done) => soon(done));
    running = false;
    stop = null;
    flush();
    return reply;
  };

  let buffer = [], queue = Promise.resolve();
  const input = fs.createReadStream(null, { fd: 3, autoClose: false, highWaterMark: 65536 });
  input.on('data', (chunk) => {
    for (;;) {
      const i = chunk.indexOf(10);
      if (i < 0) { buffer.push(chunk); return; }
      const line = Buffer.concat([...buffer, chunk.subarray(0, i)]).toString();
      buffer = [];
      chunk = chunk.subarray(i + 1);
      queue = queue.then(() => runCell(parseJSON(line))).then(answer, (e) => {
        answer({ id: parseJSON(line).id, ok: false, exit: 1, error: String(e), traceback: trace(e) });
      });
    }
  });
  input.on('end', () => endProcess(0));
  input.on('error', () => endProcess(CLOSED));
  answer({ id: 0, ok: true });
})();
