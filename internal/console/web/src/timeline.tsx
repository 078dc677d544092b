// Events as rows.
import type { ComponentChildren } from "preact";
import { me } from "./state";
import { address } from "./route";
import * as text from "./text";
import type { Event } from "./types";
import { Loading, State, Trouble } from "./ui";
import { sessionOf, titleOf } from "./state";

function what(e: Event) {
  let s = text.name(e.operation);
  if (e.name) s += " " + text.name(e.name);
  if (e.refused?.program) s += " by " + text.name(e.refused.program);
  if (e.count && e.count > 1) s += ` × ${e.count}`;
  return s;
}

// Happened shows events or, once it is known that there are none, what fills the place.
export function Happened(p: {
  events: Event[]; came: boolean; trouble?: unknown; of?: "session"; children: ComponentChildren;
}) {
  return (
    <>
      <Trouble of={p.trouble} />
      {p.events.length ? <Timeline events={p.events} of={p.of} /> : !p.trouble && (p.came ? p.children : <Loading />)}
    </>
  );
}

function Timeline({ events, of }: { events: Event[]; of?: "session" }) {
  return (
    <ol class="timeline">
      {events.map((e) => (
        <Row key={e.id} event={e} of={of} />
      ))}
    </ol>
  );
}

function Row({ event: e, of }: { event: Event; of?: "session" }) {
  const session = e.session_id && of !== "session" ? sessionOf(e.session_id) : undefined;
  return (
    <li>
      <time dateTime={e.time} title={text.full(e.time)}>
        {text.clock(e.time)}
      </time>
      <span class="kind">{e.kind}</span>
      <span class="what">
        {what(e)}
        {e.refused?.cause && <span class="quiet"> ({text.name(e.refused.cause)})</span>}
        {session && (
          <>
            {" in "}
            <a href={address(["sessions", session.session_id])}>{text.name(titleOf(session))}</a>
          </>
        )}
        {e.principal !== me.value?.principal && <span class="quiet"> for {text.name(e.principal)}</span>}
      </span>
      <span class="took">{e.duration_ms ? Math.round(e.duration_ms) + " ms" : ""}</span>
      <State of={e.outcome} />
    </li>
  );
}
