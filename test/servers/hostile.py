"""An MCP server over stdio, with nothing but Python, all of whose names and texts try to be more than text."""
import json, sys

TEXTS = ["<img src=x onerror=hit()>", '"><script>hit()</script>', "javascript:hit()", "{{constructor}}", "\u202egnp.exe", "a\u200bb",
         "'onmouseover='hit()", "&lt;svg onload=hit()&gt;", "\x1b]8;;javascript:hit()\x07x\x1b]8;;\x07", "__proto__"]
ALL = "\n".join(TEXTS)
CLEAN = [t for t in TEXTS if t.isprintable()]
TOOLS = [{"name": f"tool {i} {t}", "title": t, "description": ALL, "inputSchema": {"type": "object", "title": t, "properties": {
    **{name: {"type": "string", "title": name, "description": ALL, "default": name} for name in CLEAN},
    "choice": {"enum": CLEAN, "description": ALL}}}} for i, t in enumerate(CLEAN)]
PROMPTS = [{"name": f"prompt {i} {t}", "title": t, "description": ALL,
            "arguments": [{"name": t, "description": ALL}]} for i, t in enumerate(CLEAN)]
SVG = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIG9ubG9hZD0iaGl0KCkiLz4="
CONTENT = [{"type": "text", "text": ALL}, {"type": "image", "mimeType": "image/svg+xml", "data": SVG},
           {"type": "image", "mimeType": "text/html", "data": SVG}, {"type": "image", "mimeType": "image/png", "data": SVG},
           {"type": "resource", "resource": {"uri": "javascript:hit()", "text": ALL}},
           {"type": "resource_link", "uri": "javascript:hit()", "name": ALL}]

for line in sys.stdin:
    m = json.loads(line)
    method = m.get("method")
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "prompts": {}}, "serverInfo": {"name": ALL, "version": ALL}}
    elif method == "tools/list":
        result = {"tools": TOOLS}
    elif method == "prompts/list":
        result = {"prompts": PROMPTS}
    elif method == "tools/call":
        print(ALL, file=sys.stderr, flush=True)
        result = {"content": CONTENT, "isError": len(m["params"].get("arguments", {})) == 0}
    elif method == "prompts/get":
        result = {"description": ALL, "messages": [{"role": "user", "content": c} for c in CONTENT]}
    else:
        result = {}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
