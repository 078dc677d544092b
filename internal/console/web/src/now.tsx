import { json, mcp } from "./api";
import { Questions } from "./questions";
import { address, go } from "./route";
import { events, eventsCame, missing, now, refused, sessions, someMissing, titleOf } from "./state";
import * as text from "./text";
import { Happened } from "./timeline";
import type { Session } from "./types";
import { Empty, Heading, Loading, State, Trouble, useTask } from "./ui";

export function Now() {
  const task = useTask();
  const all = sessions.value;
  const create = () =>
    void task.run(async () => {
      const s = await json<{ session_id: string }>("POST", "v1/sessions", {});
      go(["sessions", s.session_id]);
    });
  return (
    <>
      <Heading title="Now">
        <button onClick={create} disabled={task.busy}>
          New session
        </button>
      </Heading>
      <Trouble of={task.failed} />
      <Questions />
      <section aria-labelledby="sessions">
        <h2 id="sessions">Sessions</h2>
        {!all && <Loading />}
        <Trouble of={refused.value.Sessions} />
        {all && !all.length && !refused.value.Sessions && (
          <Empty title="No session yet. Connect an agent, and ask it for something:" command={"claude mcp add --transport http sandlot " + mcp()} />
        )}
        <ul class="cards">
          {all?.map((s) => (
            <Card key={s.session_id} session={s} />
          ))}
        </ul>
      </section>
      <section aria-labelledby="happens">
        <h2 id="happens">What happens</h2>
        <Trouble of={missing.value && someMissing} />
        <Happened events={events.value.slice(0, 40)} came={eventsCame.value} trouble={refused.value.Events}>
          <Empty title="Nothing has happened yet." command="echo 'print(6*7)' | sandlot run -" />
        </Happened>
        {!!events.value.length && (
          <p>
            <a href={address(["activity"])}>All activity</a>
          </p>
        )}
      </section>
    </>
  );
}

function Card({ session: s }: { session: Session }) {
  const used = s.usage?.memory_mb;
  return (
    <li>
      <a class="card" href={address(["sessions", s.session_id])} data-row>
        <span class="card-title">{text.name(titleOf(s))}</span>
        <State of={s.status} />
        <span class="quiet">
          {text.name(s.template)} · {text.name(s.flavor)} · used {text.ago(s.last_accessed, now.value)}
        </span>
        {used !== undefined && (
          <span class="quiet">
            {text.megabytes(used)} of {text.megabytes(s.limits.memory_mb)} memory
            <meter aria-label="Memory" min={0} max={s.limits.memory_mb} value={used} />
          </span>
        )}
        {!!s.ports?.length && <span class="quiet">ports {s.ports.map((p) => p.port).join(", ")}</span>}
      </a>
    </li>
  );
}
