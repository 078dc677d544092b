// What would happen: the rules decide as they do when it is done, and nothing is done.
import { useState } from "preact/hooks";
import { json } from "./api";
import { sessions, titleOf } from "./state";
import * as text from "./text";
import type { Token } from "./tokens";
import { Trouble, useTask } from "./ui";

interface Verdict {
  effect: string;
  rule: string;
  place?: string;
  reason?: string;
  opens?: string;
  answer?: string;
  cause?: string;
}

// acts are what people ask about most; any other operation can be typed.
const acts: [operation: string, detail: string][] = [
  ["network.reach", "api.github.com:443"],
  ["shell.execute", "git push origin main"],
  ["code.execute", ""],
  ["file.read", "/workspace/notes.txt"],
  ["file.write", "/workspace/notes.txt"],
  ["mcp.call", "SERVER TOOL"],
  ["mcp.install", "github npm:@modelcontextprotocol/server-github"],
  ["mcp.connect", ""],
  ["secret.use", "SEARCH_KEY"],
  ["port.expose", ""],
  ["session.create", ""],
];

const words: Record<string, [sign: string, tone: string, text: string]> = {
  allow: ["✓", "good", "It would be done."],
  ask: ["▲", "warn", "A person would be asked first."],
  deny: ["✕", "bad", "It would be refused."],
};

interface User {
  principal: string;
  name: string;
  tokens: Token[];
}

export function RuleCheck({ users }: { users?: User[] }) {
  const [operation, setOperation] = useState("network.reach");
  const [detail, setDetail] = useState("");
  const [session, setSession] = useState("");
  const [principal, setPrincipal] = useState("");
  const [token, setToken] = useState("");
  const tokens = users?.find((u) => [u.principal, u.name].includes(principal.trim()))?.tokens;
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  const task = useTask();
  const check = (e: globalThis.Event) => {
    e.preventDefault();
    setVerdict(null);
    void task.run(async () => {
      const q: Record<string, string> = { operation: operation.trim() };
      if (detail) q.detail = detail;
      if (principal) q.principal = principal.trim();
      if (principal && token) q.token_id = token;
      if (session && !principal && q.operation === "network.reach") q.session_id = session;
      setVerdict(await json<Verdict>("POST", "v1/policy/check", q));
    });
  };
  const example = acts.find(([o]) => o === operation)?.[1] ?? "";
  return (
    <section aria-labelledby="would">
      <h2 id="would">What would happen</h2>
      <p class="quiet">Nothing is done, and no host is looked up.</p>
      <form class="row filters" onSubmit={check}>
        {users && (
          <span class="field">
            <label for="check-user">User</label>
            <input id="check-user" list="check-users" autocomplete="off" placeholder="me" value={principal}
              onInput={(e) => (setPrincipal(e.currentTarget.value), setToken(""))} />
            <datalist id="check-users">
              {users.map((u) => (
                <option key={u.principal} value={u.principal} />
              ))}
            </datalist>
          </span>
        )}
        {!!tokens?.length && (
          <span class="field">
            <label for="check-token">With the rights of</label>
            <select id="check-token" value={token} onChange={(e) => setToken(e.currentTarget.value)}>
              <option value="">all tokens, if they have the same</option>
              {tokens.map((t) => (
                <option key={t.id} value={t.id}>
                  {t.id}
                  {t.service && ", a service"}
                  {!!t.roles?.length && ", " + t.roles.map(text.name).join(", ")}
                </option>
              ))}
            </select>
          </span>
        )}
        <span class="field">
          <label for="check-operation">Operation</label>
          <input id="check-operation" list="check-operations" required autocomplete="off" value={operation}
            onInput={(e) => setOperation(e.currentTarget.value)} />
          <datalist id="check-operations">
            {acts.map(([o]) => (
              <option key={o} value={o} />
            ))}
          </datalist>
        </span>
        <span class="field wide">
          <label for="check-detail">What: a host and port, a command, a path, a tool</label>
          <input id="check-detail" autocomplete="off" spellcheck={false} placeholder={example} value={detail}
            onInput={(e) => setDetail(e.currentTarget.value)} />
        </span>
        {!users && operation === "network.reach" && (
          <span class="field">
            <label for="check-session">In</label>
            <select id="check-session" value={session} onChange={(e) => setSession(e.currentTarget.value)}>
              <option value="">a new session</option>
              {sessions.value?.map((s) => (
                <option key={s.session_id} value={s.session_id}>
                  {text.name(titleOf(s))}
                </option>
              ))}
            </select>
          </span>
        )}
        <button class="primary" disabled={task.busy}>
          Check
        </button>
      </form>
      <Trouble of={task.failed} />
      <div role="status" data-verdict={verdict?.effect ?? ""}>
        {verdict && <Shown verdict={verdict} />}
      </div>
    </section>
  );
}

function Shown({ verdict: v }: { verdict: Verdict }) {
  const [sign, tone, said] = words[v.effect] ?? words.deny;
  return (
    <div class="command verdict">
      <div>
        <p class={"state " + tone}>
          <span aria-hidden="true">{sign}</span> {said}
        </p>
        {v.answer && <p>It was answered with {v.answer} for always: that counts.</p>}
        {v.rule && (
          <p>
            By the rule <code>{text.name(v.rule)}</code>
            {v.place && <span class="quiet"> ({text.name(v.place)})</span>}
          </p>
        )}
        {!v.rule && v.place && <p class="quiet">By {text.name(v.place)}</p>}
        {v.reason && (
          <p>
            {text.lines(v.reason)}
            {v.cause && <span class="quiet"> ({text.name(v.cause)})</span>}
          </p>
        )}
        {v.opens && (
          <p>
            This rule of the operator would allow it: <code>{text.name(v.opens)}</code>
          </p>
        )}
      </div>
    </div>
  );
}
