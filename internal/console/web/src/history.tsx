// Snapshots and copies of a session.
import { useState } from "preact/hooks";
import { get, json, segment } from "./api";
import { address, go } from "./route";
import { sessions, sessionOf, titleOf } from "./state";
import * as text from "./text";
import type { Session, Snapshot } from "./types";
import { confirm, Empty, Loading, Trouble, useLoaded, useTask } from "./ui";

export default function History({ session: s }: { session: Session }) {
  const id = s.session_id;
  const list = useLoaded(id, async () => (await get<{ snapshots: Snapshot[] }>("v1/snapshots")).snapshots ?? []);
  const [name, setName] = useState("");
  const task = useTask();
  const path = "v1/sessions/" + segment(id);
  const own = (list.value ?? []).filter((x) => x.session_id === id || x.name === s.parent?.snapshot);
  const take = (e: globalThis.Event) => {
    e.preventDefault();
    void task.run(async () => {
      await json("POST", path + "/snapshots", name ? { name } : {});
      setName("");
      list.again();
    });
  };
  const fork = () =>
    void task.run(async () => {
      const made = await json<{ copies: string[] }>("POST", path + "/fork", {});
      go(["sessions", made.copies[0]]);
    });
  const restore = (x: Snapshot, into: string) =>
    void task.run(async () => {
      const r = await json<{ session_id: string }>("POST", `v1/snapshots/${segment(x.name)}/restore`, { session_id: into });
      go(["sessions", r.session_id]);
    });
  const back = (x: Snapshot) =>
    confirm({
      title: `Go back to ${text.name(x.name)}?`,
      detail: <p>What this session has now, variables, processes and files, is replaced by what it had then.</p>,
      yes: "Go back",
      danger: true,
      do: () => restore(x, id),
    });
  const remove = (x: Snapshot) =>
    confirm({
      title: `Remove ${text.name(x.name)}?`,
      yes: "Remove",
      danger: true,
      do: () => void task.run(async () => {
        await json("DELETE", "v1/snapshots/" + segment(x.name));
        list.again();
      }),
    });
  return (
    <>
      <Family session={s} />
      <section aria-labelledby="copy">
        <h2 id="copy">Copy</h2>
        <p>A fork is a live copy: it goes on from here with the same variables, processes and files.</p>
        <button disabled={task.busy} onClick={fork}>
          Fork
        </button>
      </section>
      <section aria-labelledby="snapshots">
        <h2 id="snapshots">Snapshots</h2>
        <form class="row" onSubmit={take}>
          <label for="snapshot">Name of a new one (or empty)</label>
          <input id="snapshot" autocomplete="off" pattern="[A-Za-z0-9][A-Za-z0-9._\-]{0,63}" value={name}
            onInput={(e) => setName(e.currentTarget.value)} />
          <button class="primary" disabled={task.busy}>
            {task.busy ? "Working …" : "Take a snapshot"}
          </button>
        </form>
        <Trouble of={task.failed || list.failed} />
        {!list.value && !list.failed && <Loading />}
        {list.value && !own.length && (
          <Empty title="No snapshot of this session." command={`sandlot snapshot create ${id}`} />
        )}
        <ul class="plainlist">
          {own.map((x) => (
            <li key={x.name} class="row">
              <span>
                <strong>{text.name(x.name)}</strong>{" "}
                <span class="quiet">
                  {text.full(x.created_at)} · {text.megabytes(x.size_mb)}
                </span>
              </span>
              <span class="row">
                <button class="small" data-row disabled={task.busy} onClick={() => restore(x, "new")}>
                  Fork from here
                </button>
                <button class="small" disabled={task.busy} onClick={() => back(x)}>
                  Go back
                </button>
                <button class="small" disabled={task.busy} onClick={() => remove(x)}>
                  Remove
                </button>
              </span>
            </li>
          ))}
        </ul>
      </section>
    </>
  );
}

function Family({ session: s }: { session: Session }) {
  const children = (sessions.value ?? []).filter((x) => x.parent?.session_id === s.session_id);
  const from = s.parent?.session_id;
  if (!from && !s.parent?.snapshot && !children.length) return null;
  const link = (id: string) => {
    const x = sessionOf(id);
    return x ? <a href={address(["sessions", id, "history"])}>{text.name(titleOf(x))}</a> : <code>{id}</code>;
  };
  return (
    <section aria-labelledby="family">
      <h2 id="family">{from || s.parent?.snapshot ? "Where it comes from" : "Forks"}</h2>
      <p>
        {s.parent?.snapshot && <>It was made of the snapshot {text.name(s.parent.snapshot)}. </>}
        {from && <>Its parent is {link(from)}. </>}
        {!!children.length && "Copies of it: "}
        {children.map((x, i) => (
          <span key={x.session_id}>
            {i > 0 && ", "}
            {link(x.session_id)}
          </span>
        ))}
      </p>
    </section>
  );
}
