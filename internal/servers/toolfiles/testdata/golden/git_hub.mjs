// Types and texts: git_hub.d.mts. Documents: git_hub/README.md.
import { tool as _tool } from './_client.mjs';
export const class_ = _tool("git-hub", "class");
export const create_issue = _tool("git-hub", "create-issue");
export const list = _tool("git-hub", "list");
