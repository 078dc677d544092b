// What the operator sees and does: users, rules, templates, usage and the network of all.
import { useState } from "preact/hooks";
import { get, json } from "./api";
import { Answers } from "./access";
import { Doctor, Images, Templates } from "./machine";
import { PolicyFacts, UsageFacts, type NetworkPolicy, type NetworkUsage } from "./networkfacts";
import { RuleCheck } from "./rulecheck";
import { isOperator } from "./state";
import * as text from "./text";
import { NewToken, Tokens, type Token } from "./tokens";
import { Empty, Heading, Loading, Trouble, useLoaded, useTask } from "./ui";
import { Usage } from "./usage";

interface User {
  principal: string;
  name: string;
  tokens: Token[];
  sessions: number;
}

export default function Operator() {
  const users = useLoaded("", async () => (isOperator() ? (await get<{ users: User[] }>("v1/users")).users : []));
  if (!isOperator()) {
    return (
      <>
        <Heading title="Operator" />
        <Empty title="This is for operators. A token with the role is made on the server's machine:" command="sandlot token create --user NAME --role operator" />
      </>
    );
  }
  return (
    <>
      <Heading title="Operator" />
      <Users of={users.value} failed={users.failed} again={users.again} />
      <RuleCheck users={users.value ?? []} />
      <Answers all />
      <Doctor />
      <Templates />
      <Images />
      <Network />
      <Backups />
      <Usage all />
    </>
  );
}

function Users({ of, failed, again }: { of: User[] | null; failed: unknown; again: () => void }) {
  const [making, setMaking] = useState(false);
  return (
    <section aria-labelledby="users">
      <div class="row">
        <h2 id="users">Users</h2>
        <button class="small" onClick={() => setMaking(true)}>
          New token
        </button>
      </div>
      <Trouble of={failed} />
      {!of && !failed && <Loading />}
      {of && (
        <>
          <ul class="plainlist">
            {of.map((u) => (
              <li key={u.principal} class="row" data-user={u.principal}>
                <span>
                  {text.name(u.name)} <span class="quiet">{text.name(u.principal)}</span>
                </span>
                <span class="quiet">
                  {u.tokens.length === 1 ? "1 token" : u.tokens.length + " tokens"}, {u.sessions === 1 ? "1 session" : u.sessions + " sessions"}
                </span>
              </li>
            ))}
          </ul>
          {of.some((u) => u.tokens.length) && <Tokens of={of.flatMap((u) => u.tokens)} again={again} named />}
        </>
      )}
      {making && <NewToken forOthers close={() => (setMaking(false), again())} />}
    </section>
  );
}

interface NetworkState {
  policy: NetworkPolicy;
  usage: NetworkUsage;
  settings_file?: string;
}

function Network() {
  const state = useLoaded("", () => get<NetworkState>("v1/network"));
  const n = state.value;
  return (
    <section aria-labelledby="network">
      <h2 id="network">Network of all sessions</h2>
      <Trouble of={state.failed} />
      {!n && !state.failed && <Loading />}
      {n && (
        <dl class="facts">
          <PolicyFacts of={n.policy} />
          <UsageFacts of={n.usage} />
          {n.settings_file && (
            <>
              <dt>Settings</dt>
              <dd>
                <code>{text.name(n.settings_file)}</code>
              </dd>
            </>
          )}
        </dl>
      )}
    </section>
  );
}

interface Backup {
  file: string;
  bytes: number;
  time: string;
}

function Backups() {
  const list = useLoaded("", async () => (await get<{ backups: Backup[] }>("v1/backups")).backups);
  const task = useTask();
  const make = () =>
    void task.run(async () => {
      await json("POST", "v1/backups");
      list.again();
    });
  return (
    <section aria-labelledby="backups">
      <div class="row">
        <h2 id="backups">Backups</h2>
        <button class="small" disabled={task.busy} onClick={make}>
          {task.busy ? "Working …" : "Make a backup"}
        </button>
      </div>
      <Trouble of={list.failed ?? task.failed} />
      <p class="quiet">Of the database, on the server. Not in it: the files of workspaces, and the key of secrets.</p>
      <ul class="plainlist">
        {list.value?.map((b) => (
          <li key={b.file} class="row" data-backup>
            <code>{text.name(b.file)}</code>
            <span class="quiet">
              {text.size(b.bytes)}, {text.full(b.time)}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
