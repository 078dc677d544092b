// The last results of code and commands in a session: texts, plots, tables.
import { useEffect, useState } from "preact/hooks";
import { get, segment } from "./api";
import { imageType } from "./files";
import { now } from "./state";
import { live } from "./live";
import * as text from "./text";
import type { Event, Result, ResultBlock, Session } from "./types";
import { Empty, Loading, Trouble } from "./ui";

const keep = 20;

export default function Results({ session: s }: { session: Session }) {
  const id = s.session_id;
  const [list, setList] = useState<Result[] | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  useEffect(() => {
    let over = false;
    let newest = 0;
    let asking = false;
    let again = false;
    const load = async () => {
      again = asking;
      if (asking) return;
      asking = true;
      try {
        const r = await get<{ results: Result[] }>(`v1/sessions/${segment(id)}/results?after=${newest}`);
        if (over) return;
        newest = r.results.at(-1)?.id ?? newest;
        setFailed(null);
        setList((was) => [...(was ?? []), ...r.results].slice(-keep));
      } catch (e) {
        if (!over) setFailed(e);
      }
      asking = false;
      if (again && !over) void load();
    };
    void load();
    // Whatever has run tells by an event that it has ended.
    const c = live.open("events", { session: id, limit: 1 }, {
      data: (e: Event) => {
        if (e.operation === "code.execute" || e.operation === "shell.execute") void load();
      },
      lost: () => void load(),
    });
    return () => {
      over = true;
      c.close();
    };
  }, [id]);
  return (
    <section aria-label="Results">
      <Trouble of={failed} />
      {!list && !failed && <Loading />}
      {list && !list.length && (
        <Empty title="Nothing has run here since the server started.">
          <p>What code and commands of an agent return appears here, with plots and tables.</p>
        </Empty>
      )}
      {[...(list ?? [])].reverse().map((r) => <One key={r.id} of={r} />)}
    </section>
  );
}

function One({ of: r }: { of: Result }) {
  return (
    <article class="card result" aria-label={`Result ${r.id}`}>
      <header class="row">
        <span>
          <strong>{text.name(r.tool)}</strong> {r.failed && <span class="failed">✗ failed</span>}
        </span>
        <span class="quiet">{text.ago(r.time, now.value)}</span>
      </header>
      {r.input && (
        <details>
          <summary>{text.name(r.input.trim().split("\n")[0].slice(0, 100))}</summary>
          <pre tabIndex={0} class="output">{text.lines(r.input)}</pre>
        </details>
      )}
      {r.content.map((b, i) => <Block key={i} of={b} />)}
      {!r.content.length && <p class="quiet">It printed nothing.</p>}
      {!!r.left && <p class="quiet">{r.left} more parts are not kept.</p>}
    </article>
  );
}

function Block({ of: b }: { of: ResultBlock }) {
  if (b.type === "image") return <Picture data={b.data ?? ""} />;
  if (!b.text && !b.truncated) return <p class="quiet">It printed nothing.</p>;
  const rows = tableOf(b.text ?? "");
  if (rows) return <Table rows={rows} />;
  return (
    <>
      <pre tabIndex={0} class="output">{text.lines(b.text ?? "")}</pre>
      {b.truncated && <p class="quiet">There was more.</p>}
    </>
  );
}

// Picture shows a raster image, whatever type it says that it has.
function Picture({ data }: { data: string }) {
  const [address, setAddress] = useState("");
  useEffect(() => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const type = imageType(bytes);
    if (!type) return;
    const made = URL.createObjectURL(new Blob([bytes], { type }));
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [data]);
  if (!address) return <p class="quiet">An image that is not shown here.</p>;
  return <img class="picture" src={address} alt="An image that the code has shown" />;
}

// tableOf returns the cells of a table in Markdown, with its head first; null: it is none.
function tableOf(markdown: string): string[][] | null {
  const lines = markdown.trim().split("\n");
  if (lines.length < 2 || lines.length > 500 || !lines.every((l) => l.trim().startsWith("|"))) return null;
  if (!/^\|[\s:|-]+\|?$/.test(lines[1].trim())) return null;
  const cells = (l: string) => l.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());
  return [cells(lines[0]), ...lines.slice(2).map(cells)];
}

function Table({ rows: [head, ...rows] }: { rows: string[][] }) {
  return (
    <div class="scrolls" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>{head.map((c, i) => <th key={i} scope="col">{text.name(c)}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((r, i) => (
            <tr key={i}>{r.map((c, j) => <td key={j}>{text.name(c)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
