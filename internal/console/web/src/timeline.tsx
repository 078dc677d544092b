// Events as rows.
import type { ComponentChildren } from "preact";
import { json, segment } from "./api";
import { isOperator, me, waiting } from "./state";
import { address } from "./route";
import * as text from "./text";
import type { Event } from "./types";
import { confirm, Loading, State, Trouble, useTask } from "./ui";
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
        {e.refused?.cause && <Why event={e} />}
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

// remedies say what can be done about a refusal, by its cause.
const remedies: Record<string, string> = {
  no_network: "The session has no network. The operator gives it one: network.mode in sandlot.yaml.",
  not_listed: "No rule allows this host. The operator allows it: network.allow in sandlot.yaml.",
  other_port: "This host is allowed on other ports. The operator allows this one: network.allow in sandlot.yaml.",
  denied_by_rule: "A rule of the operator denies it: policy.rules in sandlot.yaml.",
  answered_no: "It was answered with no. Withdraw that answer on the screen Access.",
  not_answered: "A person has to agree first: answer the question, then let the program try again.",
  not_agreed: "A person has to agree, and did not.",
  not_public: "Its address is not public. The operator allows it: network.allow_private in sandlot.yaml.",
  own_name: "This is a name of the server itself.",
  other_tls_name: "TLS asked for another host than that of the connection.",
  bytes_used_up: "The session has moved as much as it may: network.max_mb in sandlot.yaml.",
  day_used_up: "Your sessions have moved as much as they may today.",
  invalid_target: "It is not a host and a port.",
  address_unknown: "The server does not know its own addresses now: try again.",
  out_of_scope: "The token is not for this operation: make one whose scope has it, on the screen Access.",
  needs_role: "This needs a role that the token does not have: the operator makes one that has it.",
};

// Why says why something was refused, by which rule, and what can be done.
function Why({ event: e }: { event: Event }) {
  const r = e.refused!;
  const task = useTask();
  const allow = () =>
    confirm({
      title: "Allow this host?",
      detail: (
        <p>
          <code>{text.name(e.name ?? "")}</code> is allowed for this session of {text.name(e.principal)}, until it ends.
        </p>
      ),
      yes: "Allow",
      do: () => void task.run(() => json("PATCH", `v1/sessions/${segment(e.session_id!)}/network`, { allow: [e.name] })),
    });
  const mayAllow = isOperator() && e.kind === "egress" && e.session_id && e.name && ["not_listed", "other_port"].includes(r.cause ?? "");
  const open = r.question_id && waiting.value.some((a) => a.question.id === r.question_id);
  return (
    <span class="why" data-cause={r.cause}>
      {" "}
      {remedies[r.cause ?? ""] ?? text.name(r.cause ?? "")}
      {r.rule && <span class="quiet"> ({text.name(r.rule)})</span>}
      {open && (
        <>
          {" "}
          <a href={address([])}>Answer it</a>
        </>
      )}
      {mayAllow && (
        <>
          {" "}
          <button class="small" disabled={task.busy} onClick={allow} aria-label={"Allow " + text.name(e.name ?? "")}>
            Allow for this session
          </button>
        </>
      )}
      <Trouble of={task.failed} />
    </span>
  );
}
