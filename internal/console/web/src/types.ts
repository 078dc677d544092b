// What the API and the live channel send.

export interface Field {
  name: string;
  title?: string;
  description?: string;
  type: string;
  choices?: string[];
  required?: boolean;
  default?: unknown;
}

export interface Question {
  id: string;
  principal: string;
  operation: string;
  detail?: string;
  session_id?: string;
  text: string;
  asked: string;
  until: string;
  form?: { fields: Field[] };
}

export interface Port {
  port: number;
  public: boolean;
  url: string;
  path_url: string;
  expires_at: string;
}

export interface Session {
  session_id: string;
  home: boolean;
  name?: string;
  labels?: Record<string, string>;
  template: string;
  flavor: string;
  created_at: string;
  last_accessed: string;
  status: string;
  limits: { cpus: number; memory_mb: number };
  processes: number;
  network: { sent_mb: number; received_mb: number; access?: string };
  usage?: { memory_mb: number; cpu_seconds: number; disk_mb: number };
  ports?: Port[];
  paused_by?: string;
  ends_at?: string;
  on_end?: string;
  parent?: { session_id?: string; snapshot?: string };
}

export interface Server {
  connectionId: string;
  name: string;
  state: string;
  toolCount: number;
  promptCount: number;
  resourceCount: number;
  command: string;
  args: string[];
  url?: string;
  transport: string;
  configured: boolean;
  lastError: string;
  restarts: number;
  calls: number;
  latencyMs?: { p50: number; p95: number };
  authUrl?: string;
  heldTools?: { remoteName: string; reason: string }[];
  secrets?: string[];
}

export interface Event {
  id: number;
  time: string;
  kind: string;
  principal: string;
  session_id?: string;
  operation: string;
  name?: string;
  outcome: string;
  duration_ms?: number;
  count?: number;
  refused?: { cause?: string; rule?: string; program?: string; question_id?: string };
}

export interface Snapshot {
  name: string;
  session_id: string;
  template: string;
  size_mb: number;
  created_at: string;
}

export interface Process {
  process_id: string;
  command: string;
  kind: string;
  running: boolean;
  pid: number;
  started_at: string;
  status: string;
}

export interface File {
  name: string;
  type: string;
  size: number;
  mode: number;
  modified: string;
  target?: string;
  etag?: string;
}

export interface ResultBlock {
  type: "text" | "image";
  text?: string;
  truncated?: boolean;
  mime?: string;
  data?: string;
}

export interface Result {
  id: number;
  time: string;
  tool: string;
  input?: string;
  failed?: boolean;
  content: ResultBlock[];
  left?: number;
}

export interface PortRow {
  port: number;
  listening: boolean;
  program?: string;
  exposed: boolean;
}
