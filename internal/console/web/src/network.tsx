// What a session may reach, and what it did.
import { get, segment } from "./api";
import { useEvents } from "./state";
import * as text from "./text";
import { Happened } from "./timeline";
import type { Session } from "./types";
import { Empty, Loading, Trouble, useLoaded } from "./ui";

interface NetworkState {
  policy: { mode: string; allow?: string[]; registries?: string[] };
  usage?: { open: number; connected: number; refused: number; unreachable: number; bytes_up: number; bytes_down: number };
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
            <dt>Mode</dt>
            <dd>{text.name(n.policy.mode)}</dd>
            <dt>Hosts</dt>
            <dd>{n.policy.allow?.length ? n.policy.allow.map(text.name).join(", ") : n.policy.registries?.length ? "none but the registries" : "none"}</dd>
            <dt>Registries</dt>
            <dd>{n.policy.registries?.length ? n.policy.registries.map(text.name).join(", ") : "none"}</dd>
            <dt>Sent, received</dt>
            <dd>
              {text.size(n.traffic.bytes_up)}, {text.size(n.traffic.bytes_down)}
              {n.max_bytes ? ` of ${text.size(n.max_bytes)}` : ""}
            </dd>
            {n.usage && (
              <>
                <dt>Connections</dt>
                <dd>
                  {n.usage.open} open, {n.usage.connected} made, {n.usage.refused} refused, {n.usage.unreachable} failed
                </dd>
              </>
            )}
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
