// Addresses of screens: they are in the fragment, so that the console works below any folder of a proxy.
import { signal } from "@preact/signals";

export interface Route {
  path: string[];
  query: URLSearchParams;
}

function parse(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(text: string) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = signal<Route>(parse());

// forget removes the fragment from the address.
export function forget() {
  history.replaceState(null, "", location.pathname);
  route.value = parse();
}

// codeOf returns the code of a link with which a browser logs in.
export const codeOf = () => /^#code=([a-z0-9]+)$/.exec(location.hash)?.[1];

addEventListener("hashchange", () => {
  if (codeOf() || location.hash.startsWith("#login?")) location.reload(); // somebody has opened a link in this tab
  route.value = parse();
});

export function address(path: string[], query?: Record<string, string>) {
  const q = new URLSearchParams(Object.entries(query ?? {}).filter(([, v]) => v)).toString();
  return "#/" + path.map(encodeURIComponent).join("/") + (q ? "?" + q : "");
}

export function go(path: string[], query?: Record<string, string>) {
  location.hash = address(path, query);
}

// replace changes the address without a step for Back.
export function replace(path: string[], query?: Record<string, string>) {
  history.replaceState(null, "", address(path, query));
  route.value = parse();
}
