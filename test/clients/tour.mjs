// A tour with the official TypeScript SDKs: the 1.x package and the 2.x client.
import assert from "node:assert/strict";

const [url] = process.argv.slice(2);

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
  await assert.rejects(call("execute_code", { code: "1", session_id: "nobodys" }), /Session not found/);
  await call("stop_session", { session_id });
  await client.close();
  console.log("ok", name);
}

const v1 = await import("@modelcontextprotocol/sdk/client/index.js");
const v1http = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
await tour("sdk 1.x", v1.Client, v1http.StreamableHTTPClientTransport);
const v2 = await import("@modelcontextprotocol/client");
await tour("client 2.x", v2.Client, v2.StreamableHTTPClientTransport);
