// What was used on past days.
import { get } from "./api";
import { sessionOf, titleOf } from "./state";
import * as text from "./text";
import { Loading, Trouble, useLoaded } from "./ui";
import { useState } from "preact/hooks";

interface Row {
  day: string;
  principal: string;
  session_id?: string;
  cpu_seconds: number;
  memory_bytes: number;
  disk_bytes: number;
  bytes_up: number;
  bytes_down: number;
  calls: number;
}

// sum sums up the rows with the same key, in their order.
function sum(rows: Row[], key: (r: Row) => string): Row[] {
  const sums = new Map<string, Row>();
  for (const r of rows) {
    const s = sums.get(key(r));
    if (!s) {
      sums.set(key(r), { ...r });
      continue;
    }
    s.cpu_seconds += r.cpu_seconds;
    s.memory_bytes = Math.max(s.memory_bytes, r.memory_bytes);
    s.disk_bytes = Math.max(s.disk_bytes, r.disk_bytes);
    s.bytes_up += r.bytes_up;
    s.bytes_down += r.bytes_down;
    s.calls += r.calls;
  }
  return [...sums.values()];
}

const seconds = (s: number) => (s < 60 ? s.toFixed(1) + " s" : s < 3600 ? (s / 60).toFixed(1) + " min" : (s / 3600).toFixed(1) + " h");

// Usage shows one's own usage, or that of all users.
export function Usage({ all }: { all?: boolean }) {
  const [by, setBy] = useState("day");
  const list = useLoaded("", async () => (await get<{ days: Row[] }>(all ? "v1/usage/all?days=30" : "v1/usage?days=30")).days);
  const groups: Record<string, (r: Row) => string> = {
    day: (r) => r.day,
    session: (r) => r.session_id ?? "",
    user: (r) => r.principal,
  };
  const rows = list.value && sum(list.value, groups[by]);
  const most = Math.max(1, ...(rows ?? []).map((r) => r.cpu_seconds));
  const name = (r: Row) => {
    if (by === "day") return r.day;
    if (by === "user") return text.name(r.principal);
    const s = r.session_id ? sessionOf(r.session_id) : undefined;
    return s ? text.name(titleOf(s)) : text.name(r.session_id ?? "none");
  };
  return (
    <section aria-labelledby="usage">
      <div class="row">
        <h2 id="usage">{all ? "What all have used" : "What you have used"}</h2>
        <select aria-label="Sums" value={by} onChange={(e) => setBy(e.currentTarget.value)}>
          <option value="day">by day</option>
          <option value={all ? "user" : "session"}>{all ? "by user" : "by session"}</option>
        </select>
        <button class="small" onClick={list.again}>
          Reload
        </button>
      </div>
      <Trouble of={list.failed} />
      {!list.value && !list.failed && <Loading />}
      {rows && !rows.length && <p class="quiet">Nothing in the last 30 days.</p>}
      {!!rows?.length && (
        <div class="scrolls" tabIndex={0} role="region" aria-label="Usage">
          <table>
            <thead>
              <tr>
                <th scope="col">{by === "day" ? "Day (UTC)" : by === "user" ? "User" : "Session"}</th>
                <th scope="col" class="number">Processor</th>
                <th scope="col">
                  <span class="hidden">Of the most</span>
                </th>
                <th scope="col" class="number">Memory, most</th>
                <th scope="col" class="number">Disk, most</th>
                <th scope="col" class="number">Sent</th>
                <th scope="col" class="number">Received</th>
                <th scope="col" class="number">Calls</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((r) => (
                <tr key={groups[by](r)} data-usage={groups[by](r)}>
                  <td>{name(r)}</td>
                  <td class="number">{seconds(r.cpu_seconds)}</td>
                  <td>
                    <meter aria-label="Processor, of the most" min={0} max={most} value={r.cpu_seconds} />
                  </td>
                  <td class="number">{text.size(r.memory_bytes)}</td>
                  <td class="number">{text.size(r.disk_bytes)}</td>
                  <td class="number">{text.size(r.bytes_up)}</td>
                  <td class="number">{text.size(r.bytes_down)}</td>
                  <td class="number">{r.calls}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
