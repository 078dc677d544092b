// Files of a session.
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, filePath, folderPath, json, movePath, send, signedFile, type Problem } from "./api";
import { live } from "./live";
import { address } from "./route";
import { Asleep } from "./asleep";
import { isAwake } from "./state";
import * as text from "./text";
import type { File as Entry, Session } from "./types";
import { confirm, Dialog, Empty, Loading, Trouble, useLoaded, useTask } from "./ui";

interface Change {
  change: "all" | "put" | "removed" | "asleep";
  files?: Entry[];
  truncated?: boolean;
  withheld?: number;
  file?: Entry;
  name?: string;
}

interface Listing {
  files: Entry[];
  truncated: boolean;
  withheld: number;
}

// useFolder returns what is in a folder, as the server pushes it. A folder that cannot be watched any more, as one that was
// removed, is asked for again on request.
function useFolder(id: string, path: string) {
  const [value, setValue] = useState<Listing | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    setFailed(null);
    const c = live.open("files", { session_id: id, path }, {
      data: (m: Change) =>
        setValue((was) => {
          if (m.change === "all") return { files: m.files ?? [], truncated: !!m.truncated, withheld: m.withheld ?? 0 };
          if (!was) return was;
          const name = m.file?.name ?? m.name;
          if (m.change === "asleep") return was;
          const rest = was.files.filter((f) => f.name !== name);
          return { ...was, files: m.file ? [...rest, m.file] : rest };
        }),
      closed: (error?: Problem) => error && setFailed(new Failure(error)),
    });
    return () => c.close();
  }, [id, path, turn]);
  return { value, failed, again: () => setTurn((n) => n + 1) };
}

// maxText is how much of a file is shown as text, in bytes; maxImage of an image.
const maxText = 1 << 20;
const maxImage = 16 << 20;

const join = (folder: string, name: string) => (folder === "/" ? "" : folder.replace(/\/+$/, "")) + "/" + name;
const base = (path: string) => path.replace(/\/+$/, "").replace(/^.*\//, "");

export default function Files({ session: s, path }: { session: Session; path: string }) {
  if (!isAwake(s)) return <Asleep session={s} what="Listing its files needs it awake." />;
  return <Folder key={path} session={s} path={path} />;
}

function Folder({ session: s, path }: { session: Session; path: string }) {
  const id = s.session_id;
  const list = useFolder(id, path);
  const [shown, setShown] = useState("");
  const [making, setMaking] = useState<"" | "file" | "folder">("");
  const [renaming, setRenaming] = useState<Entry | null>(null);
  const [uploading, setUploading] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  const task = useTask();
  const upload = (files: FileList | null) =>
    void task.run(async () => {
      try {
        for (const f of files ?? []) {
          setUploading(`${text.name(f.name)} (${text.size(f.size)})`);
          await put(f);
        }
      } finally {
        setUploading("");
      }
    });
  // A file that is there is replaced after a question alone, and only if it is still the one that was asked about.
  const put = async (f: File) => {
    const there = list.value?.files.find((x) => x.name === f.name);
    try {
      await send("PUT", filePath(id, join(path, f.name)), f, { "If-None-Match": "*" });
    } catch (e) {
      if (!changedMeanwhile(e) || (there && !there.etag)) throw e;
      confirm({
        title: `Replace ${text.name(f.name)}?`,
        detail: <p>There is a file with that name.</p>,
        yes: "Replace it",
        danger: true,
        do: () => void task.run(() =>
          send("PUT", filePath(id, join(path, f.name)), f, there?.etag ? { "If-Match": there.etag } : {})),
      });
    }
  };
  const remove = (f: Entry) =>
    confirm({
      title: `Delete ${text.name(f.name)}?`,
      detail: f.type === "directory" ? <p>With everything in it.</p> : undefined,
      yes: "Delete",
      danger: true,
      do: () => void task.run(async () => {
        const recursive = f.type === "directory";
        await send("DELETE", filePath(id, join(path, f.name)) + (recursive ? "?recursive=true" : ""), undefined,
          !recursive && f.etag ? { "If-Match": f.etag } : {});
      }),
    });
  const rows = [...(list.value?.files ?? [])].sort(
    (a, b) => +(b.type === "directory") - +(a.type === "directory") || a.name.localeCompare(b.name),
  );
  return (
    <section aria-label="Files">
      <div class="row">
        <Crumbs id={id} path={path} />
        <span class="row">
          <button class="small" onClick={() => setMaking("file")}>
            New file
          </button>
          <button class="small" onClick={() => setMaking("folder")}>
            New folder
          </button>
          <button class="small" disabled={task.busy} onClick={() => picker.current?.click()}>
            Upload
          </button>
          <input ref={picker} type="file" multiple hidden aria-label="Files to upload"
            onChange={(e) => (upload(e.currentTarget.files), (e.currentTarget.value = ""))} />
          {!!list.failed && (
            <button class="small" onClick={list.again}>
              Reload
            </button>
          )}
        </span>
      </div>
      {uploading && <p role="status">Uploading {uploading} …</p>}
      <Trouble of={task.failed || list.failed} />
      {!list.value && !list.failed && <Loading />}
      {list.value && !rows.length && (
        <Empty title="This folder is empty." command={text.name(path) === path ? "sandlot cp FILE " + text.quoted(id + ":" + join(path, "")) : undefined} />
      )}
      {!!rows.length && (
        <div class="scrolls" tabIndex={0} role="region" aria-label="Files in this folder">
          <table class="folds">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col" class="number">Size</th>
                <th scope="col" class="changed">Changed</th>
                <th scope="col"><span class="hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {rows.map((f) => (
                <tr key={f.name}>
                  <td>
                    {f.type === "directory" ? (
                      <a data-row href={address(["sessions", id, "files"], { path: join(path, f.name) })}>
                        {text.name(f.name)}/
                      </a>
                    ) : (
                      <button class="link" data-row onClick={() => setShown(join(path, f.name))}>
                        {text.name(f.name)}
                      </button>
                    )}
                    {f.target && <span class="quiet"> → {text.name(f.target)}</span>}
                  </td>
                  <td class="number">{f.type === "file" ? text.size(f.size) : ""}</td>
                  <td class="quiet changed">{text.full(f.modified)}</td>
                  <td class="actions">
                    {f.type === "file" && (
                      <button class="small" aria-label={"Download " + text.name(f.name)}
                        onClick={() => void task.run(() => download(id, join(path, f.name), f.size))}>
                        Download
                      </button>
                    )}
                    <button class="small" aria-label={"Rename " + text.name(f.name)} onClick={() => setRenaming(f)}>
                      Rename
                    </button>
                    <button class="small" aria-label={"Delete " + text.name(f.name)} onClick={() => remove(f)}>
                      Delete
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          {list.value?.truncated && <p class="quiet">There are more: these are the first {rows.length}.</p>}
        </div>
      )}
      {!!list.value?.withheld && <p class="quiet">{list.value.withheld} more that a rule does not let you list.</p>}
      {shown && <Show id={id} path={shown} close={() => setShown("")} />}
      {making && (
        <Name title={making === "file" ? "New file" : "New folder"} label={"Name, below " + text.name(path)} yes="Create"
          close={() => setMaking("")} give={async (name) => {
            if (making === "folder") {
              await send("POST", folderPath(id, join(path, name)));
            } else {
              await send("PUT", filePath(id, join(path, name)), "", { "If-None-Match": "*" });
              setShown(join(path, name));
            }
            setMaking("");
          }} />
      )}
      {renaming && (
        <Name title={"Rename " + text.name(renaming.name)} label="New name, or a path" yes="Rename" first={renaming.name}
          close={() => setRenaming(null)} give={async (name) => {
            const to = name.startsWith("/") ? name : join(path, name);
            await send("POST", movePath(id), JSON.stringify({ from: join(path, renaming.name), to }),
              { "Content-Type": "application/json",
                ...(renaming.type === "file" && renaming.etag ? { "If-Match": renaming.etag } : {}) });
            setRenaming(null);
          }} />
      )}
    </section>
  );
}

// changedMeanwhile tells whether the server has refused as a file is not what it was taken for.
const changedMeanwhile = (e: unknown) => e instanceof Failure && e.problem.status === 412;

function Crumbs({ id, path }: { id: string; path: string }) {
  const parts = path.split("/").filter(Boolean);
  const to = (n: number) => address(["sessions", id, "files"], { path: "/" + parts.slice(0, n).join("/") });
  return (
    <nav aria-label="Folder" class="crumbs">
      <a href={to(0)} aria-label="The root folder">/</a>
      {parts.map((p, i) => (
        <span key={i}>
          <a href={to(i + 1)} aria-current={i === parts.length - 1 ? "page" : undefined}>
            {text.name(p)}
          </a>
          {i < parts.length - 1 && "/"}
        </span>
      ))}
    </nav>
  );
}

function Name(p: {
  title: string; label: string; yes: string; first?: string; close: () => void; give: (name: string) => Promise<void>;
}) {
  const [name, setName] = useState(p.first ?? "");
  const task = useTask();
  return (
    <Dialog title={p.title} close={p.close}>
      <form onSubmit={(e) => (e.preventDefault(), void task.run(() => p.give(name)))}>
        <label for="file-name">{p.label}</label>
        <input id="file-name" required autocomplete="off" value={name} onInput={(e) => setName(e.currentTarget.value)} />
        <Trouble of={task.failed} />
        <div class="row end">
          <button class="primary" disabled={task.busy || name === p.first}>
            {p.yes}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

// maxKept is how large a file is that the page loads itself. It can tell why that fails. The browser streams a larger one to
// its disk.
const maxKept = 16 << 20;

async function download(id: string, path: string, size: number) {
  const a = document.createElement("a");
  a.download = base(path);
  const signed = size > maxKept ? await signedFile(id, path) : undefined;
  if (signed) {
    // What refuses the first byte would refuse the others, and is told here.
    await send("GET", filePath(id, path), undefined, { Range: "bytes=0-0" });
    a.href = signed;
    a.click();
    return;
  }
  const blob = await (await send("GET", filePath(id, path))).blob();
  a.href = URL.createObjectURL(blob);
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 60_000);
}

// imageType returns the type of a raster image by its first bytes. No other file is ever shown as anything but text.
export function imageType(b: Uint8Array): string {
  const begins = (...bytes: number[]) => bytes.every((x, i) => b[i] === x);
  if (begins(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return "image/png";
  if (begins(0xff, 0xd8, 0xff)) return "image/jpeg";
  if (begins(0x47, 0x49, 0x46, 0x38)) return "image/gif";
  if (begins(0x52, 0x49, 0x46, 0x46) && b[8] === 0x57 && b[9] === 0x45 && b[10] === 0x42 && b[11] === 0x50) return "image/webp";
  return "";
}

interface Content {
  image?: string;
  text?: string; // as the file has it
  etag?: string;
  size: number;
  whole: boolean;
}

async function read(id: string, path: string, most = maxText): Promise<Content> {
  const r = await send("GET", filePath(id, path), undefined, { Range: `bytes=0-${most - 1}` }).catch((e) => {
    // An empty file has no first byte.
    if (e instanceof Failure && e.problem.status === 416) return null;
    throw e;
  });
  if (!r) {
    const f = await json<Entry>("GET", filePath(id, path).replace("/files/", "/stat/"));
    return { text: "", etag: f.etag, size: 0, whole: true };
  }
  const etag = r.headers.get("ETag") ?? undefined;
  const b = new Uint8Array(await r.arrayBuffer());
  const size = Number(/\/(\d+)$/.exec(r.headers.get("Content-Range") ?? "")?.[1] ?? b.length);
  const type = imageType(b);
  if (type && size <= maxImage) {
    if (size > b.length && most < size) return read(id, path, size);
    return { image: URL.createObjectURL(new Blob([b], { type })), size, whole: true };
  }
  const whole = size === b.length;
  try {
    // A part may end within a character.
    const shown = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(b, { stream: !whole });
    if (!shown.includes("\0")) return { text: shown, etag, size, whole };
  } catch {
    // it is not text
  }
  return { size, whole };
}

// ends tells how the lines of a text end. A field of text makes "\n" of every end: it can be saved as it was only when all
// ends are alike.
function ends(text: string): "\n" | "\r\n" | "mixed" {
  const rest = text.replaceAll("\r\n", "");
  if (rest.includes("\r")) return "mixed";
  if (rest.length === text.length) return "\n";
  return rest.includes("\n") ? "mixed" : "\r\n";
}

const inField = (text: string) => text.replace(/\r\n?/g, "\n");

function Show({ id, path, close }: { id: string; path: string; close: () => void }) {
  const file = useLoaded(path, () => read(id, path));
  const [draft, setDraft] = useState<string | null>(null);
  const [said, setSaid] = useState("");
  const task = useTask();
  const f = file.value;
  useEffect(() => () => void (f?.image && URL.revokeObjectURL(f.image)), [f?.image]);
  const end = ends(f?.text ?? "");
  const editable = !!f?.whole && end !== "mixed";
  const changed = draft !== null && draft !== inField(f?.text ?? "");
  const [conflict, setConflict] = useState(false);
  const write = async (over: boolean) => {
    const text = end === "\r\n" ? draft!.replaceAll("\n", end) : draft!;
    const r = await send("PUT", filePath(id, path), text, over || !f?.etag ? {} : { "If-Match": f.etag });
    setConflict(false);
    file.set({ text, etag: r.headers.get("ETag") ?? undefined, size: new TextEncoder().encode(text).length, whole: true });
    setSaid("Saved");
  };
  // The agent may have written the file meanwhile: the server compares. The text here stays until somebody decides.
  const save = (over = false) =>
    void task.run(() =>
      write(over).catch((e) => {
        if (!changedMeanwhile(e)) throw e;
        setConflict(true);
      }));
  const reload = () =>
    void task.run(async () => {
      file.set(await read(id, path));
      setDraft(null);
      setConflict(false);
    });
  const leave = () =>
    changed
      ? confirm({ title: "Leave without saving?", yes: "Leave", danger: true, do: close })
      : close();
  const escaped = useRef(false);
  return (
    <Dialog title={text.name(base(path))} close={leave} wide>
      <p class="quiet">
        <code>{text.name(path)}</code>
        {f && " · " + text.size(f.size)}
      </p>
      <Trouble of={file.failed || task.failed} />
      {!f && !file.failed && <Loading />}
      {f?.image && <img class="picture" src={f.image} alt={"The image " + text.name(base(path))} />}
      {f?.text !== undefined && (
        <textarea
          class="editor"
          aria-label={"Content of " + text.name(base(path))}
          spellcheck={false}
          readOnly={!editable}
          value={draft ?? inField(f.text)}
          onInput={(e) => (setDraft(e.currentTarget.value), setSaid(""))}
          onKeyDown={(e) => {
            if ((e.ctrlKey || e.metaKey) && e.key === "s") {
              e.preventDefault();
              if (changed && !conflict) save();
            }
            // Tab indents; Esc and then Tab leaves.
            if (e.key === "Escape") {
              e.preventDefault();
              e.stopPropagation();
              escaped.current = true;
            } else if (e.key === "Tab" && !e.shiftKey && !escaped.current && editable) {
              e.preventDefault();
              e.currentTarget.setRangeText("\t", e.currentTarget.selectionStart, e.currentTarget.selectionEnd, "end");
              setDraft(e.currentTarget.value);
            } else if (e.key !== "Shift") {
              escaped.current = false;
            }
          }}
        />
      )}
      {conflict && (
        <div class="conflict" role="alert">
          <p>
            Somebody has written or removed this file since you opened it. Your text is still here, and is not saved.
          </p>
          <div class="row">
            <button class="small" disabled={task.busy} onClick={reload}>
              Discard my text and reload
            </button>
            <button class="small danger" disabled={task.busy} onClick={() => save(true)}>
              Overwrite the file
            </button>
          </div>
        </div>
      )}
      {f && !f.whole && f.text !== undefined && <p>This is the beginning. Download the file to see all of it.</p>}
      {f?.whole && end === "mixed" && (
        <p>Its lines end in several ways, which would not stay as they are: it is not edited here.</p>
      )}
      {f && f.text === undefined && !f.image && <p>It is not text, and not an image that is shown here.</p>}
      <div class="row end">
        <span role="status" class="quiet">{said}</span>
        <button onClick={() => void task.run(() => download(id, path, f?.size ?? 0))}>Download</button>
        {f?.text !== undefined && editable && (
          <button class="primary" disabled={!changed || task.busy || conflict} onClick={() => save()}>
            Save
          </button>
        )}
      </div>
    </Dialog>
  );
}

