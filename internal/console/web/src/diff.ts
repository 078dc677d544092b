// The difference of two definitions, line by line.

export interface Line {
  sign: " " | "-" | "+";
  text: string;
}

// most is how many pairs of lines are compared. Beyond that, all old lines are shown before all new ones.
const most = 4_000_000;

export function diff(before: string, after: string): Line[] {
  let a = before.split("\n");
  let b = after.split("\n");
  const same = (text: string): Line => ({ sign: " ", text });
  let begin = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) begin++;
  let end = 0;
  while (end < a.length - begin && end < b.length - begin && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const head = a.slice(0, begin).map(same);
  const tail = a.slice(a.length - end).map(same);
  a = a.slice(begin, a.length - end);
  b = b.slice(begin, b.length - end);
  const middle: Line[] = [];
  const take = (sign: "-" | "+", lines: string[]) => lines.forEach((text) => middle.push({ sign, text }));
  if (a.length * b.length > most) {
    take("-", a);
    take("+", b);
    return [...head, ...middle, ...tail];
  }
  // common[i][j] is the length of the longest common part of a from i and b from j.
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] =
        a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      middle.push(same(a[i]));
      i++;
      j++;
    } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) middle.push({ sign: "-", text: a[i++] });
    else middle.push({ sign: "+", text: b[j++] });
  }
  take("-", a.slice(i));
  take("+", b.slice(j));
  return [...head, ...middle, ...tail];
}
