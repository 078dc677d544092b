"""An MCP server over stdio, with nothing but Python, whose one tool returns a text as it is, without any fields."""
import json, sys

TOOL = {"name": "repeat", "description": "Returns a text.", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}

for line in sys.stdin:
    m = json.loads(line)
    method = m.get("method")
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bare", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [TOOL]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": m["params"]["arguments"]["text"]}]}
    else:
        result = {}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
