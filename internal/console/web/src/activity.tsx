// Every event, with filters in the address.
import { replace, route } from "./route";
import { sessions, titleOf, useEvents } from "./state";
import * as text from "./text";
import { Happened } from "./timeline";
import { Empty, Heading } from "./ui";

const kinds = ["call", "connection", "egress", "session", "consent", "token", "server"];
const most = 1000;

export default function Activity() {
  const q = route.value.query;
  const filter = { kind: q.get("kind") ?? "", session: q.get("session") ?? "", text: q.get("text") ?? "" };
  const set = (change: Partial<typeof filter>) => replace(["activity"], { ...filter, ...change });
  const args: Record<string, unknown> = { limit: most };
  if (filter.kind) args.kinds = [filter.kind];
  if (filter.session) args.session = filter.session;
  const { events: all, came, trouble } = useEvents(args, most);
  const filtered = filter.kind || filter.session;
  const wanted = filter.text.toLowerCase();
  const found = wanted
    ? all.filter((e) => [e.operation, e.name, e.outcome, e.principal, e.session_id].join(" ").toLowerCase().includes(wanted))
    : all;
  return (
    <>
      <Heading title="Activity" />
      <form class="row filters" role="search" onSubmit={(e) => e.preventDefault()}>
        <span class="field">
          <label for="kind">Kind</label>
          <select id="kind" value={filter.kind} onChange={(e) => set({ kind: e.currentTarget.value })}>
            <option value="">all</option>
            {kinds.map((k) => (
              <option key={k}>{k}</option>
            ))}
          </select>
        </span>
        <span class="field">
          <label for="of-session">Session</label>
          <select id="of-session" value={filter.session} onChange={(e) => set({ session: e.currentTarget.value })}>
            <option value="">all</option>
            {sessions.value?.map((s) => (
              <option key={s.session_id} value={s.session_id}>
                {text.name(titleOf(s))}
              </option>
            ))}
          </select>
        </span>
        <span class="field">
          <label for="words">Words</label>
          <input id="words" type="search" data-filter autocomplete="off" value={filter.text}
            onInput={(e) => set({ text: e.currentTarget.value })} />
        </span>
      </form>
      <p class="quiet" role="status">
        {came && found.length + " events"}{all.length >= most ? `, of the newest ${most}` : ""}
      </p>
      <Happened events={found} came={came} trouble={trouble}>
        <Empty title={all.length ? "No event has these words." : filtered ? "No such event." : "Nothing has happened yet."}
          command="sandlot events" />
      </Happened>
    </>
  );
}
