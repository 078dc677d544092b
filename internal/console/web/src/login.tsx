import { useState } from "preact/hooks";
import { json, keep, principal, type Me } from "./api";
import { loggedOut } from "./state";
import { Command, Trouble, useTask } from "./ui";

export const logIn = async (body: { code: string } | { token: string }) =>
  keep((await json<{ key: string }>("POST", "console/login", body)).key);
export const logOut = () => json<void>("POST", "console/logout").finally(() => keep(""));
export const whoAmI = () => json<Me>("GET", principal);

export function Login({ failed }: { failed?: unknown }) {
  const [token, setToken] = useState("");
  const task = useTask();
  const submit = (e: Event) => {
    e.preventDefault();
    void task.run(async () => {
      await logIn({ token: token.trim() });
      location.reload(); // nothing of the one before stays in this tab
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
