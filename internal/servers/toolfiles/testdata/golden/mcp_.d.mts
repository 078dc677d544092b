/** Tools of the MCP server mcp. It cannot be called now: it needs a log-in Documents: /run/mcp/mcp_/README.md */
import type { Binary, CallOptions, Link } from './_client.mjs';
