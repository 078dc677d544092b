// Processes and ports of a session.
import { useState } from "preact/hooks";
import { tool } from "./api";
import { Asleep } from "./asleep";
import { isAwake } from "./state";
import * as text from "./text";
import type { Process, Session } from "./types";
import { Dialog, Empty, Loading, Trouble, useLoaded, useTask } from "./ui";

export default function Running({ session: s }: { session: Session }) {
  if (!isAwake(s)) return <Asleep session={s} what="Its processes stand still." />;
  return (
    <>
      <Processes session={s} />
      <Ports session={s} />
    </>
  );
}

function Processes({ session: s }: { session: Session }) {
  const id = s.session_id;
  const list = useLoaded(id + s.processes, async () => (await tool<{ processes: Process[] }>("list_processes", { session_id: id })).processes);
  const [shown, setShown] = useState("");
  const task = useTask();
  const stop = (p: Process) =>
    void task.run(async () => {
      await tool("stop_process", { process_id: p.process_id });
      list.again();
    });
  return (
    <section aria-labelledby="processes">
      <div class="row">
        <h2 id="processes">Processes</h2>
        <button class="small" onClick={list.again}>
          Reload
        </button>
      </div>
      <Trouble of={list.failed || task.failed} />
      {!list.value && !list.failed && <Loading />}
      {list.value && !list.value.length && (
        <Empty title="Nothing runs." command={`sandlot exec --session ${id} -- sleep 60`} />
      )}
      {!!list.value?.length && (
        <div class="scrolls" tabIndex={0} role="region" aria-label="List of processes">
          <table>
            <thead>
              <tr>
                <th scope="col">Command</th>
                <th scope="col">Kind</th>
                <th scope="col">State</th>
                <th scope="col"><span class="hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {list.value.map((p) => (
                <tr key={p.process_id}>
                  <td><code>{text.name(p.command)}</code></td>
                  <td class="quiet">{text.name(p.kind)}</td>
                  <td>{text.name(p.status)}</td>
                  <td class="actions">
                    {p.kind === "background" && (
                      <button class="small" data-row onClick={() => setShown(p.process_id)}>
                        Output
                      </button>
                    )}
                    {p.running && (
                      <button class="small" disabled={task.busy} onClick={() => stop(p)}>
                        Stop
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {shown && <Output id={shown} close={() => setShown("")} />}
    </section>
  );
}

function Output({ id, close }: { id: string; close: () => void }) {
  const out = useLoaded(id, () => tool<{ output: string }>("read_process", { process_id: id }));
  return (
    <Dialog title="Output" close={close} wide>
      <Trouble of={out.failed} />
      {!out.value && !out.failed && <Loading />}
      {out.value && <pre class="output" tabIndex={0}>{text.lines(out.value.output) || "(nothing yet)"}</pre>}
      <div class="row end">
        <button onClick={out.again}>Reload</button>
      </div>
    </Dialog>
  );
}

function Ports({ session: s }: { session: Session }) {
  const id = s.session_id;
  const [port, setPort] = useState("8080");
  const [link, setLink] = useState<{ port: number; url: string } | null>(null);
  const task = useTask();
  const expose = (port: number) =>
    void task.run(async () => setLink({ port, url: (await tool<{ url: string }>("expose_port", { session_id: id, port, wait: 0 })).url }));
  const close = (port: number) =>
    void task.run(async () => {
      await tool("close_port", { session_id: id, port });
      setLink(null);
    });
  return (
    <section aria-labelledby="ports">
      <h2 id="ports">Ports</h2>
      <form class="row" onSubmit={(e) => (e.preventDefault(), expose(Number(port)))}>
        <label for="port">Port of a server in the session</label>
        <input id="port" class="short" inputMode="numeric" pattern="[0-9]{1,5}" required value={port}
          onInput={(e) => setPort(e.currentTarget.value)} />
        <button disabled={task.busy}>Make a link</button>
      </form>
      <Trouble of={task.failed} />
      {link && (
        <p>
          <a href={link.url} target="_blank" rel="noopener noreferrer">
            Open port {link.port} in a new tab
          </a>
        </p>
      )}
      {!s.ports?.length && <p class="quiet">No port has a link.</p>}
      <ul class="plainlist">
        {s.ports?.map((p) => (
          <li key={p.port} class="row">
            <span>
              Port {p.port}{p.public && " (public)"} <span class="quiet">until {text.full(p.expires_at)}</span>
            </span>
            <button class="small" data-row onClick={() => expose(p.port)}>
              Link
            </button>
            <button class="small" onClick={() => close(p.port)}>
              Revoke
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
