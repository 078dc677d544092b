// The prompts of all third-party servers, in one list.
import { useMemo, useState } from "preact/hooks";
import { get, json, segment } from "./api";
import { Result, type Returned } from "./result";
import { entriesOf, withoutMark, type Schema } from "./schema";
import { SchemaForm } from "./schemaform";
import { servers } from "./state";
import * as text from "./text";
import { Dialog, Loading, Trouble, useLoaded, useTask } from "./ui";

interface Prompt {
  server: string;
  connectionId: string;
  name: string;
  remoteName: string;
  title?: string;
  description?: string;
  arguments: { name: string; title?: string; description?: string; required?: boolean }[];
}

const describes = (p: Prompt) => withoutMark(p.description ?? "", servers.value?.find((s) => s.connectionId === p.connectionId));

// Prompts lists the prompts of all servers, or of one.
export function Prompts({ of }: { of?: string }) {
  // What a server offers may have changed when it offers more or less. Its state says nothing: it may change all the time.
  const key = (servers.value ?? []).map((s) => s.connectionId + ":" + s.promptCount).join(" ");
  const list = useLoaded(key, async () => (await get<{ prompts: Prompt[] }>("v1/prompts")).prompts ?? []);
  const [used, setUsed] = useState<Prompt | null>(null);
  const all = list.value?.filter((p) => !of || p.connectionId === of);
  return (
    <section aria-labelledby="prompts">
      <h2 id="prompts">Prompts</h2>
      <Trouble of={list.failed} />
      {!all && !list.failed && <Loading />}
      {all && !all.length && <p class="quiet">{of ? "It offers no prompt now." : "No server offers a prompt now."}</p>}
      <ul class="plainlist">
        {all?.map((p) => (
          <li key={p.name} class="row">
            <span>
              <strong>{text.name(p.title || p.remoteName)}</strong>
              {!of && <span class="quiet"> of {text.name(p.server)}</span>}
              {p.description && <span class="quiet"> {text.name(describes(p).slice(0, 300).split("\n")[0])}</span>}
            </span>
            <button class="small" data-row aria-label={"Use " + text.name(p.remoteName) + " of " + text.name(p.server)} onClick={() => setUsed(p)}>
              Use
            </button>
          </li>
        ))}
      </ul>
      {used && <Use prompt={used} close={() => setUsed(null)} />}
    </section>
  );
}

function Use({ prompt: p, close }: { prompt: Prompt; close: () => void }) {
  const task = useTask();
  const [result, setResult] = useState<Returned | null>(null);
  const entries = useMemo(() => {
    const properties = Object.fromEntries(p.arguments.map((a) => [a.name, { ...a, type: "string" } as unknown as Schema]));
    return entriesOf({ properties, required: p.arguments.filter((a) => a.required).map((a) => a.name) });
  }, [p]);
  const send = (args: Record<string, unknown>) =>
    void task.run(async () => {
      setResult(null);
      setResult(await json<Returned>("POST", `v1/connections/${segment(p.connectionId)}/prompt`, { name: p.remoteName, arguments: args }));
    });
  return (
    <Dialog title={text.name(p.title || p.remoteName)} close={close} wide>
      {p.description && <p class="quiet">{text.lines(describes(p).slice(0, 2000))}</p>}
      <SchemaForm id="prompt" entries={entries} button="Get it" busy={task.busy} send={send} />
      <Trouble of={task.failed} />
      {result && <Result of={result} />}
    </Dialog>
  );
}
