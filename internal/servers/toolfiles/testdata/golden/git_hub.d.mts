/** Tools of the MCP server git-hub. Documents: /run/mcp/git_hub/README.md */
import type { Binary, CallOptions, Link } from './_client.mjs';
type _class__Node = any;
/** HELD BACK: its definition has changed */
export function class_(args?: { node?: _class__Node }, options?: CallOptions): Promise<any>;
type _create_issue_User = { login: string; team?: _create_issue_User[] };
/** Creates an issue. It returns its number.
 *
 * title: What it is about
 * labels: (default: [])
 * state: (default: "open") */
export function create_issue(args: { title: string; labels?: string[]; state?: "open" | "closed"; assignee?: _create_issue_User | string | null; place?: { "file-name": string; line?: number }; class?: string; "in-reply-to"?: number | null; timeout?: number }, options?: CallOptions): Promise<{ number: number }>;
/** Lists issues */
export function list(args?: { [name: string]: any }, options?: CallOptions): Promise<any>;
