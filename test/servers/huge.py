"""An MCP server over stdio, with nothing but Python, whose answers are large, or never end."""
import base64, json, sys, threading, time

lock = threading.Lock()
UNIT = 'ab"c\\dé\n0123456789'


def write(b):
    with lock:
        sys.stdout.buffer.write(b)
        sys.stdout.buffer.flush()


def send(m):
    write(json.dumps({"jsonrpc": "2.0", **m}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def call(i, p):
    a, tool = p.get("arguments") or {}, p["name"]
    n = int(a.get("bytes", 50_000_000))
    if tool == "text":
        return {"content": [{"type": "text", "text": UNIT * (n // len(UNIT.encode()))}]}
    if tool == "structured":
        return {"content": [], "structuredContent": {"rows": [UNIT * 1000] * (n // (1000 * len(UNIT.encode()))), "n": 12345678901234567890}}
    data = base64.b64encode(bytes(range(256)) * (n // 256)).decode() if tool in ("image", "blob", "odd_image") else ""
    if tool == "image":
        return {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}
    if tool == "odd_image":
        return {"content": [{"type": "image", "data": data + "!", "mimeType": "image/png"}, {"type": "text", "text": "beside it"}]}
    if tool == "blob":
        return {"content": [{"type": "resource", "resource": {"uri": "huge://blob", "blob": data}}]}
    head = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % i
    if tool == "huge":
        with lock:
            sys.stdout.buffer.write(head)
            for _ in range(200):
                sys.stdout.buffer.write(b"x" * 1_000_000)
            sys.stdout.buffer.write(b'"}]}}\n')
            sys.stdout.buffer.flush()
    if tool == "endless":
        with lock:
            sys.stdout.buffer.write(head)
            while True:
                sys.stdout.buffer.write(b"x" * 1_000_000)
    if tool == "hang":
        write(head + b"x" * n)
        time.sleep(3600)
    if tool == "huge":
        return None
    return {"content": [{"type": "text", "text": "small"}]}


def handle(m):
    i, method, p = m.get("id"), m.get("method"), m.get("params") or {}
    if method == "initialize":
        send({"id": i, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "huge", "version": "1"}}})
    elif method == "tools/list":
        names = ("text", "structured", "image", "odd_image", "blob", "huge", "endless", "hang", "small")
        send({"id": i, "result": {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in names]}})
    elif method == "tools/call":
        result = call(i, p)
        if result is not None:
            send({"id": i, "result": result})
    elif i is not None:
        send({"id": i, "error": {"code": -32601, "message": "Method not found"}})


for line in sys.stdin:
    threading.Thread(target=handle, args=(json.loads(line),), daemon=True).start()
