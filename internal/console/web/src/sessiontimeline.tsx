import { useEvents } from "./state";
import { Timeline } from "./timeline";
import { Empty, Trouble } from "./ui";

export default function SessionTimeline({ id }: { id: string }) {
  const { events: list, trouble } = useEvents({ session: id, limit: 200 }, 500);
  return (
    <section aria-label="Timeline">
      <Trouble of={trouble} />
      {list.length ? (
        <Timeline events={list} of="session" />
      ) : !trouble && (
        <Empty title="Nothing has happened here yet." command={`sandlot exec --session ${id} -- uname -a`} />
      )}
    </section>
  );
}
