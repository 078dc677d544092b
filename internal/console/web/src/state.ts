// What the console knows: pushed by the live channel.
import { batch, computed, signal } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Failure, type Me, type Problem } from "./api";
import { live } from "./live";
import type { Event, Question, Server, Session } from "./types";

export const me = signal<Me | null>(null);
export const loggedOut = signal("");

// A question that has ended stays as it is while the pointer is over the questions: nothing moves under it.
export interface Asked {
  question: Question;
  since: number; // when it appeared, or moved last
  ended?: string;
}

export const asked = signal<Asked[]>([]);
export const questionsCame = signal(false);
export const waiting = computed(() => asked.value.filter((a) => !a.ended));
export const announced = signal(""); // the latest question, for screen readers
export const sessions = signal<Session[] | null>(null);
export const servers = signal<Server[] | null>(null);
export const events = signal<Event[]>([]);
export const eventsCame = signal(false); // until then nobody knows whether there are any
export const now = signal(Date.now());

const keepEvents = 200;

setInterval(() => {
  now.value = Date.now();
}, 1000);

let pointerOver = false;

export function pointerIsOver(over: boolean) {
  pointerOver = over;
  if (!over) dropEnded();
}

// dropEnded removes the questions that have ended. Those that move are armed anew.
function dropEnded() {
  const first = asked.value.findIndex((a) => a.ended);
  if (first < 0) return;
  const at = performance.now();
  asked.value = asked.value
    .map((a, i) => (i > first ? { ...a, since: at } : a))
    .filter((a) => !a.ended);
}

function put(questions: Question[]) {
  const known = new Set(asked.value.map((a) => a.question.id));
  const fresh = questions.filter((q) => !known.has(q.id));
  if (!fresh.length) return;
  const since = performance.now();
  asked.value = [...asked.value, ...fresh.map((question) => ({ question, since }))];
  announced.value = fresh[fresh.length - 1].text;
}

export function end(id: string, how: string) {
  asked.value = asked.value.map((a) => (a.question.id === id && !a.ended ? { ...a, ended: how } : a));
  if (!pointerOver) setTimeout(() => !pointerOver && dropEnded(), 1200);
}

function onQuestion(m: any) {
  if (m.change === "all") {
    const list: Question[] = m.questions ?? [];
    const open = new Set(list.map((q) => q.id));
    for (const a of asked.value) if (!open.has(a.question.id)) end(a.question.id, "ended");
    put(list);
    questionsCame.value = true;
  } else if (m.change === "asked") {
    put([m.question]);
  } else {
    end(m.id, m.how === "answered" ? `answered: ${m.answer ?? "elsewhere"}` : m.how);
  }
}

// put and remove by id, in a list that the server sends whole first.
function follow<T>(list: { value: T[] | null }, field: string, id: (x: T) => string) {
  const one = field.slice(0, -1);
  return (m: any) => {
    if (m.change === "all") {
      list.value = m[field] ?? [];
      return;
    }
    const all = list.value ?? [];
    if (m.change === "put") {
      const x: T = m[one];
      const i = all.findIndex((y) => id(y) === id(x));
      list.value = i < 0 ? [...all, x] : all.map((y, j) => (j === i ? x : y));
    } else {
      const gone = m.session_id ?? m.connection_id ?? m.connectionId;
      list.value = all.filter((y) => id(y) !== gone);
    }
  };
}

// collect returns what takes events one by one, and shows them once for each frame: the newest first. Those that come
// for somebody who has left meanwhile are dropped.
export function collect(into: { value: Event[] }, most: number) {
  const who = me.peek();
  let pending: Event[] = [];
  let asked = 0;
  const show = () => {
    clearTimeout(asked);
    asked = 0;
    const fresh = pending.reverse();
    pending = [];
    if (me.peek() !== who || !fresh.length) return;
    const newest = into.value[0]?.id ?? 0;
    into.value = [...fresh.filter((x) => x.id > newest || newest === 0), ...into.value].slice(0, most);
  };
  const take = (e: Event) => {
    pending.push(e);
    if (pending.length > most) pending.shift();
    asked ||= setTimeout(show, 50);
  };
  return { take, show };
}

// useEvents shows the newest events of a channel, whether what had happened has come, and what is wrong with them.
export function useEvents(args: Record<string, unknown>, most: number) {
  const key = JSON.stringify(args);
  const list = useMemo(() => signal<Event[]>([]), [key]);
  const [failed, setFailed] = useState<Problem | undefined>();
  const [missing, setMissing] = useState(false);
  const [came, setCame] = useState("");
  useEffect(() => {
    setFailed(undefined);
    setMissing(false);
    const events = collect(list, most);
    const c = live.open("events", args, {
      data: events.take,
      current: () => {
        events.show();
        setCame(key);
      },
      lost: () => setMissing(true),
      closed: (error) => setFailed(error),
    });
    return () => c.close();
  }, [key]);
  const trouble = failed ? new Failure(failed) : missing ? someMissing : null;
  return { events: list.value, came: came === key, trouble };
}

export const someMissing = "Some events are missing here: there were more than this page could take.";

// missing tells whether events of all that happens are missing.
export const missing = signal(false);

// refused tells of what the server does not push, as the token may not see it, why.
export const refused = signal<Record<string, string>>({});

const refuse = (what: string, then?: () => void) => (error?: Problem) => {
  if (!error) return;
  refused.value = { ...refused.value, [what]: `${what} cannot be shown: ${error.detail ?? "it ended"}` };
  then?.();
};

export function start(who: Me) {
  batch(() => {
    me.value = who;
    loggedOut.value = "";
    refused.value = {};
  });
  live.start();
  live.open("questions", {}, { data: onQuestion, closed: refuse("Questions") });
  live.open("sessions", {}, {
    data: follow(sessions, "sessions", (s: Session) => s.session_id),
    closed: refuse("Sessions", () => (sessions.value ??= [])),
  });
  live.open("servers", {}, {
    data: follow(servers, "servers", (s: Server) => s.connectionId),
    closed: refuse("Servers", () => (servers.value ??= [])),
  });
  const newest = collect(events, keepEvents);
  live.open("events", { limit: 100 }, {
    data: newest.take,
    current: () => {
      newest.show();
      eventsCame.value = true;
    },
    lost: () => (missing.value = true),
    closed: refuse("Events"),
  });
}

export function stop(why: string) {
  live.stop();
  batch(() => {
    me.value = null;
    asked.value = [];
    sessions.value = servers.value = null;
    events.value = [];
    announced.value = "";
    refused.value = {};
    missing.value = eventsCame.value = questionsCame.value = false;
    loggedOut.value = why;
  });
}

export const isOperator = () => me.value?.roles.includes("operator") ?? false;

export function titleOf(s: Session) {
  return s.name || (s.home ? "home" : s.session_id.slice(0, 6) + "…");
}

export function sessionOf(id: string): Session | undefined {
  const all = sessions.value ?? [];
  return all.find((s) => s.session_id === id) ?? all.find((s) => s.name === id || (id === "home" && s.home));
}

export const isAwake = (s: Session) => !["hibernated", "paused", "stopped"].includes(s.status);
