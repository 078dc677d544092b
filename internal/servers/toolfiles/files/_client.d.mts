/** How a call is made: timeout in seconds; signal cancels it. */
export interface CallOptions { timeout?: number; signal?: AbortSignal }
/** A call that failed. Its message has the server's words. code "broken": the tool may have run. */
export class ToolError extends Error { server: string; tool: string; code: string; content?: unknown }
/** An image, a sound or another blob: a Buffer. */
export type Binary = Uint8Array & { mimeType: string; uri: string };
/** A resource that an answer names and does not contain. */
export interface Link { type: 'resource_link'; uri: string; name: string; mimeType?: string; description?: string }
/** Calls a tool by the server's own names, and resolves to the whole MCP CallToolResult. */
export function call(server: string, tool: string, args?: object, options?: CallOptions): Promise<any>;
/** Searches the tools of all servers, or of one. */
export function search(query: string, options?: { server?: string; limit?: number }): Promise<any>;
