import { useState } from "preact/hooks";
import { json, keep, principal, type Me } from "./api";
import { begin, providers } from "./provider";
import { loggedOut } from "./state";
import { lines } from "./text";
import { Command, Trouble, useLoaded, useTask } from "./ui";

export const logIn = async (body: { code: string } | { token: string } | { response: object }) =>
  keep((await json<{ key: string }>("POST", "console/login", body)).key);
// logOut says where the user logs out as well; empty: nowhere.
export const logOut = () => json<{ url: string }>("POST", "console/logout").finally(() => keep("")).then((a) => a.url);
export const whoAmI = () => json<Me>("GET", principal);

// Providers are buttons to log in at the OIDC providers of the server; nothing, if it has none.
function Providers() {
  const list = useLoaded("providers", providers);
  const task = useTask();
  if (!list.value?.length) return null;
  return (
    <section aria-labelledby="by-provider">
      <h2 id="by-provider">With your account</h2>
      {list.value.map((p) => (
        <p key={p.id}>
          <button class="primary" disabled={task.busy} onClick={() => void task.run(() => begin(p.id))}>
            Log in at {lines(p.issuer.replace(/^https?:\/\//, ""))}
          </button>
        </p>
      ))}
      <Trouble of={task.failed} />
    </section>
  );
}

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
      <Trouble of={failed} what="You are not logged in" />
      <Providers />
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
