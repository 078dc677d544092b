// Questions that wait for a person.
import { useEffect, useState } from "preact/hooks";
import { Failure, json, segment } from "./api";
import { asked, end, isOperator, me, now, pointerIsOver, type Asked } from "./state";
import * as text from "./text";
import type { Field } from "./types";
import { Trouble, useTask } from "./ui";

// grace is how long a question is there, at its place, before it can be answered: so no click or key that was meant for
// something else answers it.
const grace = 425;

export function Questions() {
  const list = asked.value;
  return (
    <section aria-labelledby="waits" class="questions" onPointerEnter={() => pointerIsOver(true)}
      onPointerLeave={() => pointerIsOver(false)}>
      <h2 id="waits">Waits for you</h2>
      {list.map((a) => (
        <One key={a.question.id} asked={a} />
      ))}
      {!list.length && <p class="quiet">No question waits for an answer.</p>}
    </section>
  );
}

function useArmed(since: number) {
  const [armed, setArmed] = useState(0);
  useEffect(() => {
    const timer = setTimeout(() => setArmed(since), Math.max(0, since + grace - performance.now()));
    return () => clearTimeout(timer);
  }, [since]);
  return armed === since;
}

function One({ asked: a }: { asked: Asked }) {
  const q = a.question;
  const armed = useArmed(a.since);
  const task = useTask();
  const left = Math.max(0, Math.ceil((Date.parse(q.until) - now.value) / 1000));
  const answer = (answer: string, span: string, content?: object) =>
    void task.run(async () => {
      try {
        await json("POST", "v1/questions/" + segment(q.id), { answer, for: span, content });
        end(q.id, "answered: " + answer);
      } catch (e) {
        if (!(e instanceof Failure) || e.problem.status !== 404) throw e;
        end(q.id, "ended");
      }
    });
  const off = !armed || task.busy || !!a.ended;
  const fields = q.form?.fields ?? [];
  return (
    <article class={"question" + (a.ended ? " ended" : "")} aria-label={"Question " + q.id} data-question={q.id}>
      <pre class="question-text">{text.lines(q.text)}</pre>
      <p class="quiet">
        {a.ended ? `It is over (${a.ended}).` : `The answer is no in ${left} s.`}
        {isOperator() && q.principal !== me.value?.principal && ` Asked of ${text.name(q.principal)}.`}
      </p>
      {fields.length ? (
        <Form fields={fields} off={off} answer={(c) => answer("yes", "once", c)} refuse={() => answer("no", "once")} />
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

function Form(p: { fields: Field[]; off: boolean; answer: (content: object) => void; refuse: () => void }) {
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
        <Entry key={f.name} id={"field-" + i} field={f} value={values[f.name]}
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
