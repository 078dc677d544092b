// The live channel: one WebSocket with numbered channels. Channels outlive a break of the connection: they are opened
// again, and those of events go on where they were.
import { signal } from "@preact/signals";
import { at, key, type Problem } from "./api";

export interface Handlers {
  opened?(data: any): void;
  data?(data: any): void;
  bytes?(bytes: Uint8Array): void;
  lost?(data: any): void;
  current?(): void; // what there was has come
  closed?(error: Problem | undefined, data: any): void;
}

// blocked means that the server answers, but WebSockets do not get through.
export type Connection = "connecting" | "online" | "offline" | "blocked";

export const connection = signal<Connection>("connecting");

// ackEvery and ackBytes are how often a channel says what it has taken: long before the server waits for it.
const ackEvery = 64;
const ackBytes = 32 << 10;

// maxSilence is how long a connection is silent before it counts as gone. The server says every 20 s that it is there.
const maxSilence = 65_000;

export class Channel {
  number = 0;
  cursor = "";
  private taken = 0;
  private said = 0;

  constructor(
    private live: Live,
    readonly kind: string,
    public args: Record<string, unknown>,
    readonly on: Handlers,
  ) {}

  begin(number: number) {
    this.number = number;
    this.taken = this.said = 0;
    const args = this.cursor ? { ...this.args, cursor: this.cursor, since: undefined, limit: undefined } : this.args;
    this.live.say({ op: "open", channel: number, kind: this.kind, args });
  }

  // A terminal, and the output of a process, count their bytes alone: their other messages need no acknowledgement.
  took(unit: "count" | "bytes", n: number) {
    if ((unit === "bytes") !== (this.kind === "terminal" || this.kind === "process")) return;
    this.taken += n;
    if (this.taken - this.said >= (unit === "bytes" ? ackBytes : ackEvery)) {
      this.said = this.taken;
      this.live.say({ op: "ack", channel: this.number, [unit]: this.taken });
    }
  }

  send(bytes: Uint8Array) {
    this.live.sendBytes(this.number, bytes);
  }

  resize(rows: number, cols: number) {
    this.args = { ...this.args, rows, cols };
    this.live.say({ op: "resize", channel: this.number, rows, cols });
  }

  close() {
    this.live.remove(this);
  }
}

class Live {
  private socket?: WebSocket;
  private next = 1;
  private channels = new Map<number, Channel>();
  private waiting = 0;
  private timer = 0;
  private wanted = false;
  private heard = 0;
  private blocked = 0; // how many sockets in a row have failed of which the server knows nothing
  // who asks after each break whether the server still knows who this is: it does, it does not, or it does not answer.
  who: () => Promise<"known" | "gone" | "silent"> = async () => "silent";

  start() {
    if (!this.wanted) {
      addEventListener("online", this.wake);
      document.addEventListener("visibilitychange", this.wake);
      setInterval(this.listen, 10_000);
    }
    this.wanted = true;
    if (!this.socket) this.connect();
  }

  stop() {
    this.wanted = false;
    clearTimeout(this.timer);
    this.channels.clear();
    this.socket?.close();
    this.socket = undefined;
  }

  private connect() {
    const address = new URL(at("v1/live"), location.href);
    address.protocol = address.protocol.replace("http", "ws");
    address.hash = "";
    const protocols = key() ? ["sandlot.live", "sandlot.key." + key()] : [];
    const socket = (this.socket = new WebSocket(address, protocols));
    let opened = false;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      opened = true;
      this.waiting = this.blocked = 0;
      this.heard = performance.now();
      connection.value = "online";
      const all = [...this.channels.values()];
      this.channels.clear();
      for (const c of all) this.add(c);
    };
    socket.onmessage = (m) => {
      this.heard = performance.now();
      if (this.socket === socket) this.receive(m.data);
    };
    socket.onclose = () => {
      if (this.socket === socket) void this.broke(opened);
    };
  }

  private async broke(opened: boolean) {
    this.socket = undefined;
    if (!this.wanted) return;
    if (connection.value !== "blocked") connection.value = "offline";
    this.waiting = Math.min(8000, this.waiting * 2 || 250);
    const who = await this.who();
    if (who === "gone") return;
    this.blocked = !opened && who === "known" ? this.blocked + 1 : 0;
    if (this.wanted && !this.socket) connection.value = this.blocked > 1 ? "blocked" : "offline";
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.wanted && !this.socket && this.connect(), this.waiting);
  }

  private wake = () => {
    if (document.visibilityState === "visible") this.retry();
  };

  // listen gives up a connection that is silent for too long: its other end is gone without a word.
  private listen = () => {
    const socket = this.socket;
    if (socket?.readyState !== WebSocket.OPEN || performance.now() - this.heard < maxSilence) return;
    void this.broke(true);
    socket.close();
  };

  // retry connects now.
  retry() {
    this.waiting = 0;
    clearTimeout(this.timer);
    if (this.wanted && !this.socket) this.connect();
  }

  private add(c: Channel) {
    const number = this.next++;
    this.channels.set(number, c);
    if (this.socket?.readyState === WebSocket.OPEN) c.begin(number);
  }

  open(kind: string, args: Record<string, unknown>, on: Handlers): Channel {
    const c = new Channel(this, kind, args, on);
    this.add(c);
    return c;
  }

  // again opens a channel again, unless it was opened under another number meanwhile.
  private again(c: Channel, number: number) {
    if (this.channels.get(number) !== c || this.socket?.readyState !== WebSocket.OPEN) return;
    this.channels.delete(number);
    this.add(c);
  }

  remove(c: Channel) {
    for (const [number, other] of this.channels) {
      if (other !== c) continue;
      this.channels.delete(number);
      this.say({ op: "close", channel: number });
    }
  }

  say(message: object) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  sendBytes(channel: number, bytes: Uint8Array) {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    // A frame of the client has 64 KiB at most.
    for (let from = 0; from < bytes.length; from += 32 << 10) {
      const part = bytes.subarray(from, from + (32 << 10));
      const frame = new Uint8Array(4 + part.length);
      new DataView(frame.buffer).setUint32(0, channel);
      frame.set(part, 4);
      this.socket.send(frame);
    }
  }

  private receive(data: string | ArrayBuffer) {
    if (typeof data !== "string") {
      const c = this.channels.get(new DataView(data).getUint32(0));
      c?.on.bytes?.(new Uint8Array(data, 4));
      return;
    }
    const m = JSON.parse(data);
    if (m.op === "error") console.error("the live channel:", m.error?.detail);
    const c = this.channels.get(m.channel);
    if (!c) return;
    switch (m.op) {
      case "opened":
        c.on.opened?.(m.data);
        break;
      case "data":
        if (m.cursor) c.cursor = m.cursor;
        c.on.data?.(m.data);
        c.took("count", 1);
        break;
      case "current":
        c.on.current?.();
        break;
      case "lost":
        c.on.lost?.(m.data);
        c.took("count", 1);
        break;
      case "closed":
        // A server that stops, or that has failed, may serve the channel later.
        if (m.error?.status >= 500) {
          setTimeout(() => this.again(c, m.channel), 2000);
          break;
        }
        this.channels.delete(m.channel);
        c.on.closed?.(m.error, m.data);
    }
  }
}

export const live = new Live();
