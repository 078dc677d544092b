// What a tool or a prompt of a third-party server has returned: hostile, and shown as text.
import { useEffect, useRef, useState } from "preact/hooks";
import * as text from "./text";

interface Block {
  type?: string;
  text?: string;
  data?: string;
  mimeType?: string;
  uri?: string;
  resource?: { uri?: string; text?: string };
}

// shown is how many characters of a text are shown.
const shown = 200_000;

function Text({ of }: { of: string }) {
  return (
    <pre class="output" tabIndex={0}>
      {text.lines(of.slice(0, shown))}
      {of.length > shown && `\n… ${of.length - shown} more characters`}
    </pre>
  );
}

// Images are of these types alone: SVG is a document.
const images = ["image/png", "image/jpeg", "image/gif", "image/webp"];

function Image({ of: b }: { of: Block }) {
  const [url, setURL] = useState("");
  useEffect(() => {
    let made = "";
    try {
      const bytes = Uint8Array.from(atob(b.data ?? ""), (c) => c.charCodeAt(0));
      setURL((made = URL.createObjectURL(new Blob([bytes], { type: b.mimeType }))));
    } catch {
      // it is not base64
    }
    return () => URL.revokeObjectURL(made);
  }, [b]);
  return url ? <img class="picture" src={url} alt="Image of the result" /> : <p class="quiet">(an image that cannot be read)</p>;
}

function One({ of: b }: { of: Block }) {
  if (b.type === "text") return <Text of={b.text ?? ""} />;
  if (b.type === "image" && images.includes(b.mimeType ?? "")) return <Image of={b} />;
  if (b.type === "resource" && b.resource?.text !== undefined) return <Text of={(b.resource.uri ?? "") + "\n" + b.resource.text} />;
  if (b.type === "resource_link") return <Text of={b.uri ?? ""} />;
  return (
    <p class="quiet">
      ({text.name(b.type ?? "something")} {text.name((b.mimeType ?? "").slice(0, 100))}, not shown)
    </p>
  );
}

const blocks = (content: unknown): Block[] =>
  (Array.isArray(content) ? content : content ? [content] : []).filter((b) => b && typeof b === "object");

export interface Returned {
  isError?: boolean;
  content?: unknown;
  structuredContent?: unknown;
  messages?: { role?: string; content?: unknown }[];
}

// Result shows what a tool or, with messages, a prompt has returned.
export function Result({ of: r }: { of: Returned }) {
  const all = blocks(r.content);
  const place = useRef<HTMLElement>(null);
  useEffect(() => place.current?.scrollIntoView({ block: "nearest" }), [r]); // a form may be long
  return (
    <section ref={place} aria-label="Result" role="status" data-result>
      <h3>{r.isError ? "It says that it failed" : "Result"}</h3>
      {all.map((b, i) => (
        <One key={i} of={b} />
      ))}
      {r.messages?.map((m, i) => (
        <div key={i}>
          <h4>{text.name(String(m.role ?? ""))}</h4>
          {blocks(m.content).map((b, j) => (
            <One key={j} of={b} />
          ))}
        </div>
      ))}
      {r.structuredContent !== undefined && !all.some((b) => b.type === "text") && (
        <Text of={JSON.stringify(r.structuredContent, null, 2)} />
      )}
      {!all.length && !r.messages?.length && r.structuredContent === undefined && <p class="quiet">(nothing)</p>}
    </section>
  );
}
