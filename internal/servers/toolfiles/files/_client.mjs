// The way from code in a sandbox to the tools of third-party MCP servers. Modules of servers use it.
import net from 'node:net';
import { fileURLToPath } from 'node:url';

const SOCKET = fileURLToPath(new URL('./socket', import.meta.url));
const MAX_IDLE = 4;
// Sandlot may say that it is being stopped, and has not made a call. The next server makes it, if that comes while the
// pauses between the tries are shorter than this together, in milliseconds.
const AGAIN_FOR = 60_000;
const idle = [];

export class ToolError extends Error {
  constructor(message, server, tool, code, content) {
    super(message);
    Object.assign(this, { name: 'ToolError', server, tool, code, content });
  }
}

// Idle connections do not keep the process running.
const take = () => {
  while (idle.length) {
    const socket = idle.pop();
    if (socket.destroyed || socket.readyState !== 'open') continue;
    socket.removeAllListeners();
    return socket.ref();
  }
  return null;
};

const give = (socket) => {
  socket.removeAllListeners();
  const drop = () => {
    const at = idle.indexOf(socket);
    if (at >= 0) idle.splice(at, 1);
    socket.destroy();
  };
  socket.on('error', drop).on('end', drop).on('close', drop).on('data', drop);
  if (idle.length >= MAX_IDLE) return drop();
  idle.push(socket.unref());
};

/** Closes the connections that are not in use: the next cell's calls need others. The driver of cells calls this. */
export const endOfCell = () => { for (const s of idle.splice(0)) s.destroy(); };
Object.defineProperty(globalThis, Symbol.for('sandlot.mcp.endOfCell'), { value: endOfCell, configurable: true, writable: true });

const answer = (line, server, tool) => {
  let found;
  try { found = JSON.parse(line); } catch { /* below */ }
  if (found === null || typeof found !== 'object') return { fail: new ToolError('Sandlot sent what is not an answer', server, tool, 'broken'), drop: true };
  if (found.error) {
    const again = found.error.code === 'unavailable' && found.error.retry === true;
    return { fail: new ToolError(found.error.message || 'it failed', server, tool, found.error.code || '', found.error.data), drop: again, again };
  }
  for (const kind of ['result', 'found', 'described']) if (kind in found) return { value: found[kind] };
  return null; // progress
};

const wait = (milliseconds, signal) => new Promise((resolve, reject) => {
  const aborted = () => { clearTimeout(timer); reject(signal.reason); };
  const timer = setTimeout(() => { signal?.removeEventListener('abort', aborted); resolve(); }, milliseconds);
  signal?.addEventListener('abort', aborted, { once: true });
});

const request = async (message, server, tool, { timeout, signal } = {}) => {
  const data = JSON.stringify(message) + '\n';
  const end = timeout === undefined || timeout === null ? Infinity : performance.now() + (timeout + 1) * 1000;
  for (let pause = 100, left = AGAIN_FOR; ; left -= pause, pause = Math.min(2 * pause, 1000)) {
    const { value, fail, again } = await exchange(data, server, tool, end, signal);
    if (!fail) return value;
    if (!again || left <= 0 || performance.now() + pause >= end) throw fail;
    await wait(pause, signal);
  }
};

// Resolves to the value, or what has failed, and whether it may be tried again.
const exchange = (data, server, tool, end, signal) => new Promise((resolve, reject) => {
  if (signal?.aborted) return reject(signal.reason);
  let socket = take(), parts = [], timer, connected = socket !== null, sent = false;
  const finish = (then, value, drop) => {
    clearTimeout(timer);
    signal?.removeEventListener('abort', cancel);
    if (drop || !sent) { socket.removeAllListeners(); socket.on('error', () => {}); socket.destroy(); } else give(socket);
    then(value);
  };
  const cancel = () => finish(reject, signal.reason, true);
  const broken = (e) => finish(reject, connected
    ? new ToolError(`the connection to Sandlot broke before ${tool} of ${server} answered: the tool may have run. Check what it did before you call it again`, server, tool, 'broken')
    : new ToolError(`Sandlot does not answer at ${SOCKET} (${e?.message ?? 'closed'}): the tool was not called`, server, tool, 'unavailable'), true);
  socket ??= net.connect(SOCKET, () => { connected = true; });
  socket.on('error', broken).on('end', broken).on('close', broken);
  socket.on('data', (chunk) => {
    for (let at; (at = chunk.indexOf(10)) >= 0;) {
      const line = Buffer.concat([...parts, chunk.subarray(0, at)]).toString();
      parts = [];
      chunk = chunk.subarray(at + 1);
      const found = answer(line, server, tool);
      if (!found) continue;
      return finish(resolve, found, found.drop || chunk.length > 0);
    }
    if (chunk.length) parts.push(chunk);
  });
  socket.write(data, () => { sent = true; });
  signal?.addEventListener('abort', cancel, { once: true });
  if (end !== Infinity) {
    timer = setTimeout(() => finish(reject, new ToolError(`${tool} of ${server} did not answer in time, and the call was cancelled`, server, tool, 'timeout'), true), Math.max(0, end - performance.now()));
  }
});

const binary = (text, mimeType, uri) => Object.assign(Buffer.from(text ?? '', 'base64'), { mimeType: mimeType ?? '', uri: uri ?? '' });

const value = (block) => {
  switch (block.type) {
    case 'text': return block.text ?? '';
    case 'image': case 'audio': return binary(block.data, block.mimeType);
    case 'resource':
      if (block.resource?.blob !== undefined) return binary(block.resource.blob, block.resource.mimeType, block.resource.uri);
      return block.resource?.text ?? '';
    default: return block;
  }
};

const convert = (result, server, tool) => {
  const blocks = (result.content ?? []).filter((b) => b !== null && typeof b === 'object');
  if (result.isError) {
    const words = blocks.filter((b) => b.type === 'text').map((b) => b.text ?? '').join('\n');
    throw new ToolError(words || 'the tool failed, and says nothing', server, tool, 'tool_error', result);
  }
  if (result.structuredContent !== undefined && result.structuredContent !== null) return result.structuredContent;
  const values = blocks.map(value);
  if (values.length && values.every((v) => typeof v === 'string')) return values.join('\n');
  return values.length === 1 ? values[0] : values.length ? values : null;
};

export const call = (server, tool, args = {}, options = {}) =>
  request({ call: { server, tool, arguments: args, timeout: options.timeout ?? undefined } }, server, tool, options);

export const search = (query, { server, limit } = {}) => request({ search: { query, server, limit } }, server ?? '', 'search');

/** Makes the function of a tool. Modules of servers use it. */
export const tool = (server, remote) => async (args = {}, options = {}) => convert(await call(server, remote, args, options), server, remote);
