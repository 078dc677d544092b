// What your agents may do with what is yours: secrets, answers, rules and tokens.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, json, segment, send } from "./api";
import { RuleCheck } from "./rulecheck";
import { me, now } from "./state";
import * as text from "./text";
import { NewToken, Tokens, type Token } from "./tokens";
import { Actions, confirm, Dialog, Empty, Heading, Loading, Trouble, useLoaded, useTask } from "./ui";
import { Usage } from "./usage";

export default function Access() {
  return (
    <>
      <Heading title="Access" />
      <Secrets />
      <Answers />
      <Rules />
      <RuleCheck />
      <Own />
      <Usage />
    </>
  );
}

interface Secret {
  name: string;
  created: string;
  changed: string;
  readable: boolean;
  bound?: { hosts: string[]; header?: string; basic?: boolean };
  used_by: string[];
}

// pages reads all pages of a list.
export async function pages<T>(path: string, of: string): Promise<T[]> {
  let list: T[] = [];
  let cursor = "";
  do {
    const page = await get<any>(path + "?limit=100" + (cursor && "&cursor=" + segment(cursor)));
    list = list.concat(page[of] ?? []);
    cursor = page.next_cursor ?? "";
  } while (cursor);
  return list;
}

function Secrets() {
  const list = useLoaded("", () => pages<Secret>("v1/secrets", "secrets"));
  const [adding, setAdding] = useState(false);
  const task = useTask();
  const remove = (s: Secret) =>
    confirm({
      title: `Remove ${s.name}?`,
      detail: <p>{s.used_by.length ? `These servers use it: ${s.used_by.map(text.name).join(", ")}.` : "No server uses it."}</p>,
      yes: "Remove",
      danger: true,
      do: () => void task.run(async () => {
        await json("DELETE", "v1/secrets/" + segment(s.name));
        list.again();
      }),
    });
  return (
    <section aria-labelledby="secrets">
      <div class="row">
        <h2 id="secrets">Secrets</h2>
        <button class="small" onClick={() => setAdding(true)}>
          Add a secret
        </button>
      </div>
      <Trouble of={list.failed ?? task.failed} />
      {!list.value && !list.failed && <Loading />}
      {list.value && !list.value.length && (
        <Empty title="No secret yet. Programs and servers use them by name, and nobody can read them again." command="sandlot secret set SEARCH_KEY" />
      )}
      {!!list.value?.length && (
        <ul class="plainlist">
          {list.value.map((s) => (
            <li key={s.name} class="row" data-secret={s.name}>
              <span>
                <code>{text.name(s.name)}</code>{" "}
                <span class="quiet">
                  {s.bound ? `goes to ${s.bound.hosts.map(text.name).join(", ")} alone` : "is given to programs that ask for it"}
                  {!!s.used_by.length && `; used by ${s.used_by.map(text.name).join(", ")}`}; changed {text.ago(s.changed, now.value)}
                  {!s.readable && "; it cannot be decrypted"}
                </span>
              </span>
              <button class="small danger" disabled={task.busy} onClick={() => remove(s)} aria-label={"Remove " + s.name}>
                Remove
              </button>
            </li>
          ))}
        </ul>
      )}
      {adding && <NewSecret close={() => (setAdding(false), list.again())} />}
    </section>
  );
}

function NewSecret({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const [hosts, setHosts] = useState("");
  const task = useTask();
  const first = useRef<HTMLInputElement>(null);
  useEffect(() => first.current?.focus(), []);
  const store = (e: globalThis.Event) => {
    e.preventDefault();
    void task.run(async () => {
      const q = new URLSearchParams();
      for (const h of hosts.split(/[\s,]+/).filter(Boolean)) q.append("host", h);
      await send("PUT", "v1/secrets/" + segment(name.trim()) + (q.size ? "?" + q : ""), value);
      close();
    });
  };
  return (
    <Dialog title="Add a secret" close={close} wide>
      <form onSubmit={store}>
        <label for="secret-name">Name</label>
        <input ref={first} id="secret-name" required pattern="[A-Za-z_][A-Za-z0-9_]*" autocomplete="off" value={name}
          onInput={(e) => setName(e.currentTarget.value)} />
        <label for="secret-value">Value</label>
        <input id="secret-value" type="password" required autocomplete="new-password" value={value}
          onInput={(e) => setValue(e.currentTarget.value)} />
        <label for="secret-hosts">Only to these hosts (empty: programs get the value itself)</label>
        <input id="secret-hosts" autocomplete="off" spellcheck={false} placeholder="api.example.com" value={hosts}
          onInput={(e) => setHosts(e.currentTarget.value)} />
        <Trouble of={task.failed} />
        <Actions close={close} busy={task.busy} yes="Store it" />
      </form>
    </Dialog>
  );
}

interface Answer {
  id: string;
  principal: string;
  operation: string;
  detail?: string;
  allowed: boolean;
  by: string;
  given: string;
}

// Answers shows one's own answers; all: those of everybody, for operators.
export function Answers({ all }: { all?: boolean }) {
  const list = useLoaded("", async () =>
    (await pages<Answer>("v1/questions", "answers")).filter((a) => all || a.principal === me.value?.principal));
  const task = useTask();
  const forget = (a: Answer) =>
    void task.run(async () => {
      await json("DELETE", "v1/questions/" + segment(a.id));
      list.again();
    });
  return (
    <section aria-labelledby="answers">
      <h2 id="answers">Answers that always count</h2>
      <Trouble of={list.failed ?? task.failed} />
      {!list.value && !list.failed && <Loading />}
      {list.value && !list.value.length && <p class="quiet">None. A question that you answer with Always is here then.</p>}
      {!!list.value?.length && (
        <ul class="plainlist">
          {list.value.map((a) => (
            <li key={a.id} class="row" data-answer={a.id}>
              <span>
                <span class={a.allowed ? "state good" : "state bad"}>
                  <span aria-hidden="true">{a.allowed ? "✓" : "✕"}</span> {a.allowed ? "yes" : "no"}
                </span>{" "}
                {text.name(a.operation)} <code>{text.name(a.detail ?? "")}</code>{" "}
                <span class="quiet">
                  {all && text.name(a.principal) + ", "}{text.ago(a.given, now.value)}
                </span>
              </span>
              <button class="small" disabled={task.busy} onClick={() => forget(a)} aria-label={`Withdraw ${text.name(a.operation)} ${text.name(a.detail ?? "")}`}>
                Withdraw
              </button>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

interface Rule {
  effect: string;
  rule: string;
  place?: string;
}

function Rules() {
  const list = useLoaded("", async () => (await get<{ rules: Rule[] }>("v1/policy")).rules);
  return (
    <section aria-labelledby="rules">
      <h2 id="rules">Rules about you</h2>
      <Trouble of={list.failed} />
      {!list.value && !list.failed && <Loading />}
      {list.value && !list.value.length && <p class="quiet">None: what no rule is about is allowed.</p>}
      {!!list.value?.length && (
        <>
          <p class="quiet">The first one that matches decides.</p>
          <ol class="rules">
            {list.value.map((r, i) => (
              <li key={i}>
                <code>{text.name(r.rule)}</code> {r.place && <span class="quiet">{text.name(r.place)}</span>}
              </li>
            ))}
          </ol>
        </>
      )}
    </section>
  );
}

function Own() {
  const list = useLoaded("", async () => (await get<{ tokens: Token[] }>("v1/tokens")).tokens);
  const [making, setMaking] = useState(false);
  return (
    <section aria-labelledby="tokens">
      <div class="row">
        <h2 id="tokens">Your tokens</h2>
        <button class="small" onClick={() => setMaking(true)}>
          New token
        </button>
      </div>
      <Trouble of={list.failed} />
      {!list.value && !list.failed && <Loading />}
      {list.value && !list.value.length && <p class="quiet">You have none.</p>}
      {!!list.value?.length && <Tokens of={list.value} again={list.again} />}
      {making && <NewToken close={() => (setMaking(false), list.again())} />}
    </section>
  );
}
