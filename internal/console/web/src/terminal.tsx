// Terminals of a session. They live in the server: a reload, or another tab, shows the same ones.
import type { Terminal as XTerm } from "@xterm/xterm";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, get, json, segment } from "./api";
import { openPalette } from "./keys";
import { live, type Channel } from "./live";
import { isAwake } from "./state";
import { adopt } from "./style";
import * as text from "./text";
import type { Session } from "./types";
import { Asleep } from "./asleep";
import { confirm, Empty, Loading, Trouble, useLoaded, useTask } from "./ui";

type Library = typeof import("./xterm");

let library: Promise<Library> | undefined;

// load loads xterm.js once.
function load() {
  library ??= import("./xterm").then((l) => (adopt(l.css), l));
  library.catch(() => (library = undefined));
  return library;
}

interface Row {
  terminal_id: string;
  command?: string[];
}

const isNew = "";

export default function Terminals({ session: s }: { session: Session }) {
  const id = s.session_id;
  const xterm = useLoaded("", load);
  const list = useLoaded(id, async () => (await get<{ terminals: Row[] }>(`v1/sessions/${segment(id)}/terminals`)).terminals ?? []);
  const [chosen, setChosen] = useState<string | null>(null);
  const [reader, setReader] = useState(false);
  const [turn, setTurn] = useState(0);
  // Under which key a terminal was opened that is new: it stays on the screen when it has got its id.
  const [born, setBorn] = useState<Record<string, string>>({});
  const task = useTask();
  if (xterm.failed) return <Trouble of="The terminal cannot be loaded: reload the page." />;
  if (!xterm.value || (!list.value && !list.failed)) return <Loading />;
  const all = list.value ?? [];
  const at = chosen ?? all[0]?.terminal_id ?? (isAwake(s) ? isNew : null);
  const more = () => {
    setChosen(isNew);
    setTurn(turn + 1);
  };
  const remove = (terminal: string) =>
    void task.run(async () => {
      await json("DELETE", `v1/sessions/${segment(id)}/terminals/${segment(terminal)}`);
      setChosen(null);
      list.again();
    });
  return (
    <section aria-label="Terminal" class="terminals">
      <div class="row">
        {all.map((t, i) => (
          <button key={t.terminal_id} class="small" aria-pressed={at === t.terminal_id} onClick={() => setChosen(t.terminal_id)}>
            {i + 1}
          </button>
        ))}
        <button class="small" onClick={more} disabled={s.status === "paused"}>
          New terminal
        </button>
        {at && (
          <button class="small" disabled={task.busy} onClick={() => remove(at)}>
            Close this one
          </button>
        )}
        <label class="check small">
          <input type="checkbox" checked={reader} onChange={(e) => setReader(e.currentTarget.checked)} /> for screen readers
        </label>
      </div>
      <Trouble of={list.failed || task.failed} />
      {at === null ? (
        <Asleep session={s} what="A shell needs it awake." />
      ) : (
        <View key={at ? born[at] ?? at : "new" + turn} library={xterm.value} session={id} terminal={at} reader={reader}
          opened={(t) => {
            if (at !== isNew) return;
            setBorn({ ...born, [t]: "new" + turn });
            setChosen(t);
            list.set([...all, { terminal_id: t }]);
          }}
          ended={() => (setChosen(null), list.again())}
        />
      )}
    </section>
  );
}

function View(p: {
  library: Library;
  session: string;
  terminal: string;
  reader: boolean;
  opened: (id: string) => void;
  ended: () => void;
}) {
  const place = useRef<HTMLDivElement>(null);
  const [over, setOver] = useState("");
  const [failed, setFailed] = useState<unknown>(null);
  const screen = useRef<XTerm | null>(null);
  useEffect(() => {
    const x = (screen.current = newTerminal(p.library));
    const fit = new p.library.FitAddon();
    x.loadAddon(fit);
    x.open(place.current!);
    fit.fit(); // from now on the server says the size: that of the smallest of those who look
    let c: Channel;
    let id = p.terminal;
    let begun = false;
    c = live.open("terminal", { session_id: p.session, terminal_id: id, rows: x.rows, cols: x.cols }, {
      opened: (d) => {
        id = d.terminal_id;
        c.args = { ...c.args, terminal_id: id };
        x.reset();
        const { rows, cols } = c.args as { rows: number; cols: number };
        c.resize(rows, cols);
        place.current?.setAttribute("data-terminal", id);
        if (!begun) p.opened(id);
        begun = true;
      },
      data: (d) => d.rows > 0 && d.cols > 0 && x.resize(d.cols, d.rows),
      bytes: (b) => {
        const n = c.number; // of which later bytes are none, when the connection breaks meanwhile
        x.write(b, () => n === c.number && c.took("bytes", b.length));
      },
      closed: (error, data) => {
        place.current?.removeAttribute("data-terminal");
        if (error) setFailed(new Failure({ ...error, status: 0, title: "" }));
        else setOver(`The shell has ended${data?.exit_code === undefined ? "" : ` with code ${data.exit_code}`}.`);
      },
    });
    const utf8 = new TextEncoder();
    x.onData((d) => c.send(utf8.encode(d)));
    x.onBinary((d) => c.send(Uint8Array.from(d, (ch) => ch.charCodeAt(0))));
    const watch = new ResizeObserver(() => {
      const d = fit.proposeDimensions();
      if (d && d.rows > 0 && d.cols > 0 && (d.rows !== c.args.rows || d.cols !== c.args.cols)) c.resize(d.rows, d.cols);
    });
    watch.observe(place.current!);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const recolour = () => (x.options.theme = theme());
    dark.addEventListener("change", recolour);
    x.focus();
    return () => {
      dark.removeEventListener("change", recolour);
      watch.disconnect();
      c.close();
      x.dispose();
    };
  }, []);
  useEffect(() => {
    if (screen.current) screen.current.options.screenReaderMode = p.reader;
  }, [p.reader]);
  return (
    <>
      <Trouble of={failed} what="The terminal cannot be shown" />
      {over && (
        <Empty title={over}>
          <button onClick={p.ended}>Back to the terminals</button>
        </Empty>
      )}
      <div ref={place} class={"shell" + (over || failed ? " over" : "")} />
      <p class="quiet">
        <kbd>Esc</kbd> then <kbd>Tab</kbd> leaves it · <kbd>Ctrl-Shift-K</kbd> goes elsewhere
      </p>
    </>
  );
}

function theme() {
  const css = getComputedStyle(document.documentElement);
  const colour = (name: string) => css.getPropertyValue(name).trim();
  return {
    background: colour("--term-back"),
    foreground: colour("--term-text"),
    cursor: colour("--term-text"),
    cursorAccent: colour("--term-back"),
    selectionBackground: colour("--term-selection"),
  };
}

function newTerminal(library: Library) {
  const x = new library.Terminal({
    theme: theme(),
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
    fontSize: 13,
    minimumContrastRatio: 4.5,
    cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
    scrollback: 5000,
    // A link that a program prints leads anywhere: the address is shown first.
    linkHandler: { activate: (_e, address) => follow(address) },
  });
  let escaped = false;
  x.attachCustomKeyEventHandler((e) => {
    if (e.type !== "keydown") return true;
    if (e.ctrlKey && e.shiftKey && e.key.toLowerCase() === "k") {
      openPalette();
      e.preventDefault();
      return false;
    }
    const leaves = escaped && e.key === "Tab";
    if (e.key !== "Shift") escaped = e.key === "Escape";
    return !leaves;
  });
  return x;
}

function follow(address: string) {
  if (!/^https?:\/\//i.test(address)) return;
  confirm({
    title: "Open this address?",
    detail: <pre>{text.lines(address)}</pre>,
    yes: "Open it",
    do: () => void open(address, "_blank", "noopener,noreferrer"),
  });
}
