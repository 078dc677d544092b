// The server's machine, for operators: what its doctor finds, templates and images with the progress of what is made.
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, get, json, send, segment, type Problem } from "./api";
import { live } from "./live";
import * as text from "./text";
import { Actions, confirm, Dialog, Loading, Progress, State, Trouble, useLoaded, useTask } from "./ui";

interface Check {
  name: string;
  ok: boolean;
  note?: boolean;
  detail: string;
  remedy?: string;
}

interface Report {
  running: boolean;
  ok: boolean;
  checks: Check[];
  started?: string;
  ended?: string;
}

export function Doctor() {
  const last = useLoaded("", () => get<Report>("v1/doctor"));
  const task = useTask();
  const r = last.value;
  const check = () => void task.run(async () => last.set(await json<Report>("POST", "v1/doctor")));
  return (
    <section aria-labelledby="doctor">
      <div class="row">
        <h2 id="doctor">Doctor</h2>
        <button class="small" disabled={task.busy} onClick={check}>
          {task.busy ? "Checking …" : "Check the machine"}
        </button>
      </div>
      <Trouble of={last.failed ?? task.failed} />
      {!r && !last.failed && <Loading />}
      {task.busy && <p role="status">A sandbox boots beside those that run, which takes some seconds.</p>}
      {r && !r.checks.length && !task.busy && <p class="quiet">The machine was not checked since the server started.</p>}
      {r && r.checks.length > 0 && !task.busy && (
        <>
          <p role="status">
            {r.ok ? "No check failed" : r.checks.filter((c) => !c.ok).length + " of " + r.checks.length + " checks failed"}
            {r.ended && `, ${text.full(r.ended)}`}
          </p>
          <ul class="plainlist">
            {r.checks.map((c, i) => (
              <li key={i} class="row" data-check={c.name}>
                <span>
                  <State of={c.ok ? (c.remedy ? "warning" : c.note ? "note" : "ok") : "error"} /> {text.name(c.name)}{" "}
                  <span class="quiet">{text.lines(c.detail)}</span>
                  {c.remedy && <span> {text.lines(c.remedy)}</span>}
                </span>
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

// usePushed follows a channel of states: take makes of what is shown and a message what is shown next.
function usePushed<T>(kind: string, take: (was: T | null, message: any) => T) {
  const [value, setValue] = useState<T | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  useEffect(() => {
    const c = live.open(kind, {}, {
      data: (m) => setValue((was) => take(was, m)),
      closed: (error?: Problem) => error && setFailed(new Failure(error)),
    });
    return () => c.close();
  }, [kind]);
  return { value, failed };
}

interface Template {
  name: string;
  state: string;
  usable: boolean;
  step?: string;
  done_bytes?: number;
  total_bytes?: number;
  problem?: string;
  source: string;
  built?: string;
}

export function Templates() {
  const list = usePushed<Template[]>("templates", (was, m) =>
    m.change === "all" ? m.templates : (was ?? []).map((t) => (t.name === m.template.name ? m.template : t)),
  );
  const task = useTask();
  const build = (t: Template) => void task.run(() => json("POST", `v1/templates/${segment(t.name)}/build`));
  return (
    <section aria-labelledby="templates">
      <h2 id="templates">Templates</h2>
      <Trouble of={list.failed ?? task.failed} />
      {!list.value && !list.failed && <Loading />}
      <ul class="plainlist">
        {list.value?.map((t) => (
          <li key={t.name} class="row" data-template={t.name}>
            <span>
              {text.name(t.name)}{" "}
              <span class="quiet">
                {text.name(t.state)}
                {t.usable && t.state !== "ready" && ", an earlier build serves"}
                {t.step && `: ${text.name(t.step)}`}
                {t.source && `, of ${text.name(t.source)}`}
                {t.built && `, built ${text.full(t.built)}`}
              </span>
              {t.problem && <span class="why"> {text.lines(t.problem)}</span>}
              {!!t.total_bytes && <Progress label={"Image of the template " + t.name} done={t.done_bytes ?? 0} total={t.total_bytes} />}
            </span>
            {t.source.startsWith("image ") && (
              <button class="small" disabled={task.busy || t.state === "building"} onClick={() => build(t)} aria-label={"Build " + text.name(t.name)}>
                Build
              </button>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

interface Image {
  name: string;
  digest: string;
  platform: string;
  size: number;
  used_by: string[];
}

interface Pull {
  pull_id: string;
  image: string;
  state: string;
  done_bytes: number;
  total_bytes: number;
  problem?: string;
}

export function Images() {
  const list = usePushed<{ images: Image[]; pulls: Pull[] }>("images", (was, m) => {
    if (m.change === "all") return { images: m.images, pulls: m.pulls };
    const { images, pulls } = was ?? { images: [], pulls: [] };
    const known = pulls.some((p) => p.pull_id === m.pull.pull_id);
    return { images, pulls: known ? pulls.map((p) => (p.pull_id === m.pull.pull_id ? m.pull : p)) : [...pulls, m.pull] };
  });
  const [asking, setAsking] = useState(false);
  const task = useTask();
  const end = (p: Pull) => void task.run(() => send("DELETE", `v1/pulls/${segment(p.pull_id)}`));
  const remove = (i: Image) =>
    confirm({
      title: "Remove the image " + text.name(i.name || i.digest) + "?",
      detail: <p>It can be got again as long as its registry has it. What was imported from a file is gone.</p>,
      yes: "Remove it",
      danger: true,
      do: () => void task.run(() => send("DELETE", "v1/images/" + (i.name || i.digest).split("/").map(segment).join("/"))),
    });
  return (
    <section aria-labelledby="images">
      <div class="row">
        <h2 id="images">Images</h2>
        <button class="small" onClick={() => setAsking(true)}>
          Get an image
        </button>
      </div>
      <Trouble of={list.failed ?? task.failed} />
      {!list.value && !list.failed && <Loading />}
      <ul class="plainlist">
        {list.value?.pulls
          .filter((p) => p.state !== "done")
          .map((p) => (
            <li key={p.pull_id} class="row" data-pull={p.image}>
              <span>
                <State of={p.state === "failed" ? "error" : "running"} /> {text.name(p.image)}{" "}
                {p.state === "running" && <span class="quiet">is being got from its registry</span>}
                {p.problem && <span class="why"> {text.lines(p.problem)}</span>}
                {p.state === "running" && <Progress label={p.image} done={p.done_bytes} total={p.total_bytes} />}
              </span>
              {p.state === "running" && (
                <button class="small" disabled={task.busy} onClick={() => end(p)} aria-label={"End it: the pull of " + text.name(p.image)}>
                  End it
                </button>
              )}
            </li>
          ))}
      </ul>
      {list.value && !list.value.images.length && <p class="quiet">The server's store has no image. Those of a Docker daemon are the daemon's.</p>}
      <ul class="plainlist">
        {list.value?.images.map((i) => (
          <li key={i.digest + " " + i.name} class="row" data-image={i.name || i.digest}>
            <span>
              {i.name ? text.name(i.name) : "without a name"}{" "}
              <span class="quiet">
                {i.digest.slice(0, 19)}, {text.name(i.platform)}, {i.size ? text.size(i.size) : "damaged: get it again"}
                {i.used_by.length > 0 && `, used by ${i.used_by.map(text.name).join(", ")}`}
              </span>
            </span>
            {!i.used_by.length && (
              <button class="small" disabled={task.busy} onClick={() => remove(i)} aria-label={"Remove " + text.name(i.name || i.digest)}>
                Remove
              </button>
            )}
          </li>
        ))}
      </ul>
      {asking && <GetImage close={() => setAsking(false)} />}
    </section>
  );
}

function GetImage({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const task = useTask();
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const start = (e: Event) => {
    e.preventDefault();
    void task.run(() => json("POST", "v1/images", { image: name.trim() })).then((ok) => ok && close());
  };
  return (
    <Dialog title="Get an image" close={close}>
      <form onSubmit={start}>
        <label for="image-name">Name, as docker pull takes it</label>
        <input id="image-name" ref={input} required autocomplete="off" spellcheck={false} placeholder="python:3.12-slim" value={name}
          onInput={(e) => setName(e.currentTarget.value)} />
        <Trouble of={task.failed} />
        <Actions close={close} busy={task.busy} yes="Get it" />
      </form>
    </Dialog>
  );
}
