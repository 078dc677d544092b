"""An MCP server over stdio of the stateless protocol, with nothing but Python: its tool ask answers with a
question, and, when it is called again with the answer, with that."""
import json, sys


def answer(m):
    method, p = m["method"], m.get("params") or {}
    if method == "server/discover":
        return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    if method == "tools/list":
        return {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]}
    if method != "tools/call":
        return {}
    a = p.get("arguments") or {}
    if "inputResponses" in p:
        got = {"state": p.get("requestState"), "for": a["params"]["message"], "got": p["inputResponses"]["q"]}
        return {"content": [{"type": "text", "text": json.dumps(got, sort_keys=True)}]}
    return {"resultType": "input_required", "requestState": a["params"]["message"],
            "inputRequests": {"q": {"method": "elicitation/create", "params": a["params"]}}}


for line in sys.stdin:
    m = json.loads(line)
    if "id" in m and "method" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": answer(m)}), flush=True)
