// One session, with its parts.
import { Failure, get, json, segment } from "./api";
import Files from "./files";
import History from "./history";
import Network from "./network";
import Results from "./results";
import Running from "./running";
import { address, go, route } from "./route";
import { isAwake, now, sessionOf, sessions, titleOf } from "./state";
import * as text from "./text";
import SessionTimeline from "./sessiontimeline";
import Terminals from "./terminal";
import type { Session } from "./types";
import { confirm, Empty, Heading, Loading, State, Trouble, useLoaded, useTask } from "./ui";

const tabs: [path: string, title: string][] = [
  ["terminal", "Terminal"],
  ["files", "Files"],
  ["results", "Results"],
  ["running", "Running"],
  ["network", "Network"],
  ["timeline", "Timeline"],
  ["history", "History"],
];

export default function SessionPage({ id, tab }: { id: string; tab: string }) {
  const s = sessionOf(id);
  if (!sessions.value) return <Loading />;
  if (!s) return <Missing key={id} id={id} />;
  const at = tab || "terminal";
  return (
    <>
      <Head session={s} />
      <nav class="tabs" aria-label="Parts of the session">
        {tabs.map(([path, title]) => (
          <a key={path} href={address(["sessions", id, path])} aria-current={at === path ? "page" : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <Part key={s.session_id + at} session={s} tab={at} />
    </>
  );
}

// Missing looks for a session that was not pushed yet, as right after it was made.
function Missing({ id }: { id: string }) {
  const found = useLoaded(id, async () => {
    const list = await get<{ sessions: Session[] }>("v1/sessions/" + segment(id));
    const known = new Set(list.sessions.map((s) => s.session_id));
    sessions.value = [...(sessions.value ?? []).filter((s) => !known.has(s.session_id)), ...list.sessions];
  });
  if (!found.failed) return <Loading />;
  const gone = found.failed instanceof Failure && [400, 404].includes(found.failed.problem.status);
  if (!gone) {
    return (
      <>
        <Heading title="Session">
          <button onClick={found.again}>Try again</button>
        </Heading>
        <Trouble of={found.failed} />
      </>
    );
  }
  return (
    <Empty title={`There is no session ${text.name(id)}.`}>
      <a href={address([])}>All sessions</a>
    </Empty>
  );
}

function Part({ session: s, tab }: { session: Session; tab: string }) {
  switch (tab) {
    case "terminal":
      return <Terminals session={s} />;
    case "files":
      return <Files session={s} path={route.value.query.get("path") ?? "/workspace"} />;
    case "results":
      return <Results session={s} />;
    case "running":
      return <Running session={s} />;
    case "network":
      return <Network session={s} />;
    case "timeline":
      return <SessionTimeline id={s.session_id} />;
    case "history":
      return <History session={s} />;
  }
  return <Empty title="There is no such part." />;
}

function Head({ session: s }: { session: Session }) {
  const task = useTask();
  const path = "v1/sessions/" + segment(s.session_id);
  const rest = (what: string) => void task.run(() => json("POST", path + "/" + what));
  const finish = () =>
    confirm({
      title: `End ${text.name(titleOf(s))}?`,
      detail: <p>Its processes, its variables and its files are removed. Snapshots of it stay.</p>,
      yes: "End it",
      danger: true,
      do: () => void task.run(async () => {
        await json("DELETE", path);
        go([]);
      }),
    });
  return (
    <>
      <Heading title={text.name(titleOf(s))}>
        <State of={s.status} />
        {s.status === "paused" ? (
          <button disabled={task.busy} onClick={() => rest("resume")}>
            Resume
          </button>
        ) : (
          <button disabled={task.busy} onClick={() => rest("pause")}>
            Pause
          </button>
        )}
        <button class="danger" disabled={task.busy} onClick={finish}>
          End
        </button>
      </Heading>
      <p class="quiet">
        {text.name(s.template)} · {text.name(s.flavor)} · <code>{s.session_id}</code>
        {isAwake(s) && s.usage && (
          <>
            {" · "}
            {text.megabytes(s.usage.memory_mb)} memory · {text.megabytes(s.usage.disk_mb)} disk
          </>
        )}
        {" · used "}
        {text.ago(s.last_accessed, now.value)}
        {s.ends_at && ` · ends ${text.full(s.ends_at)}`}
      </p>
      <Trouble of={task.failed} />
    </>
  );
}
