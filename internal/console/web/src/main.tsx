// The console's page: who is there, the frame around the screens, and the keys.
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import Activity from "./activity";
import { Failure, key, whenOthersLogIn, whenUnauthorized, type Me } from "./api";
import { Help, Palette, closeAll, jumped, keys } from "./keys";
import { connection, live } from "./live";
import { Login, logIn, logOut, whoAmI } from "./login";
import { Now } from "./now";
import { end, responseOf, visit } from "./provider";
import { address, codeOf, forget, route } from "./route";
import { announced, isOperator, me, sessionOf, start, stop, titleOf, waiting } from "./state";
import css from "./style.css";
import { adopt } from "./style";
import * as text from "./text";
import { Confirm, confirm, Empty, Loading, Trouble } from "./ui";

adopt(css);

const phase = signal<"begins" | "asks" | "out" | "in" | "broken">("begins");
const failed = signal<unknown>(null);

async function enter() {
  const who = await whoAmI();
  start(who);
  phase.value = "in";
}

function leave(why: string) {
  stop(why);
  confirm(null);
  closeAll();
  phase.value = "out";
}

async function logsOut() {
  const url = await logOut().catch(() => "");
  leave("You have logged out.");
  if (url) visit(url);
}

// what a page was made for: all of it is loaded anew when that is another.
const made = (who: Me | null) => who && [who.principal, who.name, who.login, who.version, ...who.roles].join("\n");

// After each break of the live channel, and each request that was refused: is it the network, or the end of the log-in?
live.who = async (): Promise<"known" | "gone" | "silent"> => {
  const used = key();
  try {
    const who = await whoAmI();
    if (made(who) === made(me.value)) return "known";
    location.reload();
    return "gone";
  } catch (e) {
    if (!(e instanceof Failure && e.problem.status === 401)) return "silent";
    if (key() !== used) return live.who(); // another tab has logged in meanwhile
    leave("You are not logged in any more: the log-in or its token has ended.");
    return "gone";
  }
};

whenOthersLogIn(() => phase.value === "out" && location.reload());
whenUnauthorized(() => void (phase.value === "in" && live.who()));

// use logs in with the code of a link.
async function use(code: string) {
  phase.value = "begins";
  try {
    await logIn({ code });
  } catch (e) {
    failed.value = e;
  }
  await see();
}

// finish logs in with the response of a provider. Who is logged in already stays so when it fails: anyone can send a link
// that looks like a response.
async function finish(response: string) {
  const { body, back } = end(response);
  try {
    await logIn(body);
    history.replaceState(null, "", back || location.pathname);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } catch (e) {
    const who = key() ? await whoAmI().catch(() => null) : null;
    if (!who?.login) failed.value = e;
  }
  await see();
}

let asking: { code: string; who: Me } | undefined;

async function begin() {
  const code = codeOf(), response = responseOf();
  if (response) {
    forget(); // it counts once, and does not belong into the history
    return finish(response);
  }
  if (!code) return see();
  // It leaves the address before it is used: it counts once, and does not belong into the history.
  forget();
  // Anyone can send a link that logs in as them: who is somebody already is asked first.
  const who = key() ? await whoAmI().catch(() => null) : null;
  if (!who?.login) return use(code);
  asking = { code, who };
  phase.value = "asks";
}

function Asks({ code, who }: { code: string; who: Me }) {
  return (
    <main class="login" id="main">
      <h1>Log in anew?</h1>
      <p>
        You are logged in as <strong>{text.name(who.name)}</strong>. The link that you have opened makes this browser act
        as the one who made the link. Use it only if you have asked for it yourself.
      </p>
      <div class="row">
        <button class="primary" onClick={() => void see()}>
          Stay as it is
        </button>
        <button onClick={() => void use(code)}>Use the link</button>
      </div>
    </main>
  );
}

// see shows the console or, to nobody in particular, the log-in.
async function see() {
  try {
    if (failed.value) throw failed.value;
    await enter();
  } catch (e) {
    const status = e instanceof Failure ? e.problem.status : -1;
    phase.value = failed.value || status === 401 || status === 403 ? "out" : "broken";
    if (phase.value === "broken") failed.value = e;
  }
}

const screens: [key: string, path: string, title: string][] = [
  ["n", "", "Now"],
  ["s", "servers", "Servers"],
  ["a", "activity", "Activity"],
  ["x", "access", "Access"],
  ["c", "connect", "Connect"],
  ["o", "operator", "Operator"],
];

// shown are the screens that are for who is here.
const shown = () => screens.filter(([, path]) => path !== "operator" || isOperator());

const more = signal<typeof import("./more") | null>(null);

// More is a screen that does not belong to the first page.
function More({ screen, rest }: { screen: string; rest: string[] }) {
  const [failed, setFailed] = useState<unknown>(null);
  useEffect(() => {
    if (!more.value) import("./more").then((m) => (more.value = m), setFailed);
  }, []);
  const m = more.value;
  if (!m) return failed ? <Trouble of="The screen cannot be loaded: reload the page." /> : <Loading />;
  switch (screen) {
    case "sessions":
      return <m.SessionPage id={rest[0] ?? "home"} tab={rest[1] ?? ""} />;
    case "servers":
      return <m.Servers id={rest[0]} />;
    case "access":
      return <m.Access />;
    case "operator":
      return <m.Operator />;
  }
  return <m.Connect client={rest[0]} />;
}

function Screen() {
  const [screen = "", ...rest] = route.value.path;
  switch (screen) {
    case "":
      return <Now />;
    case "activity":
      return <Activity />;
    case "sessions":
    case "servers":
    case "access":
    case "connect":
    case "operator":
      return <More screen={screen} rest={rest} />;
  }
  return (
    <Empty title="There is no such screen.">
      <a href={address([])}>Now</a>
    </Empty>
  );
}

// Waits tells on other screens than Now what waits. It moves nothing on the screen.
function Waits() {
  const q = waiting.value[0].question;
  const session = q.session_id ? sessionOf(q.session_id) : undefined;
  const [first, second] = text.lines(q.text).split("\n");
  return (
    <aside class="waits" aria-label="Waits for you">
      <a href={address([])}>
        ▲ {session && text.name(titleOf(session)) + " asks: "}
        {(second || first).slice(0, 200)}
      </a>
    </aside>
  );
}

function Frame() {
  const at = route.value.path[0] ?? "";
  useEffect(() => keys(shown()), []);
  // The new screen is read from its beginning.
  useEffect(() => {
    scrollTo(0, 0);
    if (jumped()) (document.querySelector("h1") ?? document.getElementById("main"))?.focus();
  }, [route.value.path.join("/")]);
  const n = waiting.value.length;
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={address([])}>
          Sandlot
        </a>
        <nav aria-label="Screens">
          {shown().map(([, path, title]) => (
            <a key={path} href={address(path ? [path] : [])}
              aria-current={at === path || (path === "" && at === "sessions") ? "page" : undefined}>
              {title}
              {path === "" && n > 0 && <span class="badge">{n}<span class="hidden"> waiting</span></span>}
            </a>
          ))}
        </nav>
        <span class="who">
          <span class="quiet">{text.name(me.value?.name ?? "")}</span>
          {me.value?.login && (
            <button class="small" onClick={() => void logsOut()}>
              Log out
            </button>
          )}
        </span>
      </header>
      {connection.value === "offline" && (
        <div class="banner" role="status">
          The server cannot be reached. What you see is the last known state.
          <button class="small" onClick={() => live.retry()}>
            Try now
          </button>
        </div>
      )}
      {connection.value === "blocked" && (
        <div class="banner" role="status">
          The server answers, but WebSockets do not get through. Its proxy must pass on the header Upgrade, and the
          setting trusted_proxies must have the proxy's address.
        </div>
      )}
      <main id="main" tabIndex={-1} class={["offline", "blocked"].includes(connection.value) ? "stale" : ""}>
        <Screen />
      </main>
      {at !== "" && n > 0 && <Waits />}
      <p class="hidden" role="status">{announced.value && "A question waits: " + text.lines(announced.value)}</p>
      <Confirm />
      <Palette screens={shown()} />
      <Help screens={shown()} />
    </>
  );
}

function Page() {
  switch (phase.value) {
    case "begins":
      return (
        <main id="main">
          <Loading />
        </main>
      );
    case "in":
      return <Frame />;
    case "asks":
      return <Asks {...asking!} />;
    case "out":
      return <Login failed={failed.value} />;
  }
  return (
    <main class="login" id="main">
      <h1>Sandlot</h1>
      <Trouble of={failed.value} what="The console cannot begin" />
      <button onClick={() => location.reload()}>Try again</button>
    </main>
  );
}

render(<Page />, document.body);
void begin();
