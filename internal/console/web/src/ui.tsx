// Parts that all screens use. Texts are text nodes, always.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Failure } from "./api";
import * as text from "./text";

// States have a sign and a word: nothing is said by colour alone.
const signs: Record<string, [sign: string, tone: string, word?: string]> = {
  ready: ["●", "good"],
  running: ["●", "good"],
  processing: ["●", "good", "working"],
  creating: ["◐", "busy", "starting"],
  hibernated: ["☾", "calm", "asleep"],
  paused: ["‖", "warn"],
  stopped: ["○", "calm"],
  connected: ["●", "good"],
  starting: ["◐", "busy"],
  installing: ["◐", "busy"],
  idle: ["☾", "calm"],
  backoff: ["◐", "warn", "starts again soon"],
  disabled: ["○", "calm"],
  needs_env: ["▲", "warn", "needs values"],
  "needs auth": ["▲", "warn", "needs a log-in"],
  needs_approval: ["▲", "warn", "needs approval"],
  error: ["✕", "bad"],
  ok: ["✓", "good"],
  warning: ["▲", "warn"],
  note: ["–", "calm"],
  started: ["…", "busy"],
  given: ["✓", "good", "yes"],
  declined: ["○", "calm", "no"],
  replayed: ["✓", "good", "answered again"],
  stopping: ["◐", "calm"],
};

// calm are words that tell of no failure, as the codes of faults and some words do.
const calm = /^(?!refused|failed|unreachable|lost|killed|gone)[a-z_ ]+$/;

export function State({ of }: { of: string }) {
  const [sign, tone, word] = signs[of] ?? (calm.test(of) ? ["○", "calm"] : ["✕", "bad"]);
  return (
    <span class={"state " + tone}>
      <span aria-hidden="true">{sign}</span> {word ?? text.name(of)}
    </span>
  );
}

export function Trouble({ of, what }: { of: unknown; what?: string }) {
  if (!of) return null;
  const f = of instanceof Failure ? of.problem : { detail: String(of), recovery_suggestions: [] };
  return (
    <div class="trouble" role="alert">
      <p>
        {what && <strong>{what}: </strong>}
        {text.lines(f.detail)}
      </p>
      {!!f.recovery_suggestions?.length && (
        <ul>
          {f.recovery_suggestions.map((s) => (
            <li key={s}>{text.lines(s)}</li>
          ))}
        </ul>
      )}
    </div>
  );
}

// useTask runs one thing at a time, and keeps how it failed.
export function useTask() {
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState<unknown>(null);
  const alive = useRef(true);
  useEffect(() => () => void (alive.current = false), []);
  const run = async (f: () => Promise<unknown>) => {
    setBusy(true);
    setFailed(null);
    try {
      await f();
      return true;
    } catch (e) {
      if (alive.current) setFailed(e);
      return false;
    } finally {
      if (alive.current) setBusy(false);
    }
  };
  return { busy, failed, run, clear: () => setFailed(null) };
}

// useLoaded loads something when its key changes, and again on request.
export function useLoaded<T>(key: string, load: () => Promise<T>) {
  const [value, setValue] = useState<T | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let current = true;
    load().then(
      (v) => current && (setValue(v), setFailed(null)),
      (e) => current && setFailed(e),
    );
    return () => void (current = false);
  }, [key, turn]);
  return { value, failed, again: () => setTurn((n) => n + 1), set: setValue };
}

export function Empty({ children, command, title }: { title: string; command?: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
      {command && <Command text={command} />}
    </div>
  );
}

export function Command({ text: command, label }: { text: string; label?: string }) {
  return (
    <div class="command">
      <pre tabIndex={0}>{text.lines(command)}</pre>
      {text.plain(command) && <Copy text={command} label={label ?? "Copy"} />}
    </div>
  );
}

// Copy copies what stands beside it. What is not shown as it is must not be copied.
export function Copy({ text: value, label }: { text: string; label: string }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(value);
      setDone("Copied");
    } catch {
      setDone("Select it and copy it yourself");
    }
    setTimeout(() => setDone(""), 2000);
  };
  return (
    <button type="button" class="small" onClick={copy}>
      <span aria-live="polite">{done || label}</span>
    </button>
  );
}

interface Asking {
  title: string;
  detail?: ComponentChildren;
  yes: string;
  danger?: boolean;
  do: () => void;
}

const confirming = signal<Asking | null>(null);

// confirm asks in a dialog, and does it after a yes. Null takes the question back.
export function confirm(a: Asking | null) {
  confirming.value = a;
}

export function Confirm() {
  const a = confirming.value;
  if (!a) return null;
  const close = () => (confirming.value = null);
  return (
    <Dialog title={a.title} close={close}>
      {a.detail}
      <Actions
        close={close}
        yes={a.yes}
        danger={a.danger}
        act={() => {
          close();
          a.do();
        }}
      />
    </Dialog>
  );
}

// Dialog is modal. The browser gives the focus back to where it was.
export function Dialog(p: { title: string; close: () => void; children: ComponentChildren; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  const shown = useRef(true);
  const id = useId();
  useLayoutEffect(() => {
    ref.current?.showModal();
    return () => {
      shown.current = false;
      ref.current?.close();
    };
  }, []);
  return (
    <dialog
      ref={ref}
      class={p.wide ? "wide" : ""}
      aria-labelledby={id}
      onCancel={(e) => {
        e.preventDefault();
        p.close();
      }}
      onClose={() => {
        // The browser has closed it, as phones and a second Esc do: there may be something to ask before.
        if (!shown.current) return;
        ref.current?.showModal();
        p.close();
      }}
    >
      <header class="row">
        <h2 id={id}>{p.title}</h2>
        <button type="button" class="plain" aria-label="Close" onClick={p.close}>
          ✕
        </button>
      </header>
      {p.children}
    </dialog>
  );
}

// Actions are the buttons at the end of a dialog: its main one, and the one that leaves it. Without act, the main one
// submits the form.
export function Actions(p: { close?: () => void; leave?: string; yes: string; act?: () => void; busy?: boolean; stay?: boolean; danger?: boolean }) {
  return (
    <div class="row end">
      {p.close && (
        <button type="button" onClick={p.close} disabled={p.stay && p.busy}>
          {p.leave ?? "Cancel"}
        </button>
      )}
      <button type={p.act ? "button" : "submit"} class={p.danger ? "danger" : "primary"} disabled={p.busy} onClick={p.act}>
        {p.yes}
      </button>
    </div>
  );
}

// Progress is a bar with its numbers beside it. Without a total, nobody knows yet how much it is.
export function Progress({ label, done, total }: { label: string; done: number; total: number }) {
  return (
    <span class="progress">
      <progress aria-label={text.name(label)} max={total || undefined} value={total ? Math.min(done, total) : undefined} />{" "}
      <span class="quiet">{total ? `${text.size(done)} of ${text.size(total)}` : "asking"}</span>
    </span>
  );
}

export const Loading = () => <p class="quiet">Loading …</p>;

export function Heading({ children, title }: { title: string; children?: ComponentChildren }) {
  useEffect(() => {
    document.title = title + " · Sandlot";
  }, [title]);
  return (
    <div class="heading">
      <h1 tabIndex={-1}>{title}</h1>
      {children && <div class="row">{children}</div>}
    </div>
  );
}
