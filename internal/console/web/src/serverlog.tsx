// The log of a third-party server, as it grows.
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, type Problem } from "./api";
import { live } from "./live";
import * as text from "./text";
import { Dialog, Loading, Trouble } from "./ui";

// kept is how many characters are shown: as many as the server keeps.
const kept = 64 << 10;

export function Log({ id, name, close }: { id: string; name: string; close: () => void }) {
  const [log, setLog] = useState({ text: "", lost: false });
  const [opened, setOpened] = useState(false);
  const [failed, setFailed] = useState<Problem | undefined>();
  const output = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    const c = live.open("log", { server: id }, {
      opened: () => setOpened(true),
      data: (m: { text: string; lost?: number }) =>
        setLog((was) => {
          const all = was.text + (m.lost ? `[${m.lost} bytes are missing here]\n` : "") + m.text;
          return { text: all.slice(-kept), lost: was.lost || all.length > kept };
        }),
      lost: () => setLog((was) => ({ ...was, text: was.text + "[the log begins anew]\n" })),
      closed: setFailed,
    });
    return () => c.close();
  }, [id]);
  useEffect(() => {
    if (atEnd.current) output.current?.scrollTo(0, output.current.scrollHeight);
  }, [log]);
  return (
    <Dialog title={"Log of " + text.name(name)} close={close} wide>
      <Trouble of={failed && new Failure(failed)} />
      {!opened && !failed && <Loading />}
      {opened && !log.text && <p class="quiet" role="status">It has printed nothing yet. New lines appear by themselves.</p>}
      {log.lost && <p class="quiet">What came before is not shown any more.</p>}
      {log.text && (
        <pre ref={output} class="output" tabIndex={0} aria-label="Log" data-log
          onScroll={(e) => {
            const o = e.currentTarget;
            atEnd.current = o.scrollHeight - o.scrollTop - o.clientHeight < 8;
          }}>
          {text.lines(log.text)}
        </pre>
      )}
    </Dialog>
  );
}
