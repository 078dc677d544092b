// Arguments of tools and prompts, as a JSON schema describes them. The schema is a third party's: what this does not know
// is given as JSON.
import * as text from "./text";

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  properties?: Record<string, Schema>;
  required?: string[];
}

// most is how many fields a form has, with one for all that are beyond.
const most = 100;

type Kind = "text" | "number" | "integer" | "boolean" | "choice" | "json" | "rest";

export interface Entry {
  name: string;
  schema: Schema;
  kind: Kind;
  required: boolean;
}

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

export function entriesOf(schema: unknown): Entry[] {
  const s: Schema = isObject(schema) ? schema : {};
  const required = Array.isArray(s.required) ? s.required : [];
  const all = (isObject(s.properties) ? Object.entries(s.properties) : []).map(([name, one]): Entry => {
    const schema: Schema = isObject(one) ? one : {};
    return { name, schema, kind: kindOf(schema), required: required.includes(name) };
  });
  if (all.length <= most) return all;
  const beyond = all.slice(most).sort((a, b) => +b.required - +a.required);
  const names = beyond.map((e) => JSON.stringify(e.name) + (e.required ? " (required)" : ""));
  const description = `All in one object, as {"a": 1}: ` + names.join(", ");
  const rest: Entry = { name: `${beyond.length} more`, schema: { description }, kind: "rest", required: beyond[0].required };
  return [...all.slice(0, most), rest];
}

// choices returns what can be chosen; undefined: anything can be written.
export function choices(e: Entry): string[] | undefined {
  return e.kind === "boolean" ? ["true", "false"] : e.kind === "choice" ? (e.schema.enum as string[]) : undefined;
}

// initial returns the text of an entry's default, if the form shows it as it is.
export function initial(e: Entry): string {
  const d = e.schema.default;
  if (d === undefined || d === null) return "";
  const given = typeof d === "string" && e.kind !== "json" ? d : JSON.stringify(d);
  return text.name(given) === given && (choices(e)?.includes(given) ?? true) ? given : "";
}

// isExact reports whether a number can be sent as it is written. Beyond 2^53 digits would be lost, unless it is written
// with an exponent.
function isExact(given: string): boolean {
  const n = Number(given);
  return Number.isFinite(n) && (Math.abs(n) <= Number.MAX_SAFE_INTEGER || /^[-+.\d]+e/i.test(given));
}

const inexact = (e: Entry, given: string) =>
  new Error(`${text.name(e.name)}: a browser cannot send ${text.name(given.slice(0, 40))} with all its digits. Use sandlot mcp, or an agent.`);

// parsed reads JSON whose numbers can all be sent as they are written.
function parsed(e: Entry, given: string): unknown {
  const value = JSON.parse(given);
  for (const [token] of given.matchAll(/"(?:[^"\\]|\\.)*"|-?\d[-+.\de]*/gi)) {
    if (token[0] !== '"' && !isExact(token)) throw inexact(e, token);
  }
  return value;
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
      if (!isExact(given.trim()) || (e.kind === "integer" && !Number.isSafeInteger(n))) throw inexact(e, given);
      return n;
    }
    case "json":
    case "rest":
      try {
        return parsed(e, given);
      } catch (failed) {
        if (!(failed instanceof SyntaxError)) throw failed;
        // Where a text may stand as well, what is not JSON is one.
        const types = ([] as unknown[]).concat(e.schema.type ?? "string");
        if (e.kind === "json" && types.includes("string")) return given;
        throw new Error(`${text.name(e.name)} must be JSON, as ["a", 1].`);
      }
  }
  return given;
}

// argumentsOf returns the arguments that the texts of entries mean.
export function argumentsOf(entries: Entry[], given: string[]): Record<string, unknown> {
  const pairs: [string, unknown][] = [];
  entries.forEach((e, i) => {
    const v = valueOf(e, given[i] ?? "");
    if (v === undefined) return;
    if (e.kind !== "rest") pairs.push([e.name, v]);
    else if (isObject(v)) pairs.push(...Object.entries(v));
    else throw new Error(`${text.name(e.name)} must be an object, as {"a": 1}.`);
  });
  return Object.fromEntries(pairs); // defines its own properties, whatever they are called
}

// withoutMark removes what Sandlot writes before the descriptions of a server that is not of the settings.
export function withoutMark(description: string, server?: { name: string; configured: boolean }): string {
  const mark = `[external:${server?.name}]`;
  if (!server || server.configured) return description;
  return description === mark ? "" : description.startsWith(mark + " ") ? description.slice(mark.length + 1) : description;
}

// readable writes a definition in lines: its description first, each line of it one. It takes nothing away: what looks
// like Sandlot's mark may be the third party's.
export function readable(d: Record<string, unknown>): string {
  const { name: _, description, ...rest } = d;
  const ordered = Object.fromEntries(Object.entries(rest).sort(([a], [b]) => (a < b ? -1 : 1)));
  // The escapes come before the comparison: what is invisible is a difference, too.
  return text.lines((typeof description === "string" ? description : "") + "\n" + JSON.stringify(ordered, null, 2));
}
