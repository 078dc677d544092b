// A form made of a JSON schema.
import { useState } from "preact/hooks";
import { argumentsOf, choices, initial, type Entry } from "./schema";
import * as text from "./text";
import { Trouble } from "./ui";

export function SchemaForm(p: {
  id: string; entries: Entry[]; button: string; busy: boolean; send: (args: Record<string, unknown>) => void;
}) {
  const [values, setValues] = useState(() => p.entries.map(initial));
  const [wrong, setWrong] = useState("");
  const set = (i: number, v: string) => setValues(values.map((was, j) => (j === i ? v : was)));
  const submit = (event: globalThis.Event) => {
    event.preventDefault();
    let args;
    try {
      args = argumentsOf(p.entries, values);
    } catch (e) {
      setWrong((e as Error).message);
      return;
    }
    setWrong("");
    p.send(args);
  };
  return (
    <form onSubmit={submit}>
      {p.entries.map((e, i) => (
        <Field key={i} id={p.id + "-" + i} entry={e} value={values[i] ?? ""} set={(v) => set(i, v)} />
      ))}
      {!p.entries.length && <p class="quiet">It takes no arguments.</p>}
      <Trouble of={wrong} />
      <div class="row end">
        <button class="primary" disabled={p.busy}>
          {p.busy ? "Working …" : p.button}
        </button>
      </div>
    </form>
  );
}

function Field({ id, entry: e, value, set }: { id: string; entry: Entry; value: string; set: (v: string) => void }) {
  const s = e.schema;
  const title = typeof s.title === "string" && s.title !== e.name ? ` (${text.name(s.title.slice(0, 200))})` : "";
  const says = typeof s.description === "string" ? s.description.slice(0, 2000) : "";
  const some = choices(e);
  const json = e.kind === "json" || e.kind === "rest";
  const hint = says ? id + "-says" : undefined;
  return (
    <div class="field">
      <label for={id}>
        {text.name(e.name)}
        {title}
        {e.required ? " (required)" : ""}
        {json ? ", as JSON" : ""}
      </label>
      {says && <p class="quiet" id={hint}>{text.lines(says)}</p>}
      {some ? (
        <select id={id} value={value} required={e.required} aria-describedby={hint} onChange={(x) => set(x.currentTarget.value)}>
          <option value=""></option>
          {some.map((c) => (
            <option key={c} value={c}>
              {text.name(c)}
            </option>
          ))}
        </select>
      ) : json ? (
        <textarea id={id} value={value} required={e.required} spellcheck={false} aria-describedby={hint}
          onInput={(x) => set(x.currentTarget.value)} />
      ) : (
        <input id={id} value={value} required={e.required && e.kind !== "text"} autocomplete="off" spellcheck={false}
          aria-describedby={hint} inputMode={e.kind === "text" ? "text" : "decimal"} onInput={(x) => set(x.currentTarget.value)} />
      )}
    </div>
  );
}
