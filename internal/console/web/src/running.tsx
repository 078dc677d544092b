// Processes and ports of a session.
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, get, json, segment, tool, type Problem } from "./api";
import { live } from "./live";
import { Asleep } from "./asleep";
import { isAwake } from "./state";
import * as text from "./text";
import type { PortRow, Process, Session } from "./types";
import { confirm, Dialog, Empty, Loading, Trouble, useLoaded, useTask } from "./ui";

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
  const list = useLoaded(id + s.processes, async () =>
    (await get<{ processes: Process[] }>(processPath(id))).processes);
  const [shown, setShown] = useState<Process | null>(null);
  const task = useTask();
  const stop = (p: Process) =>
    confirm({
      title: "End this process?",
      detail: <pre class="output">{text.lines(p.command)}</pre>,
      yes: "End it",
      danger: true,
      do: () => void task.run(async () => {
        await json("POST", processPath(id, p) + "/signal", {});
        list.again();
      }),
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
          <table class="folds">
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
                      <button class="small" data-row aria-label={"Output of " + text.name(p.command)} onClick={() => setShown(p)}>
                        Output
                      </button>
                    )}
                    {p.running && (
                      <button class="small" disabled={task.busy} onClick={() => stop(p)}>
                        End
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {shown && <Output session={id} process={shown} close={() => (setShown(null), list.again())} />}
    </section>
  );
}

const processPath = (session: string, p?: Process) =>
  `v1/sessions/${segment(session)}/processes` + (p ? "/" + segment(p.process_id) : "");

// maxShown is how many characters of an output are shown: its end.
const maxShown = 200_000;

interface End {
  exit_code?: number;
  killed_by?: string;
  reason?: string;
}

// Output shows what a process prints, as it prints it, and gives it input.
function Output({ session, process: p, close }: { session: string; process: Process; close: () => void }) {
  const [out, setOut] = useState("");
  const [cut, setCut] = useState(false);
  const [end, setEnd] = useState<End | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  const [line, setLine] = useState("");
  const task = useTask();
  const view = useRef<HTMLPreElement>(null);
  useEffect(() => {
    let decoder = new TextDecoder();
    let cursor = 0;
    let pending = "";
    let timer = 0;
    const show = () => {
      timer = 0;
      const more = pending;
      pending = "";
      setOut((was) => {
        const all = was + more;
        if (all.length > maxShown) setCut(true);
        return all.slice(-maxShown);
      });
    };
    const c = live.open("process", { session_id: session, process_id: p.process_id, cursor }, {
      data: (m: { cursor: number }) => {
        if (m.cursor > cursor) setCut(true); // what is between is not kept any more
        cursor = m.cursor;
        decoder = new TextDecoder();
        c.args = { ...c.args, cursor };
      },
      bytes: (b) => {
        pending = (pending + decoder.decode(b, { stream: true })).slice(-maxShown);
        cursor += b.length;
        c.args = { ...c.args, cursor };
        c.took("bytes", b.length);
        timer ||= setTimeout(show, 50);
      },
      closed: (error: Problem | undefined, data: End) => {
        if (timer) clearTimeout(timer);
        show();
        if (error) setFailed(new Failure(error));
        else setEnd(data ?? {});
      },
    });
    return () => (clearTimeout(timer), c.close());
  }, [session, p.process_id]);
  // The end stays in view, unless somebody has scrolled up.
  const atEnd = useRef(true);
  useEffect(() => {
    if (view.current && atEnd.current) view.current.scrollTop = view.current.scrollHeight;
  }, [out]);
  const give = (data: string, eof = false) =>
    void task.run(async () => {
      await json("POST", processPath(session, p) + "/input", { data, eof });
      setLine("");
    });
  const signal = (name: string) => void task.run(() => json("POST", processPath(session, p) + "/signal", { signal: name }));
  return (
    <Dialog title="Output" close={close} wide>
      <p class="quiet"><code>{text.name(p.command)}</code></p>
      <Trouble of={failed || task.failed} />
      {cut && <p class="quiet">This is the end of it.</p>}
      <pre ref={view} class="output" tabIndex={0} aria-label="What it prints"
        onScroll={(e) => (atEnd.current = e.currentTarget.scrollHeight - e.currentTarget.scrollTop - e.currentTarget.clientHeight < 8)}>
        {text.lines(out) || "(nothing yet)"}
      </pre>
      <p role="status" class="quiet">{end && ended(end)}</p>
      {!end && !failed && (
        <form class="row" onSubmit={(e) => (e.preventDefault(), give(line + "\n"))}>
          <label for="process-input">Input</label>
          <input id="process-input" class="grows" autocomplete="off" value={line}
            onInput={(e) => setLine(e.currentTarget.value)} />
          <button class="small" disabled={task.busy}>Send</button>
          <button type="button" class="small" disabled={task.busy} onClick={() => give("", true)}>End of input</button>
          <button type="button" class="small" disabled={task.busy} onClick={() => signal("INT")}>Interrupt</button>
        </form>
      )}
    </Dialog>
  );
}

function ended(e: End) {
  if (e.exit_code === undefined) return text.name(e.reason || "It has ended.");
  return `It has ended with exit code ${e.exit_code}` + (e.killed_by ? ` (limit: ${text.name(e.killed_by)})` : "");
}

function Ports({ session: s }: { session: Session }) {
  const id = s.session_id;
  const [port, setPort] = useState("8080");
  const [link, setLink] = useState<{ port: number; url: string } | null>(null);
  const task = useTask();
  const list = useLoaded(id + s.processes + (s.ports ?? []).map((p) => p.port), async () =>
    (await get<{ ports: PortRow[] }>(`v1/sessions/${segment(id)}/ports`)).ports);
  // No event tells that a program listens.
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && list.again(), 5000);
    return () => clearInterval(timer);
  }, [id]);
  const unexposed = (list.value ?? []).filter((p) => p.listening && !p.exposed);
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
      {!!unexposed.length && (
        <ul class="plainlist" aria-label="Ports without a link">
          {unexposed.map((p) => (
            <li key={p.port} class="row">
              <span>
                Port {p.port} <span class="quiet">{text.name(p.program ?? "")} listens, without a link</span>
              </span>
              <button class="small" data-row disabled={task.busy} aria-label={"Expose port " + p.port}
                onClick={() => expose(p.port)}>
                Expose
              </button>
            </li>
          ))}
        </ul>
      )}
      <Trouble of={list.failed} />
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
