"""An MCP server over stdio, with nothing but Python, whose one tool fetches an address with the key in the
environment."""
import json, os, sys, urllib.request


def fetch(url):
    request = urllib.request.Request(url, headers={"X-Api-Key": os.environ["BANK_KEY"]})
    return urllib.request.urlopen(request, timeout=20).read().decode()


for line in sys.stdin:
    m = json.loads(line)
    method = m.get("method")
    if method == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "keyed", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "fetch", "inputSchema": {"type": "object", "properties": {"url": {"type": "string"}}}}]}
    elif method == "tools/call":
        try:
            said = fetch(m["params"]["arguments"]["url"])
        except Exception as e:
            said = repr(e)
        result = {"content": [{"type": "text", "text": said}]}
    else:
        result = {}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
