// Keys, and the palette of what they do.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, go } from "./route";
import { servers, sessions, titleOf } from "./state";
import * as text from "./text";
import { Dialog } from "./ui";

type Screens = [key: string, path: string, title: string][];

const palette = signal(false);
const help = signal(false);

const typing = (e: KeyboardEvent) =>
  e.target instanceof HTMLElement &&
  (e.target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(e.target.tagName));

const open = () => document.querySelector("dialog[open]") !== null;

// moveTo focuses the next row of the screen, or the one before.
function move(by: number) {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  if (!rows.length) return;
  const i = rows.indexOf(document.activeElement as HTMLElement);
  const next = rows[i < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, i + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

// focusWaiting focuses the first question, once the screen is there: within so many frames.
function focusWaiting(frames: number) {
  const heading = document.getElementById("waits");
  if (heading) (document.querySelector<HTMLElement>("[data-question]:not(.ended)") ?? heading).focus();
  else if (frames) requestAnimationFrame(() => focusWaiting(frames - 1));
}

// keys listens for the keys of all screens, until the returned function is called.
export function keys(screens: Screens) {
  let after = "";
  let timer = 0;
  const listen = (e: KeyboardEvent) => {
    const ctrl = e.ctrlKey || e.metaKey;
    if (ctrl && e.key.toLowerCase() === "k" && (!typing(e) || e.shiftKey)) {
      e.preventDefault();
      if (!open()) palette.value = true;
      return;
    }
    if (ctrl || e.altKey || !switched.value || typing(e) || open()) return;
    if (after === "g") {
      after = "";
      const to = screens.find(([key]) => key === e.key);
      if (to) {
        e.preventDefault();
        jump(to[1] ? [to[1]] : []);
      }
      return;
    }
    switch (e.key) {
      case "g":
        after = "g";
        clearTimeout(timer);
        timer = setTimeout(() => (after = ""), 1500);
        break;
      case "j":
        move(1);
        break;
      case "k":
        move(-1);
        break;
      case "w":
        e.preventDefault();
        if (location.hash !== address([])) go([]);
        focusWaiting(60);
        break;
      case "/": {
        const filter = document.querySelector<HTMLElement>("[data-filter]");
        if (filter) {
          e.preventDefault();
          filter.focus();
        }
        break;
      }
      case "?":
        e.preventDefault();
        help.value = true;
    }
  };
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}

export const closeAll = () => void (palette.value = help.value = false);

// switched tells whether the keys that are one character count. People who speak to their computer turn them off.
const switchName = "sandlot-keys";
const stored = () => {
  try {
    return localStorage.getItem(switchName);
  } catch {
    return null; // the browser stores nothing
  }
};
const switched = signal(stored() !== "off");

function turn(on: boolean) {
  switched.value = on;
  try {
    localStorage.setItem(switchName, on ? "on" : "off");
  } catch {
    // until the page is left
  }
}

let byKeys = false;

// jumped tells, once, whether keys have led to the screen: then the focus goes there too.
export function jumped() {
  const was = byKeys;
  byKeys = false;
  return was;
}

function jump(path: string[]) {
  byKeys = true;
  go(path);
}

export const openPalette = () => void (palette.value = true);

export function Help({ screens }: { screens: Screens }) {
  if (!help.value) return null;
  const rows: [string, string][] = [
    ...screens.map(([key, , title]): [string, string] => ["g " + key, title]),
    ["w", "what waits for you; then Tab to its answers"],
    ["j, k", "the next row, the one before"],
    ["/", "the filter"],
    ["Ctrl-K", "find a screen, a session or a server"],
    ["Ctrl-Shift-K", "the same, from a terminal"],
    ["Esc, then Tab", "leave a terminal or an editor"],
    ["?", "this list"],
  ];
  return (
    <Dialog title="Keys" close={() => (help.value = false)}>
      <dl class="keys">
        {rows.map(([key, does]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input type="checkbox" checked={switched.value} onChange={(e) => turn(e.currentTarget.checked)} /> Keys of one
        character count
      </label>
    </Dialog>
  );
}

export function Palette({ screens }: { screens: Screens }) {
  if (!palette.value) return null;
  return <Choices screens={screens} close={() => (palette.value = false)} />;
}

function Choices({ screens, close }: { screens: Screens; close: () => void }) {
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const all: [title: string, path: string[] | null][] = [
    ...screens.map(([, path, title]): [string, string[]] => [title, path ? [path] : []]),
    ...(sessions.value ?? []).flatMap((s): [string, string[]][] => [
      ["Session " + text.name(titleOf(s)), ["sessions", s.session_id]],
      ["Terminal of " + text.name(titleOf(s)), ["sessions", s.session_id, "terminal"]],
      ["Files of " + text.name(titleOf(s)), ["sessions", s.session_id, "files"]],
    ]),
    ...(servers.value ?? []).map((s): [string, string[]] => ["Server " + text.name(s.name), ["servers", s.connectionId]]),
    ["Keys", null],
  ];
  const words = wanted.toLowerCase().split(/\s+/);
  const found = all.filter(([title]) => words.every((w) => title.toLowerCase().includes(w))).slice(0, 12);
  const chosen = Math.min(at, found.length - 1);
  const take = (i: number) => {
    close();
    const path = found[i]?.[1];
    if (path) jump(path);
    else if (path === null) help.value = true;
  };
  const listen = (e: KeyboardEvent) => {
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      setAt(Math.max(0, Math.min(found.length - 1, chosen + (e.key === "ArrowDown" ? 1 : -1))));
    } else if (e.key === "Enter") {
      e.preventDefault();
      take(chosen);
    }
  };
  return (
    <Dialog title="Go to" close={close}>
      <input
        ref={input}
        autofocus // what is typed at once is for it, and a space not for the button that closes
        role="combobox"
        aria-label="Screen, session or server"
        aria-expanded="true"
        aria-controls="palette"
        aria-activedescendant={chosen >= 0 ? "choice-" + chosen : undefined}
        autocomplete="off"
        value={wanted}
        onInput={(e) => (setWanted(e.currentTarget.value), setAt(0))}
        onKeyDown={listen}
      />
      <ul id="palette" role="listbox" aria-label="Found" class="choices">
        {found.map(([title, path], i) => (
          <li key={address(path ?? []) + title} id={"choice-" + i} role="option" aria-selected={i === chosen} onClick={() => take(i)}>
            {title}
          </li>
        ))}
      </ul>
      {!found.length && <p class="quiet">Nothing is called so.</p>}
    </Dialog>
  );
}
