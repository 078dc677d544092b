// Servers of MCP registries: finding one, looking at what it needs, adding it.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, json, segment, send, tool } from "./api";
import { go } from "./route";
import * as text from "./text";
import { Actions, Dialog, Loading, Trouble, useLoaded, useTask } from "./ui";

interface Summary {
  registry: string;
  name: string;
  title?: string;
  description: string;
  version: string;
  publisher: string;
  status: string;
  kinds: string[];
}

interface Input {
  key: string;
  label: string;
  place: string;
  description?: string;
  required: boolean;
  secret: boolean;
  format: string;
  default?: string;
  placeholder?: string;
  choices?: string[];
  repeated?: boolean;
  secret_name?: string;
}

interface Way {
  id: string;
  kind: string;
  identifier?: string;
  version?: string;
  sha256?: string;
  url?: string;
  supported: boolean;
  why?: string;
  notes?: string[];
  inputs: Input[];
  fixed?: { place: string; name?: string; value?: string }[];
}

interface Entry extends Summary {
  status_message?: string;
  repository?: string;
  website?: string;
  ways: Way[];
  suggested_name: string;
  digest: string;
}

interface Found {
  servers: Summary[];
  total: number;
  registries: { name: string; entries: number; note?: string }[];
}

interface Plan {
  tool: string;
  notes?: string[];
  arguments: Record<string, unknown>;
}

export function FromRegistry({ close }: { close: () => void }) {
  const [chosen, setChosen] = useState<Summary | null>(null);
  const [words, setWords] = useState("");
  const [found, setFound] = useState<Found | null>(null);
  const task = useTask();
  const box = useRef<HTMLInputElement>(null);
  useEffect(() => box.current?.focus(), [chosen]);
  const search = (e: globalThis.Event) => {
    e.preventDefault();
    void task.run(async () => setFound(await get<Found>("v1/registry/servers?limit=30&search=" + segment(words))));
  };
  if (chosen) return <Details of={chosen} close={close} back={() => setChosen(null)} />;
  return (
    <Dialog title="Add from the registry" close={close} wide>
      <form class="row" role="search" onSubmit={search}>
        <label for="registry-words">Words</label>
        <input ref={box} id="registry-words" type="search" autocomplete="off" value={words}
          onInput={(e) => setWords(e.currentTarget.value)} />
        <button class="primary" disabled={task.busy}>
          Search
        </button>
      </form>
      <p class="quiet">What an entry says is its publisher's text. Nobody has checked what its program does.</p>
      {task.busy && <p role="status">Searching …</p>}
      <Trouble of={task.failed} />
      {found?.registries.map((r) => r.note && (
        <p key={r.name} class="quiet">
          {text.name(r.name)}: {text.name(r.note)}
        </p>
      ))}
      {found && (
        <p role="status">
          {found.total === 0 ? "No server has these words." : `${found.total} found`}
          {found.total > found.servers.length && `, and the best ${found.servers.length} shown`}
        </p>
      )}
      <ul class="cards">
        {found?.servers.map((s) => (
          <li key={s.registry + " " + s.name}>
            <button type="button" class="card entry" onClick={() => setChosen(s)}>
              <span class="card-title">{text.name(s.title || s.name)}</span>
              <span class="quiet">
                {text.name(s.name)} {text.name(s.version)}
                {s.status !== "active" && ` · ${text.name(s.status)}`}
              </span>
              <span>{text.name(s.description)}</span>
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

function Details({ of, close, back }: { of: Summary; close: () => void; back: () => void }) {
  const path = "v1/registry/servers/" + of.name.split("/").map(segment).join("/") + "?version=" + segment(of.version) +
    "&registry=" + segment(of.registry);
  const entry = useLoaded(path, () => get<Entry>(path));
  const e = entry.value;
  return (
    <Dialog title={text.name(of.title || of.name)} close={close} wide>
      <Trouble of={entry.failed} />
      {!e && !entry.failed && <Loading />}
      {e && (
        <>
          <p>{text.name(e.description)}</p>
          <dl class="facts">
            <dt>Entry</dt>
            <dd>
              {text.name(e.name)} {text.name(e.version)}, in the registry {text.name(e.registry)}
            </dd>
            <dt>Publisher</dt>
            <dd>{text.name(e.publisher)}</dd>
            {e.repository && (
              <>
                <dt>Source</dt>
                <dd>
                  <a href={e.repository} target="_blank" rel="noopener noreferrer">
                    {text.name(e.repository)}
                  </a>
                </dd>
              </>
            )}
            {e.status !== "active" && (
              <>
                <dt>Status</dt>
                <dd class="state warn">
                  ▲ {text.name(e.status)} {text.name(e.status_message ?? "")}
                </dd>
              </>
            )}
          </dl>
          <Ways entry={e} close={close} back={back} />
        </>
      )}
      {!e && (
        <div class="row end">
          <button onClick={back}>Back</button>
        </div>
      )}
    </Dialog>
  );
}

const what = (w: Way) => `${w.kind}: ${w.url || `${w.identifier ?? ""} ${w.version ?? ""}`}`;

function Ways({ entry: e, close, back }: { entry: Entry; close: () => void; back: () => void }) {
  const usable = e.ways.filter((w) => w.supported);
  const [id, setID] = useState(usable[0]?.id ?? "");
  const way = usable.find((w) => w.id === id);
  return (
    <>
      {e.ways.filter((w) => !w.supported).map((w) => (
        <p key={w.id} class="quiet">
          Not supported: {text.name(what(w))}: {text.name(w.why ?? "")}.
        </p>
      ))}
      {usable.length > 1 && (
        <div class="field">
          <label for="way">How</label>
          <select id="way" value={id} onChange={(e) => setID(e.currentTarget.value)}>
            {usable.map((w) => (
              <option key={w.id} value={w.id}>
                {text.name(what(w))}
              </option>
            ))}
          </select>
        </div>
      )}
      {way ? (
        <Form key={way.id} entry={e} way={way} close={close} back={back} />
      ) : (
        <>
          <p>Sandlot cannot run this server.</p>
          <div class="row end">
            <button onClick={back}>Back</button>
          </div>
        </>
      )}
    </>
  );
}

interface Secret {
  name: string;
  used_by: string[];
}

const secrets = async () => (await get<{ secrets: Secret[] }>("v1/secrets?limit=1000")).secrets;

function Form({ entry: e, way: w, close, back }: { entry: Entry; way: Way; close: () => void; back: () => void }) {
  const [name, setName] = useState(e.suggested_name);
  const [values, setValues] = useState<Record<string, string>>(() =>
    Object.fromEntries(w.inputs.map((i) => [i.key, i.default ?? ""])));
  const [planned, setPlanned] = useState<{ plan: Plan; store: Record<string, string> } | null>(null);
  const task = useTask();
  const show = (event: globalThis.Event) => {
    event.preventDefault();
    void task.run(async () => {
      const { connections } = await get<{ connections: { name: string }[] }>("v1/connections?limit=1000");
      if (connections.some((c) => c.name === name)) throw new Error("You have a server of this name: choose another one.");
      const given: Record<string, string> = {};
      const store: Record<string, string> = {}; // secrets, by names that no other secret has
      const taken = new Set((await secrets()).map((s) => s.name));
      for (const i of w.inputs) {
        const v = values[i.key] ?? "";
        if (!v) continue;
        given[i.key] = v;
        if (i.secret && !v.startsWith("${secret:")) {
          let free = i.secret_name!;
          for (let n = 2; taken.has(free); n++) free = `${i.secret_name}_${n}`;
          store[free] = v;
          given[i.key] = "${secret:" + free + "}";
        }
      }
      const plan = await json<Plan>("POST", "v1/registry/plan", {
        name: e.name, version: e.version, registry: e.registry, digest: e.digest, way: w.id, server_name: name, values: given,
      });
      setPlanned({ plan, store });
    });
  };
  const add = () =>
    void task.run(async () => {
      const { plan, store } = planned!;
      try {
        for (const [stored, v] of Object.entries(store)) await send("PUT", "v1/secrets/" + segment(stored), v);
        const r = await tool<{ connectionId: string }>(plan.tool, plan.arguments);
        close();
        go(["servers", r.connectionId]);
      } catch (failed) {
        for (const s of await secrets()) {
          if (s.name in store && s.used_by.length === 0) await send("DELETE", "v1/secrets/" + segment(s.name));
        }
        throw failed;
      }
    });
  if (planned) {
    return (
      <>
        <p>This is the call of {planned.plan.tool} that adds it:</p>
        <pre class="output" tabIndex={0}>
          {text.lines(JSON.stringify(planned.plan.arguments, null, 2))}
        </pre>
        {planned.plan.notes?.map((n) => (
          <p key={n} class="quiet">
            {text.name(n)}
          </p>
        ))}
        {task.busy && <p role="status">It is added, which may take minutes. A question about it may wait for you under Now.</p>}
        <Trouble of={task.failed} />
        <Actions close={() => setPlanned(null)} leave="Back" stay busy={task.busy} act={add} yes="Add it" />
      </>
    );
  }
  return (
    <form onSubmit={show}>
      <p>{w.url ? "It is reached at:" : "This package is installed in your home session, and its program runs there:"}</p>
      <pre class="output" tabIndex={0}>
        {text.lines(w.url || `${w.kind} ${w.identifier} ${w.version}` + (w.sha256 ? `\nSHA-256 ${w.sha256}` : ""))}
      </pre>
      {w.fixed && (
        <>
          <p>The entry itself sets:</p>
          <pre class="output" tabIndex={0}>
            {text.lines(w.fixed.map((f) => `${f.place} ${f.name ?? ""} ${f.value ?? ""}`).join("\n"))}
          </pre>
        </>
      )}
      <div class="field">
        <label for="registry-name">Name here</label>
        <input id="registry-name" required autocomplete="off" value={name} onInput={(e) => setName(e.currentTarget.value)} />
      </div>
      {w.inputs.map((i, n) => (
        <Value key={i.key} id={"registry-value-" + n} input={i} value={values[i.key] ?? ""}
          set={(v) => setValues({ ...values, [i.key]: v })} />
      ))}
      <Trouble of={task.failed} />
      <Actions close={back} leave="Back" stay busy={task.busy} yes="Show the call" />
    </form>
  );
}

function Value({ id, input: i, value, set }: { id: string; input: Input; value: string; set: (v: string) => void }) {
  const label = text.name(i.label) + (i.required ? " (required)" : "");
  if (i.format === "boolean") {
    return (
      <label class="check">
        <input type="checkbox" checked={value === "true"} onChange={(e) => set(e.currentTarget.checked ? "true" : "false")} />{" "}
        {label}
        {i.description && <span class="quiet"> {text.name(i.description)}</span>}
      </label>
    );
  }
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {i.description && <p class="quiet">{text.name(i.description)}</p>}
      {i.choices?.length ? (
        <select id={id} value={value} required={i.required} onChange={(e) => set(e.currentTarget.value)}>
          <option value=""></option>
          {i.choices.map((c) => (
            <option key={c} value={c}>
              {text.name(c)}
            </option>
          ))}
        </select>
      ) : i.repeated ? (
        <textarea id={id} required={i.required} spellcheck={false} value={value} placeholder="One on each line"
          onInput={(e) => set(e.currentTarget.value)} />
      ) : i.secret ? (
        <input id={id} type="password" required={i.required} autocomplete="new-password" value={value}
          onInput={(e) => set(e.currentTarget.value)} />
      ) : (
        <input id={id} type="text" required={i.required} autocomplete="off" value={value}
          placeholder={text.name(i.placeholder ?? "")} onInput={(e) => set(e.currentTarget.value)} />
      )}
      {i.secret && <p class="quiet">It is stored encrypted as a secret of yours, and never shown.</p>}
    </div>
  );
}
