// What a session may reach, and what it did.
import { get, segment } from "./api";
import { ConnectionsFact, PolicyFacts, TrafficFact, type NetworkPolicy, type NetworkUsage } from "./networkfacts";
import { useEvents } from "./state";
import * as text from "./text";
import { Happened } from "./timeline";
import type { Session } from "./types";
import { Empty, Loading, Trouble, useLoaded } from "./ui";

interface NetworkState {
  policy: NetworkPolicy;
  usage?: NetworkUsage;
  traffic: { bytes_up: number; bytes_down: number };
  max_bytes?: number;
}

export default function Network({ session: s }: { session: Session }) {
  const id = s.session_id;
  const state = useLoaded(id, () => get<NetworkState>(`v1/sessions/${segment(id)}/network`));
  const { events: list, came, trouble } = useEvents({ session: id, kinds: ["egress"], limit: 200 }, 500);
  const n = state.value;
  return (
    <>
      <section aria-labelledby="may">
        <h2 id="may">May reach</h2>
        <Trouble of={state.failed} />
        {!n && !state.failed && <Loading />}
        {n && (
          <dl class="facts">
            <PolicyFacts of={n.policy} />
            <TrafficFact of={n.traffic} most={n.max_bytes} />
            {n.usage && <ConnectionsFact of={n.usage} />}
          </dl>
        )}
        <p>
          <button class="small" onClick={state.again}>
            Reload
          </button>
        </p>
      </section>
      <section aria-labelledby="did">
        <h2 id="did">Connections</h2>
        <Happened events={list} came={came} trouble={trouble} of="session">
          <Empty title="No program has connected yet." command={`sandlot exec --session ${id} -- pip download --no-deps six`} />
        </Happened>
      </section>
    </>
  );
}
