// Runs commands by the library of @anthropic-ai/sandbox-runtime, and takes the time of each. Its argument is the path
// of the library. Reads a command a line; the empty one initializes the library again. Answers each with a line.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const { SandboxManager } = await import(process.argv[2]);
const settings = {
  network: { allowedDomains: [], deniedDomains: [] },
  filesystem: { denyRead: [], allowWrite: [process.cwd()], denyWrite: [] },
};

const run = async (command) => {
  const wrapped = await SandboxManager.wrapWithSandbox(command);
  const child = spawn(wrapped, { shell: true, stdio: ["ignore", "pipe", "inherit"] });
  let text = "";
  child.stdout.on("data", (data) => (text += data));
  const code = await new Promise((done) => child.on("close", done));
  SandboxManager.cleanupAfterCommand?.();
  if (code !== 0) throw new Error(`${command} ended with ${code}`);
  return text;
};

for await (const line of createInterface({ input: process.stdin })) {
  const began = process.hrtime.bigint();
  let text = "";
  if (line === "") await SandboxManager.initialize(settings);
  else text = await run(line);
  const took = Number(process.hrtime.bigint() - began);
  console.log(JSON.stringify({ took: [took], length: text.length, end: text.slice(-20) }));
}
await SandboxManager.reset();
process.exit(0);
