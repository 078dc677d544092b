// How MCP clients are connected to this server.
import { useState } from "preact/hooks";
import { get, json, mcp, segment } from "./api";
import { address } from "./route";
import * as text from "./text";
import { Command, Heading, Loading, Trouble, useLoaded, useTask } from "./ui";

interface Row {
  client: string;
  title: string;
}

interface Guidance extends Row {
  file: Record<string, string>;
  config: Record<string, unknown>;
  text?: string;
  command?: string;
  instructions: string[];
}

export default function Connect({ client }: { client?: string }) {
  const list = useLoaded("", async () => (await get<{ clients: Row[] }>("install")).clients);
  const chosen = client || list.value?.[0]?.client;
  return (
    <>
      <Heading title="Connect" />
      <p>Choose the program that your agent runs in.</p>
      <Trouble of={list.failed} />
      {!list.value && !list.failed && <Loading />}
      <nav aria-label="Clients" class="tabs">
        {list.value?.map((c) => (
          <a key={c.client} data-row href={address(["connect", c.client])} aria-current={c.client === chosen ? "page" : undefined}>
            {c.title}
          </a>
        ))}
      </nav>
      {chosen && <Guide key={chosen} client={chosen} />}
      <Browser />
    </>
  );
}

function Guide({ client }: { client: string }) {
  const g = useLoaded(client, () => get<Guidance>(`install/${segment(client)}?url=${segment(mcp())}`));
  if (g.failed) return <Trouble of={g.failed} />;
  if (!g.value) return <Loading />;
  const v = g.value;
  const config = v.text || JSON.stringify(v.config, null, 2);
  return (
    <section aria-label={v.title}>
      {v.command && (
        <>
          <h2>By a command</h2>
          <Command text={v.command} />
        </>
      )}
      <h2>By its configuration file</h2>
      <dl class="facts">
        {Object.entries(v.file).map(([system, file]) => (
          <div key={system}>
            <dt>{system}</dt>
            <dd>
              <code>{text.name(file)}</code>
            </dd>
          </div>
        ))}
      </dl>
      <Command text={config} />
      <ol>
        {v.instructions.map((s) => (
          <li key={s}>{text.lines(s)}</li>
        ))}
      </ol>
    </section>
  );
}

// Browser makes a link with which another browser logs in, as who asks.
function Browser() {
  const [link, setLink] = useState("");
  const task = useTask();
  const make = () => void task.run(async () => setLink((await json<{ url: string }>("POST", "v1/console/codes")).url));
  return (
    <section aria-labelledby="another">
      <h2 id="another">Another browser</h2>
      <p>A link logs another browser in as you. It counts once, and for a minute.</p>
      <button onClick={make} disabled={task.busy}>
        Make a link
      </button>
      <Trouble of={task.failed} />
      {link && <Command text={link} />}
    </section>
  );
}
