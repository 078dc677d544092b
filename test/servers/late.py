"""An MCP server over stdio, with nothing but Python, that needs a while to start. It notes each start in a file."""
import json, sys, time

with open("/workspace/starts.txt", "a") as f:
    f.write("s")
time.sleep(13)
for line in sys.stdin:
    m = json.loads(line)
    method = m.get("method")
    if method == "initialize":
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "late", "version": "1"}}}
    elif method == "tools/list":
        answer = {"result": {"tools": [{"name": "greet", "inputSchema": {"type": "object"}}]}}
    elif method == "tools/call":
        answer = {"result": {"content": [{"type": "text", "text": "hello"}]}}
    elif method == "ping":
        answer = {"result": {}}
    else:
        answer = {"error": {"code": -32601, "message": "Method not found"}}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **answer}), flush=True)
