import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { live } from "./live";
import { collect } from "./state";
import { Timeline } from "./timeline";
import type { Event } from "./types";
import { Empty } from "./ui";

export default function SessionTimeline({ id }: { id: string }) {
  const events = useMemo(() => signal<Event[]>([]), [id]);
  useEffect(() => {
    const c = live.open("events", { session: id, limit: 200 }, { data: collect(events, 500) });
    return () => c.close();
  }, [id]);
  const list = events.value;
  return (
    <section aria-label="Timeline">
      {list.length ? (
        <Timeline events={list} of="session" />
      ) : (
        <Empty title="Nothing has happened here yet." command={`sandlot exec --session ${id} -- uname -a`} />
      )}
    </section>
  );
}
