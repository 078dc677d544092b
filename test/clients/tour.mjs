// A tour with the official TypeScript SDKs: the 1.x package and the 2.x client.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const [url, malformed] = process.argv.slice(2);

// With a server whose definitions and results are not valid, all lists and results can be read.
async function readAll(client, call) {
  await call("sandbox_write_file", { path: "malformed.py", content: readFileSync(malformed, "utf8"), session_id: "home" });
  let r = await call("connect_external_mcp", { name: "malformed", command: "python3", args: ["/workspace/malformed.py"] });
  assert.match(r.content[0].text, /tool "hopeless" is left out/);
  const { tools } = await client.listTools();
  assert(tools.some((t) => t.name === "execute_code"));
  const named = (name) => tools.find((t) => t.name.endsWith("_" + name) && t.description?.startsWith("[external:malformed]"));
  for (const name of ["fine", "nulls", "words", "php", "array", "promise", "promised", "icons"]) assert(named(name), name);
  assert.equal((await client.listPrompts()).prompts.length, 3);
  assert.equal((await client.listResources()).resources.length, 2);
  assert((await client.listResourceTemplates()).resourceTemplates.length >= 1);
  const use = (name) => call(named(name).name, {});
  assert.equal((await use("fine")).content[0].text, "fine");
  assert.deepEqual((await use("nulls")).content, []);
  r = await use("words");
  assert.equal(r.isError, true);
  assert.equal(r.content[0].text, "plain");
  assert.equal((await use("php")).content.length, 1);
  assert.match((await use("array")).content[0]?.text ?? JSON.stringify((await use("array")).structuredContent), /1,2/);
  r = await use("icons");
  assert.equal(r.isError, true);
  assert.match(r.content[0].text, /no result/);
  const prompt = (await client.listPrompts()).prompts.find((p) => p.name.endsWith("_fine"));
  assert.equal((await client.getPrompt({ name: prompt.name })).messages.length, 2);
  assert.equal((await client.readResource({ uri: "mem://odd" })).contents[0].text, "5");
  await call("disconnect_external_mcp", { name: "malformed", delete: true });
}

async function tour(name, Client, Transport) {
  const client = new Client({ name: "tour", version: "1" });
  await client.connect(new Transport(new URL(url)));
  const { tools } = await client.listTools();
  assert(tools.some((t) => t.name === "execute_code"));
  const call = (name, args, ...more) => client.callTool({ name, arguments: args }, ...more);
  let r = await call("execute_code", { code: "const x = await Promise.resolve(20); console.log('hello'); x + 1", language: "node", session_id: "new" });
  assert.equal(r.content[0].text, "hello");
  assert.equal(r.structuredContent.result, "21");
  const session_id = r.structuredContent.session_id;
  r = await call("execute_code", { code: "x * 2", language: "node", session_id });
  assert.equal(r.structuredContent.result, "40");
  r = await call("execute_code", { code: "null.x", language: "node", session_id });
  assert.equal(r.isError, true);
  assert.match(r.content[0].text, /TypeError/);
  r = await call("execute_command", { command: "exit 3", session_id });
  assert.equal(r.structuredContent.exit_code, 3);
  r = await call("execute_code", { code: "1", session_id: "nobodys" });
  assert.equal(r.isError, true);
  assert.match(r.content[0].text, /Session not found[^]*get_sessions/);
  await call("stop_session", { session_id });
  await readAll(client, call);
  await client.close();
  console.log("ok", name);
}

const v1 = await import("@modelcontextprotocol/sdk/client/index.js");
const v1http = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
await tour("sdk 1.x", v1.Client, v1http.StreamableHTTPClientTransport);
const v2 = await import("@modelcontextprotocol/client");
await tour("client 2.x", v2.Client, v2.StreamableHTTPClientTransport);
