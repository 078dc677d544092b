// The tools of a third-party server: a form for each, and what waits for approval.
import { useMemo, useState } from "preact/hooks";
import { json, segment } from "./api";
import { diff } from "./diff";
import { Result, type Returned } from "./result";
import { entriesOf, readable, withoutMark } from "./schema";
import { SchemaForm } from "./schemaform";
import * as text from "./text";
import type { Server } from "./types";
import { Dialog, Trouble, useTask } from "./ui";

export interface Tool {
  remote: string;
  key: string;
  hash?: string;
  raw?: { description?: string; inputSchema?: unknown };
  held?: string;
  before?: Record<string, unknown>;
}

const describes = (t: Tool, s: Server) => (typeof t.raw?.description === "string" ? withoutMark(t.raw.description, s) : "");

export function Tools({ server, all, again }: { server: Server; all: Tool[]; again: () => void }) {
  const [tried, setTried] = useState<Tool | null>(null);
  const [review, setReview] = useState<Tool | null>(null);
  return (
    <>
      {!all.length && <p class="quiet">It offers no tool now.</p>}
      <dl class="tools">
        {all.map((t) => (
          <div key={t.remote}>
            <dt class="row">
              <span>
                {text.name(t.remote)}
                {t.held && <span class="state warn"> ▲ held back: {text.name(t.held)}</span>}
              </span>
              {t.held ? (
                <button class="small primary" data-row aria-label={"Review " + text.name(t.remote)} onClick={() => setReview(t)}>
                  Review
                </button>
              ) : (
                <button class="small" data-row aria-label={"Try " + text.name(t.remote)} onClick={() => setTried(t)}>
                  Try
                </button>
              )}
            </dt>
            <dd class="quiet">{text.lines(describes(t, server).slice(0, 600)) || "It does not say what it does."}</dd>
          </div>
        ))}
      </dl>
      {tried && <Try server={server} tool={tried} close={() => setTried(null)} />}
      {review && <Review id={server.connectionId} tool={review} close={() => setReview(null)} again={again} />}
    </>
  );
}

function Try({ server, tool: t, close }: { server: Server; tool: Tool; close: () => void }) {
  const task = useTask();
  const [result, setResult] = useState<Returned | null>(null);
  const entries = useMemo(() => entriesOf(t.raw?.inputSchema), [t]);
  const send = (args: Record<string, unknown>) =>
    void task.run(async () => {
      setResult(null);
      setResult(await json<Returned>("POST", "v1/tools/" + segment(t.key), args));
    });
  return (
    <Dialog title={text.name(t.remote)} close={close} wide>
      <p class="quiet">{text.lines(describes(t, server).slice(0, 2000))}</p>
      <SchemaForm id="tool" entries={entries} button="Call it" busy={task.busy} send={send} />
      {task.busy && <p role="status">It runs. A question about it may wait for you under Now.</p>}
      <Trouble of={task.failed} />
      {result && <Result of={result} />}
    </Dialog>
  );
}

const words = { " ": "", "-": "removed: ", "+": "added: " };

// Review shows a definition that is held back, and how it differs from the one that was approved.
function Review(p: { id: string; tool: Tool; close: () => void; again: () => void }) {
  const t = p.tool;
  const task = useTask();
  const now = readable((t.raw ?? {}) as Record<string, unknown>);
  const lines = t.before ? diff(readable(t.before), now) : now.split("\n").map((text) => ({ sign: " " as const, text }));
  const differs = lines.some((l) => l.sign !== " ");
  const approve = () =>
    void task.run(async () => {
      // By the hash of what is shown: a tool that has changed meanwhile stays held back.
      const done = await json<{ heldTools?: { remoteName: string }[] }>("POST", `v1/connections/${segment(p.id)}/approve`, {
        tools: { [t.remote]: t.hash },
      });
      p.again();
      if (done.heldTools?.some((h) => h.remoteName === t.remote)) throw new Error("It has changed once more: look at it again.");
      p.close();
    });
  return (
    <Dialog title={`Approve ${text.name(t.remote)}?`} close={p.close} wide>
      <p>
        Agents cannot call this tool: {text.name(t.held ?? "")}. {t.before ? "This has changed:" : "This is what agents would read:"}
      </p>
      {t.before && !differs && <p class="quiet">It differs in what Sandlot takes out of definitions, such as invisible characters.</p>}
      <pre class="output diff" tabIndex={0} aria-label="Definition" data-diff>
        {lines.map((l, i) => (
          <span key={i} class={l.sign === "+" ? "added" : l.sign === "-" ? "removed" : ""}>
            {t.before ? l.sign + " " : ""}
            <span class="hidden">{words[l.sign]}</span>
            {l.text + "\n"}
          </span>
        ))}
      </pre>
      <Trouble of={task.failed} />
      <div class="row end">
        <button type="button" disabled={task.busy} onClick={p.close}>
          Keep it back
        </button>
        <button type="button" class="primary" disabled={task.busy} onClick={approve}>
          Approve it
        </button>
      </div>
    </Dialog>
  );
}
