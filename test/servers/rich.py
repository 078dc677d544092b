"""An MCP server over stdio, with nothing but Python, whose tools have names, types and answers of all kinds, and which
notes what was cancelled. Its arguments are its name and the names of tools that it has more."""
import base64, json, os, sys, threading

sys.stdout.reconfigure(encoding="utf-8")
name, more = sys.argv[1], sys.argv[2:]
lock = threading.Lock()
together = threading.Condition(lock)
open_calls, cancelled, echoed, at_once = {}, [], 0, 0

schema = {
    "type": "object", "required": ["title", "class"], "properties": {
        "title": {"type": "string"},
        "class": {"enum": ["a", "b"]},
        "function": {"type": "boolean", "default": True},
        "größe": {"type": "number"},
        "in-reply-to": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Node"}, {"type": "null"}]},
        "where": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string"}, "at": {"type": "object", "default": {"x": 1}, "properties": {
                "x": {"type": "integer", "default": 1}, "tags": {"type": "array", "items": {"type": "string"}}}}}},
        "limit": {"type": "integer", "default": 20}},
    "$defs": {"Node": {"type": "object", "required": ["value"], "properties": {
        "value": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}}}}
tools = [{"name": n, "description": "Answers with its arguments.", "inputSchema": schema} for n in ("echo", "await", "検索.alle")]
tools += [{"name": n, "inputSchema": {"type": "object"}}
          for n in ("bytes", "fail", "refuse", "wait", "together", "die", "noted", *more)]


def send(m):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **m}, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def call(i, tool, a):
    """Return the answer to a call; None: it was cancelled. The caller holds the lock."""
    global echoed, at_once
    if tool == "die":
        os._exit(3)
    if tool == "refuse":
        return {"error": {"code": -32099, "message": "the shop is closed", "data": {"until": 8}}}
    if tool == "fail":
        return {"result": {"isError": True, "content": [{"type": "text", "text": "there is no größe 7"}]}}
    if tool == "bytes":
        blob = base64.b64encode(bytes(range(256)) * int(a["times"])).decode()
        resource = {"uri": "rich://bytes", "mimeType": "application/x-rich", "blob": blob}
        return {"result": {"content": [{"type": "resource", "resource": resource}]}}
    if tool == "noted":
        noted = {"cancelled": cancelled, "open": list(open_calls.values()), "echoed": echoed}
        return {"result": {"content": [], "structuredContent": noted}}
    if tool == "wait":
        if together.wait_for(lambda: i not in open_calls, 60):
            return None
        del open_calls[i]
    if tool == "together":  # until so many calls are under way
        at_once += 1
        together.notify_all()
        if not together.wait_for(lambda: at_once % int(a["calls"]) == 0, 60):
            return {"result": {"isError": True, "content": [{"type": "text", "text": f"{at_once} calls are under way"}]}}
    echoed += 1
    return {"result": {"content": [], "structuredContent": {"server": name, "tool": tool, "arguments": a}}}


def answer(i, p):
    with together:
        made = call(i, p["name"], p.get("arguments") or {})
        if made:
            send({"id": i, **made})


for line in sys.stdin:
    m = json.loads(line)
    i, method, p = m.get("id"), m.get("method"), m.get("params") or {}
    with together:
        if method == "notifications/cancelled":
            cancelled.append(open_calls.pop(p["requestId"], "no call"))
            together.notify_all()
        elif method == "initialize":
            send({"id": i, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": name, "version": "1"}}})
        elif method == "tools/list":
            send({"id": i, "result": {"tools": tools}})
        elif method == "tools/call":
            if p["name"] == "wait":
                open_calls[i] = p["arguments"].get("label", "")
            threading.Thread(target=answer, args=(i, p), daemon=True).start()
        elif i is not None and method:
            send({"id": i, "result": {}} if method == "ping" else {"id": i, "error": {"code": -32601, "message": "Method not found"}})
