// A form made of a JSON schema. The schema is a third party's: what this form does not know is given as JSON.
import { useState } from "preact/hooks";
import * as text from "./text";
import { Trouble } from "./ui";

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  properties?: Record<string, Schema>;
  required?: string[];
}

// most is how many fields a form has.
const most = 100;

type Kind = "text" | "number" | "integer" | "boolean" | "choice" | "json";

const isObject = (x: unknown): x is Record<string, unknown> => typeof x === "object" && x !== null && !Array.isArray(x);

function kindOf(s: Schema): Kind {
  if (Array.isArray(s.enum) && s.enum.length > 0 && s.enum.length <= 200 && s.enum.every((v) => typeof v === "string")) return "choice";
  switch (s.type) {
    case "string":
      return "text";
    case "number":
    case "integer":
    case "boolean":
      return s.type;
  }
  return "json";
}

interface Entry {
  name: string;
  schema: Schema;
  kind: Kind;
  required: boolean;
}

export function entriesOf(schema: unknown): Entry[] {
  const s: Schema = isObject(schema) ? schema : {};
  const required = Array.isArray(s.required) ? s.required : [];
  const all = isObject(s.properties) ? Object.entries(s.properties) : [];
  return all.slice(0, most).map(([name, one]) => {
    const schema: Schema = isObject(one) ? one : {};
    return { name, schema, kind: kindOf(schema), required: required.includes(name) };
  });
}

// valueOf returns what an entry's text means. undefined: it is left out.
function valueOf(e: Entry, given: string): unknown {
  if (given === "" && (e.kind !== "text" || !e.required)) return undefined;
  switch (e.kind) {
    case "boolean":
      return given === "true";
    case "number":
    case "integer": {
      const n = Number(given);
      if (!Number.isFinite(n) || (e.kind === "integer" && !Number.isInteger(n))) throw new Error(`${text.name(e.name)} must be ${e.kind === "integer" ? "a whole number" : "a number"}.`);
      return n;
    }
    case "json":
      try {
        return JSON.parse(given);
      } catch {
        // Where a text may stand as well, what is not JSON is one.
        const types = ([] as unknown[]).concat(e.schema.type ?? "string");
        if (types.includes("string")) return given;
        throw new Error(`${text.name(e.name)} must be JSON, as ["a", 1].`);
      }
  }
  return given;
}

function initial(e: Entry) {
  const d = e.schema.default;
  if (d === undefined || d === null) return "";
  return typeof d === "string" && e.kind !== "json" ? d : JSON.stringify(d);
}

export function SchemaForm(p: {
  id: string; entries: Entry[]; button: string; busy: boolean; send: (args: Record<string, unknown>) => void;
}) {
  const [values, setValues] = useState(() => new Map(p.entries.map((e) => [e.name, initial(e)])));
  const [wrong, setWrong] = useState("");
  const set = (name: string, v: string) => setValues(new Map(values).set(name, v));
  const submit = (event: globalThis.Event) => {
    event.preventDefault();
    const pairs: [string, unknown][] = [];
    try {
      for (const e of p.entries) {
        const v = valueOf(e, values.get(e.name) ?? "");
        if (v !== undefined) pairs.push([e.name, v]);
      }
    } catch (e) {
      setWrong((e as Error).message);
      return;
    }
    setWrong("");
    p.send(Object.fromEntries(pairs)); // defines its own properties, whatever they are called
  };
  return (
    <form onSubmit={submit}>
      {p.entries.map((e, i) => (
        <Field key={e.name} id={p.id + "-" + i} entry={e} value={values.get(e.name) ?? ""} set={(v) => set(e.name, v)} />
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
  const hint = says ? id + "-says" : undefined;
  return (
    <div class="field">
      <label for={id}>
        {text.name(e.name)}
        {title}
        {e.required ? " (required)" : ""}
        {e.kind === "json" ? ", as JSON" : ""}
      </label>
      {says && <p class="quiet" id={hint}>{text.lines(says)}</p>}
      {e.kind === "choice" || e.kind === "boolean" ? (
        <select id={id} value={value} required={e.required} aria-describedby={hint} onChange={(x) => set(x.currentTarget.value)}>
          <option value=""></option>
          {(e.kind === "boolean" ? ["true", "false"] : (s.enum as string[])).map((c) => (
            <option key={c} value={c}>
              {text.name(c)}
            </option>
          ))}
        </select>
      ) : e.kind === "json" ? (
        <textarea id={id} value={value} required={e.required} spellcheck={false} aria-describedby={hint}
          onInput={(x) => set(x.currentTarget.value)} />
      ) : (
        <input id={id} value={value} required={e.required && e.kind !== "text"} autocomplete="off" spellcheck={false}
          aria-describedby={hint} inputMode={e.kind === "text" ? "text" : "decimal"} onInput={(x) => set(x.currentTarget.value)} />
      )}
    </div>
  );
}
