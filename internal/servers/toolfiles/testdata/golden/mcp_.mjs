// Types and texts: mcp_.d.mts. Documents: mcp_/README.md.
import { tool as _tool } from './_client.mjs';
/** Tools of the MCP server mcp. It cannot be called now: it needs a log-in; `mcp search mcp` says where. Documents: /run/mcp/mcp_/README.md. The default export has each tool that the server may have: a call asks Sandlot, which says why it fails. */
export default new Proxy({}, { get: (_, name) => (typeof name === 'string' && name !== 'then' ? _tool("mcp", name) : undefined) });
