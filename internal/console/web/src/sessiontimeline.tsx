import { useEvents } from "./state";
import { Happened } from "./timeline";
import { Empty } from "./ui";

export default function SessionTimeline({ id }: { id: string }) {
  const { events: list, came, trouble } = useEvents({ session: id, limit: 200 }, 500);
  return (
    <section aria-label="Timeline">
      <Happened events={list} came={came} trouble={trouble} of="session">
        <Empty title="Nothing has happened here yet." command={`sandlot exec --session ${id} -- uname -a`} />
      </Happened>
    </section>
  );
}
