// What is told of a network, of one session or of all: the inside of a list of facts.
import * as text from "./text";

export interface NetworkPolicy {
  mode: string;
  allow?: string[];
  registries?: string[];
}

export interface NetworkUsage {
  open: number;
  connected: number;
  refused: number;
  unreachable: number;
  bytes_up: number;
  bytes_down: number;
}

export function PolicyFacts({ of: p }: { of: NetworkPolicy }) {
  const registries = p.registries?.map(text.name).join(", ");
  return (
    <>
      <dt>Mode</dt>
      <dd>{text.name(p.mode)}</dd>
      <dt>Hosts</dt>
      <dd>{p.allow?.map(text.name).join(", ") || (registries ? "none but the registries" : "none")}</dd>
      <dt>Registries</dt>
      <dd>{registries || "none"}</dd>
    </>
  );
}

// most is how many bytes may be sent and received in all; 0: any number.
export function TrafficFact({ of: t, most }: { of: { bytes_up: number; bytes_down: number }; most?: number }) {
  return (
    <>
      <dt>Sent, received</dt>
      <dd>
        {text.size(t.bytes_up)}, {text.size(t.bytes_down)}
        {most ? ` of ${text.size(most)}` : ""}
      </dd>
    </>
  );
}

export function ConnectionsFact({ of: u }: { of: NetworkUsage }) {
  return (
    <>
      <dt>Connections</dt>
      <dd>
        {u.open} open, {u.connected} made, {u.refused} refused, {u.unreachable} failed
      </dd>
    </>
  );
}

export const UsageFacts = ({ of: u }: { of: NetworkUsage }) => (
  <>
    <ConnectionsFact of={u} />
    <TrafficFact of={u} />
  </>
);
