// The HTTP API, of which the console is a client as any other.

export interface Problem {
  title: string;
  status: number;
  detail: string;
  recovery_suggestions?: string[];
}

export class Failure extends Error {
  constructor(readonly problem: Problem) {
    super(problem.detail);
  }
}

export interface Me {
  principal: string;
  name: string;
  roles: string[];
  version: string;
  login: boolean;
}

// The key is the half of a log-in's secret that is not in the cookie: the browser sends the cookie to each port of this
// host, but what is stored here is of this very origin. All tabs have it, as they have the cookie.
const keyName = "sandlot-key " + location.pathname;
let ownKey = "";

export function key() {
  try {
    return localStorage.getItem(keyName) ?? "";
  } catch {
    return ownKey; // the browser stores nothing
  }
}

export function keep(key: string) {
  ownKey = key;
  try {
    if (key) localStorage.setItem(keyName, key);
    else localStorage.removeItem(keyName);
  } catch {
    // this tab has it
  }
}

// whenOthersLogIn calls f when another tab of the browser has logged in.
export function whenOthersLogIn(f: () => void) {
  addEventListener("storage", (e) => {
    if (e.key === keyName && e.newValue) f();
  });
}

// onUnauthorized is called when the server does not know any more who asks.
let onUnauthorized = () => {};

export function whenUnauthorized(f: () => void) {
  onUnauthorized = f;
}

// principal is the path of who asks. Who asks for it looks at the answer.
export const principal = "v1/principal";

// at returns the address of a path of the server, which may be below a proxy's folder.
export const at = (path: string) => "../" + path;

// mcp is the address at which MCP clients reach the server. The console's own name on this machine is for browsers.
export function mcp() {
  const address = new URL(at("mcp"), location.href);
  if (address.hostname === "console.localhost") address.hostname = "localhost";
  address.hash = "";
  return address.href;
}

async function failure(r: Response): Promise<Failure> {
  let p: Problem = { title: "HTTP_" + r.status, status: r.status, detail: `the server answered with ${r.status}` };
  try {
    p = { ...p, ...(await r.json()) };
  } catch {
    // not a problem of the API, but of a proxy
  }
  return new Failure(p);
}

export async function send(method: string, path: string, body?: BodyInit, headers: Record<string, string> = {}) {
  let r: Response;
  // A connection that is gone without a word must not look like a slow one for ever.
  const signal = path === principal ? AbortSignal.timeout(10_000) : undefined;
  try {
    r = await fetch(at(path), {
      method, body, signal, cache: "no-store", headers: { "Sandlot-Console": key() || "1", ...headers },
    });
  } catch {
    throw new Failure({ title: "OFFLINE", status: 0, detail: "the server cannot be reached" });
  }
  if (r.ok) return r;
  const f = await failure(r);
  if (r.status === 401 && path !== principal && !path.startsWith("console/")) onUnauthorized();
  throw f;
}

export async function json<T>(method: string, path: string, body?: unknown): Promise<T> {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const r = await send(method, path, text, text === undefined ? {} : { "Content-Type": "application/json" });
  return r.status === 204 ? (undefined as T) : ((await r.json()) as T);
}

export const get = <T>(path: string) => json<T>("GET", path);

interface Content {
  type: string;
  text?: string;
}

// tool calls a tool. A result that says that it failed is thrown.
export async function tool<T>(name: string, args: object): Promise<T> {
  const r = await json<T & { isError?: boolean; content?: Content[] }>("POST", "v1/tools/" + name, args);
  if (!r.isError) return r;
  const detail = (r.content ?? []).map((c) => c.text ?? "").join("\n");
  throw new Failure({ title: "FAILED", status: 200, detail: detail || "it failed" });
}

export const segment = encodeURIComponent;

const hex = (b: ArrayBuffer) => [...new Uint8Array(b)].map((x) => x.toString(16).padStart(2, "0")).join("");

// signedFile returns the address at which this browser alone can load a file for a minute, without a header; undefined: the
// page cannot sign it, as without TLS on another machine than this one.
export async function signedFile(session: string, path: string): Promise<string | undefined> {
  if (!key() || !crypto.subtle) return undefined;
  const encode = (s: string) => new TextEncoder().encode(s);
  const hash = hex(await crypto.subtle.digest("SHA-256", encode(key())));
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const secret = await crypto.subtle.importKey("raw", encode(hash), algorithm, false, ["sign"]);
  const until = Math.floor(Date.now() / 1000) + 60;
  const plain = `/v1/sessions/${session}/files/` + path.replace(/^\/+/, "");
  const signature = hex(await crypto.subtle.sign("HMAC", secret, encode(until + "\n" + plain)));
  return at(filePath(session, path)) + `?console-until=${until}&console-signature=${signature}`;
}

export const filePath = (session: string, path: string) =>
  `v1/sessions/${segment(session)}/files/` + path.replace(/^\/+/, "").split("/").map(segment).join("/");

export const folderPath = (session: string, path: string) => filePath(session, path).replace("/files/", "/folders/");

export const movePath = (session: string) => `v1/sessions/${segment(session)}/move`;
