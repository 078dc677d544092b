// Texts of sandboxes and servers, which are hostile: characters that are invisible, or turn the direction of others,
// are written as escapes.
const hidden = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u034f\u2800]/gu;

const escaped = (c: string) => "\\u{" + c.codePointAt(0)!.toString(16) + "}";

// name returns a text on one line.
export const name = (text: string) => text.replace(hidden, escaped);

// lines returns a text of several lines.
export const lines = (text: string) => text.replace(hidden, (c) => (c === "\n" || c === "\t" ? c : escaped(c)));

// plain reports whether a text is shown as it is.
export const plain = (text: string) => lines(text) === text;

// quoted returns a word of a shell's command.
export const quoted = (word: string) => (/^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'");

export function size(bytes: number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (bytes >= 1000 && i < units.length - 1) {
    bytes /= 1000;
    i++;
  }
  return (i && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)) + " " + units[i];
}

export const megabytes = (mb: number) => size(mb * 1e6);

export function ago(time: string, now: number) {
  const s = Math.max(0, (now - Date.parse(time)) / 1000);
  if (!(s >= 0)) return "";
  if (s < 5) return "just now";
  if (s < 60) return Math.floor(s) + " s ago";
  if (s < 3600) return Math.floor(s / 60) + " min ago";
  if (s < 86400) return Math.floor(s / 3600) + " h ago";
  return Math.floor(s / 86400) + " d ago";
}

export function clock(time: string) {
  const t = new Date(time);
  return isNaN(+t) ? "" : t.toLocaleTimeString([], { hour12: false });
}

export const full = (time: string) => {
  const t = new Date(time);
  return isNaN(+t) ? "" : t.toLocaleString();
};
