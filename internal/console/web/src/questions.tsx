// Questions that wait for a person.
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, json, segment } from "./api";
import { asked, end, isOperator, me, now, pointerIsOver, questionsCame, refused, sessionOf, titleOf, type Asked } from "./state";
import * as text from "./text";
import type { Field } from "./types";
import { Loading, Trouble, useTask } from "./ui";

// grace is how long a question can be seen, at its place, before it can be answered: so no click or key that was meant for
// something else answers it.
const grace = 425;

export function Questions() {
  const list = asked.value;
  useEffect(() => () => pointerIsOver(false), []); // the pointer does not leave what goes away
  return (
    <section aria-labelledby="waits" class="questions" onPointerEnter={() => pointerIsOver(true)}
      onPointerLeave={() => pointerIsOver(false)}>
      <h2 id="waits" tabIndex={-1}>Waits for you</h2>
      {list.map((a) => (
        <One key={a.question.id} asked={a} />
      ))}
      <Trouble of={refused.value.Questions} />
      {!list.length && !refused.value.Questions && (questionsCame.value ? <p class="quiet">No question waits for an answer.</p> : <Loading />)}
    </section>
  );
}

// useArmed tells whether an element has been seen at its place for so long that what is done there is meant for it. Time
// in which it was not on the screen, or the tab not in sight, does not count; nor that before it was last moved by
// anything but scrolling. still looks at this very moment.
function useArmed(since: number, element: RefObject<HTMLElement | null>) {
  const [armed, setArmed] = useState(-1);
  const top = useRef(0);
  const where = () => (element.current?.getBoundingClientRect().top ?? 0) + scrollY;
  const still = () => Math.abs(where() - top.current) < 1;
  useEffect(() => {
    let from = 0;
    let frame = 0;
    const anew = () => {
      top.current = where();
      from = performance.now();
      setArmed(-1);
    };
    const look = () => {
      if (!still()) anew();
      else if (performance.now() - from >= grace) setArmed(since);
      frame = requestAnimationFrame(look);
    };
    anew();
    look();
    document.addEventListener("visibilitychange", anew);
    return () => {
      cancelAnimationFrame(frame);
      document.removeEventListener("visibilitychange", anew);
    };
  }, [since]);
  return { armed: armed === since, still };
}

// moveOn moves the focus from a question that was answered to the next one: nobody is thrown back to the page's beginning.
function moveOn(from: HTMLElement | null) {
  const at = document.activeElement;
  if (at && at !== document.body && !from?.contains(at)) return;
  const open = [...document.querySelectorAll<HTMLElement>("[data-question]:not(.ended)")].filter((e) => e !== from);
  const next = open.find((e) => from && from.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING);
  (next ?? open[0] ?? document.getElementById("waits"))?.focus({ preventScroll: true });
}

function One({ asked: a }: { asked: Asked }) {
  const q = a.question;
  const element = useRef<HTMLElement>(null);
  const { armed, still } = useArmed(a.since, element);
  const task = useTask();
  const left = Math.max(0, Math.ceil((Date.parse(q.until) - now.value) / 1000));
  const answer = (answer: string, span: string, content?: object) =>
    void (still() && task.run(async () => {
      try {
        await json("POST", "v1/questions/" + segment(q.id), { answer, for: span, content });
        moveOn(element.current);
        end(q.id, "answered: " + answer);
      } catch (e) {
        if (!(e instanceof Failure) || e.problem.status !== 404) throw e;
        end(q.id, "ended");
      }
    }));
  const off = !armed || task.busy || !!a.ended;
  const fields = q.form?.fields ?? [];
  const session = q.session_id ? sessionOf(q.session_id) : undefined;
  return (
    <article ref={element} tabIndex={-1} class={"question" + (a.ended ? " ended" : "")} aria-label={"Question " + q.id} data-question={q.id}>
      <pre class="question-text">{text.lines(q.text)}</pre>
      <p class="quiet">
        {session && (
          <>
            <strong>{text.name(titleOf(session))}</strong>
            {" · "}
          </>
        )}
        {a.ended ? `It is over (${a.ended}).` : `The answer is no in ${left} s.`}
        {isOperator() && q.principal !== me.value?.principal && ` Asked of ${text.name(q.principal)}.`}
      </p>
      {fields.length ? (
        <Form id={q.id} fields={fields} off={off} answer={(c) => answer("yes", "once", c)} refuse={() => answer("no", "once")} />
      ) : (
        <div class="row">
          <button class="primary" disabled={off} onClick={() => answer("yes", "once")}>
            Once
          </button>
          {q.session_id && !q.form && (
            <button disabled={off} onClick={() => answer("yes", "session")}>
              This session
            </button>
          )}
          {!q.form && (
            <button disabled={off} onClick={() => answer("yes", "always")}>
              Always
            </button>
          )}
          <button class="danger" disabled={off} onClick={() => answer("no", "once")}>
            No
          </button>
        </div>
      )}
      <Trouble of={task.failed} />
    </article>
  );
}

type Values = Record<string, string | boolean>;

function Form(p: { id: string; fields: Field[]; off: boolean; answer: (content: object) => void; refuse: () => void }) {
  const [values, setValues] = useState<Values>(() =>
    Object.fromEntries(p.fields.map((f) => [f.name, f.type === "boolean" ? f.default === true : String(f.default ?? "")])),
  );
  const submit = (e: Event) => {
    e.preventDefault();
    const content: Record<string, unknown> = {};
    for (const f of p.fields) {
      const v = values[f.name];
      if (v === "") continue;
      content[f.name] = f.type === "number" || f.type === "integer" ? Number(v) : v;
    }
    p.answer(content);
  };
  return (
    <form onSubmit={submit}>
      {p.fields.map((f, i) => (
        <Entry key={f.name} id={p.id + "-" + i} field={f} value={values[f.name]}
          set={(v) => setValues({ ...values, [f.name]: v })} />
      ))}
      <div class="row">
        <button class="primary" disabled={p.off}>
          Send
        </button>
        <button type="button" class="danger" disabled={p.off} onClick={p.refuse}>
          No
        </button>
      </div>
    </form>
  );
}

function Entry(p: { id: string; field: Field; value: string | boolean; set: (v: string | boolean) => void }) {
  const f = p.field;
  const label = text.name(f.title || f.name) + (f.required ? " (required)" : "");
  if (f.type === "boolean") {
    return (
      <label class="check">
        <input type="checkbox" checked={p.value === true} onChange={(e) => p.set(e.currentTarget.checked)} /> {label}
      </label>
    );
  }
  return (
    <div class="field">
      <label for={p.id}>{label}</label>
      {f.description && <p class="quiet">{text.lines(f.description)}</p>}
      {f.choices?.length ? (
        <select id={p.id} value={String(p.value)} required={f.required} onChange={(e) => p.set(e.currentTarget.value)}>
          <option value=""></option>
          {f.choices.map((c) => (
            <option key={c} value={c}>
              {text.name(c)}
            </option>
          ))}
        </select>
      ) : (
        <input id={p.id} value={String(p.value)} required={f.required} autocomplete="off"
          inputMode={f.type === "string" ? "text" : "decimal"} onInput={(e) => p.set(e.currentTarget.value)} />
      )}
    </div>
  );
}
