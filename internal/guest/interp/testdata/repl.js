// Runs the cells of a book in Node's REPL, each as one input: the reference of TestNodeCellsBesideREPL.
//
// The arguments are the files with the list of cells, for the list of what they show, and those that are standard output
// and standard error.
'use strict';
const fs = require('fs'), repl = require('repl'), { PassThrough, Writable } = require('stream');
const [cellsFile, answerFile, outFile, errFile] = process.argv.slice(2);
const later = setTimeout, nextTurn = setImmediate;

const shown = [];
let cell, settle, outAt = 0, errAt = 0;

const output = new Writable({
  decodeStrings: false,
  write(chunk, encoding, done) {
    const text = String(chunk);
    if (!text) { // a prompt
      done();
      return;
    }
    if (/^Uncaught/m.test(text)) {
      cell.errors.push(text);
      later(settle, 50); // unless the error is one of a callback, and the cell goes on
    } else cell.value += text;
    done();
  },
});
const server = repl.start({ prompt: '', input: new PassThrough(), output, terminal: false, useColors: false, useGlobal: true, ignoreUndefined: true });

const evaluate = server.eval;
server.eval = (code, context, file, done) => evaluate.call(server, code, context, file, (error, value) => {
  if (error instanceof repl.Recoverable) { // nobody completes the code
    output.write(`Uncaught ${error.err.name}: ${error.err.message}\n`);
    done(null, undefined);
    return;
  }
  if (!error) cell.ended = true;
  done(error, value);
  settle();
});

const end = (exit) => {
  const out = fs.readFileSync(outFile), err = fs.readFileSync(errFile);
  shown.push({ ...cell, exit, out: out.subarray(outAt).toString(), err: err.subarray(errAt).toString() });
  [outAt, errAt] = [out.length, err.length];
};

process.on('exit', (code) => {
  if (shown.length < cells.length) end(code);
  fs.writeFileSync(answerFile, JSON.stringify(shown));
});

const cells = JSON.parse(fs.readFileSync(cellsFile));
(async () => {
  for (const code of cells) {
    cell = { value: '', errors: [], ended: false };
    const settled = new Promise((done) => { settle = done; });
    nextTurn(() => server.emit('line', code));
    await settled;
    for (let turn = 0; turn < 2; turn++) await new Promise((done) => nextTurn(done)); // promises that were rejected
    end(0);
  }
  process.exit(0);
})();
