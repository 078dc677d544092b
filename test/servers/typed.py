"""An MCP server over stdio whose tools have types, with nothing but Python. Its argument is how many tools it has more."""
import base64, json, sys, time

name = sys.argv[1] if len(sys.argv) > 1 else "typed"
more = int(sys.argv[2]) if len(sys.argv) > 2 else 0
issue = {"type": "object", "properties": {
    "title": {"type": "string", "description": "What it is about"},
    "labels": {"type": "array", "items": {"type": "string"}, "default": []},
    "state": {"enum": ["open", "closed"], "default": "open"},
    "assignee": {"anyOf": [{"$ref": "#/$defs/User"}, {"type": "null"}]},
    "class": {"type": "string"}, "in-reply-to": {"type": "integer"}},
    "required": ["title"], "$defs": {"User": {"type": "object", "properties": {"login": {"type": "string"}}}}}
tools = [
    {"name": "create-issue", "description": "Creates an issue.", "inputSchema": issue},
    {"name": "import", "description": "Has a reserved word for its name.", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "images", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "refuse", "inputSchema": {"type": "object", "properties": {}}},
    {"name": "pause", "inputSchema": {"type": "object", "properties": {"seconds": {"type": "number"}}}},
    {"name": "検索", "inputSchema": {"type": "object", "properties": {"Größe": {"type": "integer"}}}},
] + [{"name": f"tool_{n}", "description": "Creates a new issue in a repository, and returns its number and its address. "
      "Search before you create one.", "inputSchema": {"type": "object", "properties": {
          "owner": {"type": "string", "description": "Account that owns the repository"},
          "repo": {"type": "string", "description": "Name of the repository"},
          "title": {"type": "string", "description": "Title of the issue"},
          "body": {"type": "string", "description": "Text of the issue in Markdown"},
          "labels": {"type": "array", "items": {"type": "string"}, "description": "Labels to set"},
          "state": {"enum": ["open", "closed"], "default": "open"}}, "required": ["owner", "repo", "title"]}}
     for n in range(more)]


def call(tool, a):
    if tool == "images":
        data = base64.b64encode(b"\x89PNG\r\n").decode()
        return {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}
    if tool == "refuse":
        return {"isError": True, "content": [{"type": "text", "text": "no such issue: 7"}]}
    if tool == "pause":
        time.sleep(a.get("seconds", 0.01))
    return {"content": [{"type": "text", "text": "done"}], "structuredContent": {"tool": tool, "arguments": a}}


for line in sys.stdin:
    m = json.loads(line)
    answer = {"initialize": lambda: {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": name, "version": "1"}},
              "tools/list": lambda: {"tools": tools}, "ping": dict,
              "tools/call": lambda: call(m["params"]["name"], m["params"].get("arguments") or {})}.get(m.get("method"))
    if "id" in m and "method" in m:
        body = {"result": answer()} if answer else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **body}), flush=True)
