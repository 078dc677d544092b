// Logs a user in with the official TypeScript SDKs, and calls a tool. It prints the link, and reads where the browser was sent.
import readline from "node:readline";

const [url, redirect, issuer] = process.argv.slice(2);
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function login(Client, Transport, finish) {
  const kept = {};
  const provider = {
    redirectUrl: redirect,
    state: () => crypto.randomUUID(),
    clientMetadata: { redirect_uris: [redirect], token_endpoint_auth_method: "none", grant_types: ["authorization_code", "refresh_token"] },
    clientInformation: () => ({ client_id: "mcp-client", issuer }),
    tokens: () => kept.tokens,
    saveTokens: (tokens) => void (kept.tokens = tokens),
    saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
    codeVerifier: () => kept.verifier,
    redirectToAuthorization: (link) => console.log(String(link)),
  };
  const transport = new Transport(new URL(url), { authProvider: provider });
  const client = () => new Client({ name: "login", version: "1" });
  await client().connect(transport).then(() => Promise.reject(new Error("no log-in was needed")), (e) => {
    if (e.name !== "UnauthorizedError" && e.constructor.name !== "UnauthorizedError") throw e;
  });
  const got = JSON.parse((await lines.next()).value);
  await finish(transport, new URLSearchParams(Object.entries(got).map(([k, v]) => [k, v[0]])));
  const c = client();
  await c.connect(new Transport(new URL(url), { authProvider: provider }));
  console.log((await c.callTool({ name: "execute_code", arguments: { code: "6*7" } })).structuredContent.result);
  await c.close();
}

const v1 = await import("@modelcontextprotocol/sdk/client/index.js");
const v1http = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
await login(v1.Client, v1http.StreamableHTTPClientTransport, (t, q) => t.finishAuth(q.get("code")));
const v2 = await import("@modelcontextprotocol/client");
await login(v2.Client, v2.StreamableHTTPClientTransport, (t, q) => t.finishAuth(q));
process.exit(0);
