// Third-party MCP servers.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, segment, tool } from "./api";
import { FromRegistry } from "./registry";
import { Prompts } from "./prompts";
import { address, go } from "./route";
import { refused, servers } from "./state";
import { Log } from "./serverlog";
import { Tools, type Tool } from "./servertools";
import * as text from "./text";
import type { Server } from "./types";
import { Actions, confirm, Dialog, Empty, Heading, Loading, State, Trouble, useLoaded, useTask } from "./ui";

export default function Servers({ id }: { id?: string }) {
  const [adding, setAdding] = useState(false);
  const [finding, setFinding] = useState(false);
  const all = servers.value;
  const one = id && all?.find((s) => s.connectionId === id || s.name === id);
  if (id && all && one) return <One server={one} />;
  return (
    <>
      <Heading title="Servers">
        <button onClick={() => setFinding(true)}>Add from the registry</button>
        <button class="primary" onClick={() => setAdding(true)}>
          Add a server
        </button>
      </Heading>
      {id && all && <Trouble of={`There is no server ${text.name(id)}.`} />}
      {!all && <Loading />}
      <Trouble of={refused.value.Servers} />
      {all && !all.length && !refused.value.Servers && (
        <Empty title="No MCP server yet. Your agents use those that you add here beside Sandlot's own tools."
          command="sandlot mcp add time -- uvx mcp-server-time" />
      )}
      <ul class="cards">
        {all?.map((s) => (
          <li key={s.connectionId}>
            <a class="card" href={address(["servers", s.connectionId])} data-row>
              <span class="card-title">{text.name(s.name)}</span>
              <State of={s.state} />
              <span class="quiet">
                {s.toolCount} tools · {s.promptCount} prompts · {s.calls} calls
                {s.latencyMs ? ` · p95 ${Math.round(s.latencyMs.p95)} ms` : ""}
              </span>
              {s.lastError && <span class="why">{text.name(s.lastError.slice(0, 200))}</span>}
            </a>
          </li>
        ))}
      </ul>
      {finding && <FromRegistry close={() => setFinding(false)} />}
      {!!all?.length && <Prompts />}
      {adding && <Add close={() => setAdding(false)} />}
    </>
  );
}

function One({ server: s }: { server: Server }) {
  const id = s.connectionId;
  const details = useLoaded([id, s.state, s.toolCount, ...(s.heldTools ?? []).map((t) => t.remoteName)].join(" "), () => get<{ tools: Tool[]; left_out?: string[] }>("v1/connections/" + segment(id)));
  const [log, setLog] = useState(false);
  const task = useTask();
  const call = (name: string, args: object = {}) => void task.run(() => tool(name, { connectionId: id, ...args }));
  const remove = () =>
    confirm({
      title: `Remove ${text.name(s.name)}?`,
      detail: <p>Its tools go away, and what was installed for it.</p>,
      yes: "Remove",
      danger: true,
      do: () => void task.run(async () => {
        await tool("disconnect_external_mcp", { connectionId: id, delete: true });
        go(["servers"]);
      }),
    });
  const stopped = s.state === "disabled";
  const logsIn = !!s.authUrl && /^https?:\/\//i.test(s.authUrl);
  return (
    <>
      <p>
        <a href={address(["servers"])}>All servers</a>
      </p>
      <Heading title={text.name(s.name)}>
        <State of={s.state} />
        <button disabled={task.busy} onClick={() => call("restart_external_mcp")}>
          {stopped ? "Start" : "Restart"}
        </button>
        {!stopped && (
          <button disabled={task.busy} onClick={() => call("disconnect_external_mcp")}>
            Stop
          </button>
        )}
        <button onClick={() => setLog(true)}>Log</button>
        {!s.configured && (
          <button class="danger" disabled={task.busy} onClick={remove}>
            Remove
          </button>
        )}
      </Heading>
      {task.busy && <p class="quiet" role="status">Working …</p>}
      <Trouble of={task.failed} />
      {s.lastError && !logsIn && <Trouble of={s.lastError} what="Why" />}
      {logsIn && (
        <p class="login-needed">
          <a class="button" href={s.authUrl} target="_blank" rel="noopener noreferrer">
            Log in at {text.name(s.name)}
          </a>
          <span class="quiet"> in a new tab: it says who asks for what. This page goes on by itself afterwards.</span>
        </p>
      )}
      <dl class="facts">
        <dt>Runs</dt>
        <dd>
          <code>{text.name(s.url || [s.command, ...(s.args ?? [])].join(" "))}</code>
        </dd>
        <dt>Calls</dt>
        <dd>
          {s.calls}
          {s.latencyMs ? `, of which half took up to ${Math.round(s.latencyMs.p50)} ms, and 95 % up to ${Math.round(s.latencyMs.p95)} ms` : ""}
        </dd>
        <dt>Restarts</dt>
        <dd>{s.restarts}</dd>
        {!!s.secrets?.length && (
          <>
            <dt>Secrets</dt>
            <dd>{s.secrets.map(text.name).join(", ")}</dd>
          </>
        )}
        {s.configured && (
          <>
            <dt>From</dt>
            <dd>the operator's settings</dd>
          </>
        )}
      </dl>
      <h2>Tools</h2>
      <Trouble of={details.failed} />
      {!details.value && !details.failed && <Loading />}
      {details.value && <Tools server={s} all={details.value.tools ?? []} again={details.again} />}
      {!!details.value?.left_out?.length && (
        <>
          <h2>Left out</h2>
          <ul>
            {details.value.left_out.map((why) => (
              <li key={why}>{text.name(why.slice(0, 500))}</li>
            ))}
          </ul>
        </>
      )}
      <Prompts of={id} />
      {log && <Log id={id} name={s.name} close={() => setLog(false)} />}
    </>
  );
}

const example = `{"command": "uvx", "args": ["mcp-server-time"]}`;

// parse reads a definition as clients' configuration files have it: one server, or a map of servers with one entry.
export function parse(given: string): { name?: string; definition: Record<string, unknown> } {
  const value = JSON.parse(given);
  const map = value.mcpServers ?? value.servers;
  if (map && typeof map === "object") {
    const names = Object.keys(map);
    if (names.length !== 1) throw new Error(`it has ${names.length} servers: paste one`);
    return { name: names[0], definition: map[names[0]] };
  }
  return { definition: value };
}

function Add({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [given, setGiven] = useState("");
  const [seen, setSeen] = useState<Record<string, unknown> | null>(null);
  const task = useTask();
  const first = useRef<HTMLTextAreaElement>(null);
  useEffect(() => first.current?.focus(), []);
  const look = (e: globalThis.Event) => {
    e.preventDefault();
    void task.run(async () => {
      let parsed;
      try {
        parsed = parse(given);
      } catch (e) {
        throw new Error("This is not a definition: " + (e as Error).message);
      }
      const d = parsed.definition;
      const called = name || parsed.name;
      if (!called) throw new Error("Give it a name.");
      if (!d.command && !d.url) throw new Error("It needs a command or a url.");
      setName(called);
      const args: Record<string, unknown> = { name: called };
      for (const key of ["command", "args", "env", "cwd", "url", "headers"]) if (d[key] !== undefined) args[key] = d[key];
      setSeen(args);
    });
  };
  const connect = () =>
    void task.run(async () => {
      const r = await tool<{ connectionId: string }>("connect_external_mcp", seen!);
      close();
      go(["servers", r.connectionId]);
    });
  if (seen) {
    return (
      <Dialog title={"Add " + text.name(name) + "?"} close={close} wide>
        <p>{seen.url ? "It is reached at:" : "In your home session, this runs:"}</p>
        <pre class="output" tabIndex={0}>{text.lines(JSON.stringify(seen, null, 2))}</pre>
        <p class="quiet">Its tools see what your agents send them. Add servers that you trust.</p>
        {task.busy && <p role="status">It starts. A question about it may wait for you under Now.</p>}
        <Trouble of={task.failed} />
        <Actions close={() => setSeen(null)} leave="Back" stay busy={task.busy} act={connect} yes="Add it" />
      </Dialog>
    );
  }
  return (
    <Dialog title="Add a server" close={close} wide>
      <form onSubmit={look}>
        <label for="definition">Its definition, as its documentation has it for other clients</label>
        <textarea ref={first} autofocus id="definition" class="definition" required spellcheck={false} placeholder={example} value={given}
          onInput={(e) => setGiven(e.currentTarget.value)} />
        <label for="server-name">Name (or the one in the definition)</label>
        <input id="server-name" autocomplete="off" value={name} onInput={(e) => setName(e.currentTarget.value)} />
        <Trouble of={task.failed} />
        <Actions yes="Show what it does" />
      </form>
    </Dialog>
  );
}
