import { useState } from "preact/hooks";
import { json, type Me } from "./api";
import { loggedOut } from "./state";
import { Command, Trouble, useTask } from "./ui";

export const logIn = (body: { code: string } | { token: string }) => json<void>("POST", "console/login", body);
export const logOut = () => json<void>("POST", "console/logout");
export const whoAmI = () => json<Me>("GET", "v1/principal");

export function Login({ failed, done }: { failed?: unknown; done: () => Promise<void> }) {
  const [token, setToken] = useState("");
  const task = useTask();
  const submit = (e: Event) => {
    e.preventDefault();
    void task.run(async () => {
      await logIn({ token: token.trim() });
      setToken("");
      await done();
    });
  };
  return (
    <main class="login" id="main">
      <h1>Sandlot</h1>
      {loggedOut.value && <p role="status">{loggedOut.value}</p>}
      <Trouble of={failed} what="The link did not log you in" />
      <section aria-labelledby="by-link">
        <h2 id="by-link">With a link</h2>
        <p>On the server's machine, this command prints a link that logs this browser in:</p>
        <Command text="sandlot console" />
      </section>
      <form onSubmit={submit} aria-labelledby="by-token">
        <h2 id="by-token">With a token</h2>
        <label for="token">Token</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          spellcheck={false}
          required
          value={token}
          onInput={(e) => setToken(e.currentTarget.value)}
        />
        <Trouble of={task.failed} />
        <button class="primary" disabled={task.busy}>
          Log in
        </button>
      </form>
    </main>
  );
}
