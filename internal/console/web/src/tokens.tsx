// Tokens: what each is for, a new one, and its end.
import { useEffect, useRef, useState } from "preact/hooks";
import { json, segment } from "./api";
import { isOperator, me, now } from "./state";
import * as text from "./text";
import { Actions, Command, confirm, Dialog, Trouble, useTask } from "./ui";

export interface Token {
  id: string;
  user: string;
  service?: boolean;
  roles?: string[];
  scope?: string;
  acts_for?: boolean;
  created: string;
  expires: string | null;
  last_used: string | null;
  current?: boolean;
  made_by?: string;
}

export function Tokens({ of, again, named }: { of: Token[]; again: () => void; named?: boolean }) {
  const task = useTask();
  const revoke = (t: Token) =>
    confirm({
      title: `Revoke ${t.id}?`,
      detail: (
        <p>
          What uses it is refused from now on, and its connections end. So do tokens that its user has made with it.
          {isOperator() && " If it is the server's last one, no token is needed on this machine from then on."}
          {t.current && " It is the one with which you are here."}
        </p>
      ),
      yes: "Revoke",
      danger: true,
      do: () => void task.run(async () => {
        await json("DELETE", "v1/tokens/" + segment(t.id));
        again();
      }),
    });
  return (
    <>
      <Trouble of={task.failed} />
      <div class="scrolls" tabIndex={0} role="region" aria-label="Tokens">
        <table class="folds">
          <thead>
            <tr>
              <th scope="col">Token</th>
              {named && <th scope="col">User</th>}
              <th scope="col">For</th>
              <th scope="col" class="changed">Used</th>
              <th scope="col">Ends</th>
              <th scope="col">
                <span class="hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {of.map((t) => (
              <tr key={t.id} data-token={t.id}>
                <td>
                  <code>{text.name(t.id)}</code>
                  {t.current && <span class="quiet"> this one</span>}
                </td>
                {named && <td>{text.name(t.user)}</td>}
                <td>
                  {t.scope ? text.name(t.scope) : "all operations"}
                  {!!t.roles?.length && `, as ${t.roles.map(text.name).join(", ")}`}
                  {t.service && ", a service"}
                  {t.acts_for && ", for its users"}
                  {t.made_by && <span class="quiet"> made with {text.name(t.made_by)}</span>}
                </td>
                <td class="changed">{t.last_used ? text.ago(t.last_used, now.value) : "never"}</td>
                <td>
                  <span class="folded">ends </span>
                  {t.expires ? text.full(t.expires) : "never"}
                </td>
                <td class="actions">
                  <button class="small danger" disabled={task.busy} onClick={() => revoke(t)} aria-label={"Revoke " + t.id}>
                    Revoke
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

const scopes: [scope: string, title: string][] = [
  ["", "all that mine is for"],
  ["code.* shell.* file.* session.* process.*", "code and files in sessions"],
  ["session.list file.read file.list process.list process.read event.read", "only reading"],
];

// NewToken makes a token and shows its value, once. Operators name the user.
export function NewToken({ close, forOthers }: { close: () => void; forOthers?: boolean }) {
  const [user, setUser] = useState("");
  const [scope, setScope] = useState("");
  const [expires, setExpires] = useState("90d");
  const [service, setService] = useState(false);
  const [roles, setRoles] = useState<string[]>([]);
  const [made, setMade] = useState<{ id: string; token: string } | null>(null);
  const task = useTask();
  const first = useRef<HTMLInputElement>(null);
  useEffect(() => first.current?.focus(), []);
  const make = (e: globalThis.Event) => {
    e.preventDefault();
    void task.run(async () => {
      const body: Record<string, unknown> = {};
      const list = scope.split(/[\s,]+/).filter(Boolean);
      if (list.length) body.scope = list;
      if (expires.trim()) body.expires_in = expires.trim();
      if (forOthers) body.user = user.trim();
      if (service) body.service = true;
      if (roles.length) body.roles = roles;
      setMade(await json("POST", "v1/tokens", body));
    });
  };
  const mine = me.value?.roles ?? [];
  const possible = mine.includes("operator") ? ["operator", "metrics", "logs"] : mine;
  if (made) {
    return (
      <Dialog title="The token" close={close} wide>
        <p>This is the only time that it is shown. Whoever has it acts as its user.</p>
        <div data-made={made.id}>
          <Command text={made.token} />
        </div>
        <Actions act={close} yes="I have it" />
      </Dialog>
    );
  }
  return (
    <Dialog title="New token" close={close} wide>
      <form onSubmit={make}>
        {forOthers && (
          <>
            <label for="token-user">User</label>
            <input ref={first} id="token-user" required autocomplete="off" value={user} onInput={(e) => setUser(e.currentTarget.value)} />
          </>
        )}
        <label for="token-scope">Operations, such as file.* (empty: {scopes[0][1]})</label>
        <input ref={forOthers ? undefined : first} id="token-scope" list="token-scopes" autocomplete="off" spellcheck={false} value={scope}
          onInput={(e) => setScope(e.currentTarget.value)} />
        <datalist id="token-scopes">
          {scopes.slice(1).map(([s, title]) => (
            <option key={s} value={s}>
              {title}
            </option>
          ))}
        </datalist>
        <label for="token-expires">Ends in, such as 12h or 90d (empty: with mine, or never)</label>
        <input id="token-expires" autocomplete="off" value={expires} onInput={(e) => setExpires(e.currentTarget.value)} />
        {possible.map((r) => (
          <label class="check" key={r}>
            <input type="checkbox" checked={roles.includes(r)}
              onChange={(e) => setRoles(e.currentTarget.checked ? [...roles, r] : roles.filter((x) => x !== r))} />
            with the role {r}
          </label>
        ))}
        {forOthers && (
          <label class="check">
            <input type="checkbox" checked={service} onChange={(e) => setService(e.currentTarget.checked)} />
            of a service that many people use
          </label>
        )}
        <Trouble of={task.failed} />
        <Actions close={close} busy={task.busy} yes="Make it" />
      </form>
    </Dialog>
  );
}
