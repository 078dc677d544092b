// What stands for the parts of a session that sleeps.
import { json, segment, tool } from "./api";
import type { Session } from "./types";
import { Empty, Trouble, useTask } from "./ui";

// wake runs nothing in a session, which wakes it.
export const wake = (id: string) => tool("execute_command", { session_id: id, command: "true" });

// Asleep stands for what is not looked up in a session that sleeps: looking would wake it.
export function Asleep({ session: s, what }: { session: Session; what: string }) {
  const task = useTask();
  const paused = s.status === "paused";
  const path = `v1/sessions/${segment(s.session_id)}/resume`;
  return (
    <Empty title={`The session is ${paused ? "paused" : s.status === "stopped" ? "stopped" : "asleep"}. ${what}`}>
      <Trouble of={task.failed} />
      <button class="primary" disabled={task.busy}
        onClick={() => void task.run(() => (paused ? json("POST", path) : wake(s.session_id)))}>
        {paused ? "Resume" : "Wake"}
      </button>
    </Empty>
  );
}
