// Log-in at an OIDC provider: the browser goes there, and comes back with a response in the fragment.
import { json } from "./api";

export interface Provider {
  id: string;
  issuer: string;
}

// What this tab remembers while its user is at the provider: its half of the attempt, and the screen to go back to. Pages
// of other origins cannot write it, whatever cookies and addresses they make.
const name = "sandlot-attempt " + location.pathname;

interface Begun {
  key: string;
  back: string;
}

export const providers = () => json<{ providers: Provider[] }>("GET", "console/providers").then((a) => a.providers);

// visit leaves the page for an address of a provider.
export function visit(url: string) {
  if (!["https:", "http:"].includes(new URL(url).protocol)) throw new Error("the provider's address is none of the web");
  location.assign(url);
}

export async function begin(provider: string) {
  const { url, key } = await json<{ url: string; key: string }>("POST", "console/begin", { provider });
  const begun: Begun = { key, back: location.hash };
  sessionStorage.setItem(name, JSON.stringify(begun));
  visit(url);
}

// responseOf returns the response with which the browser has come back.
export const responseOf = () => /^#login\?(.*)$/.exec(location.hash)?.[1];

// take returns what the tab remembers, once. Only a screen of this console is gone back to: it is a fragment.
function take(): Begun {
  try {
    const begun = JSON.parse(sessionStorage.getItem(name) ?? "{}");
    sessionStorage.removeItem(name);
    const { key, back } = begun;
    return { key: String(key ?? ""), back: /^#\/[^#]*$/.test(back) ? back : "" };
  } catch {
    return { key: "", back: "" };
  }
}

// end makes the log-in's request of a response, and says where to go back to.
export function end(response: string) {
  const { key, back } = take();
  return { body: { response: { ...Object.fromEntries(new URLSearchParams(response)), key } }, back };
}
