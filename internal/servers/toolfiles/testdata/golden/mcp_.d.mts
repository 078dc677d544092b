/** Tools of the MCP server mcp. It cannot be called now: it needs a log-in; `mcp search mcp` says where. Documents: /run/mcp/mcp_/README.md */
import type { Binary, CallOptions, Link } from './_client.mjs';
/** The default export has each tool that the server may have: a call asks Sandlot, which says why it fails. */
declare const _any: { [name: string]: (args?: { [name: string]: any }, options?: CallOptions) => Promise<any> };
export default _any;
