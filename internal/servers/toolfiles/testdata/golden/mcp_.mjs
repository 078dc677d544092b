// Types and texts: mcp_.d.mts. Documents: mcp_/README.md.
import { tool as _tool } from './_client.mjs';
