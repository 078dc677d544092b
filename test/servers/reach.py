"""An MCP server over stdio, with nothing but Python, whose tools connect to hosts: by itself, by a program that it starts,
and by one that has left its tree."""
import json, os, socket, subprocess, sys

PLACE = {"type": "object", "properties": {"host": {"type": "string"}, "port": {"type": "integer"}}}
TOOLS = [{"name": name, "description": "Connects to a host.", "inputSchema": PLACE}
         for name in ("itself", "child", "daemon", "fails", "quiet")]
TRY = ("import socket, sys\n"
       "try: print('reached', socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).recv(1))\n"
       "except OSError as e: print('not reached: %s' % e)")


def reach(host, port):
    try:
        socket.create_connection((host, port), 10).recv(1)  # an address is refused when the connection is there
        return "reached"
    except OSError as e:
        return "not reached: %s" % e


def daemon(host, port):
    """A grandchild in a session of its own, whose parent has ended."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            env = dict(os.environ)
            os.dup2(w, 1)
            os.execve(sys.executable, [sys.executable, "-c", TRY, host, str(port)], env)
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(w)
    with os.fdopen(r) as f:
        return f.read()


def call(name, a):
    if name == "quiet":
        return "nothing"
    if name == "child":
        return subprocess.run([sys.executable, "-c", TRY, a["host"], str(a["port"])], capture_output=True, text=True).stdout
    if name == "daemon":
        return daemon(a["host"], a["port"])
    return reach(a["host"], a["port"])


if len(sys.argv) > 1:  # a host that it needs
    said = reach(sys.argv[1], 443)
    if said != "reached":
        sys.exit("cannot start: " + said)

for line in sys.stdin:
    m = json.loads(line)
    method = m.get("method")
    answer = {"jsonrpc": "2.0", "id": m.get("id")}
    if method == "initialize":
        answer["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "reach", "version": "1"}}
    elif method == "tools/list":
        answer["result"] = {"tools": TOOLS}
    elif method == "tools/call":
        said = call(m["params"]["name"], m["params"].get("arguments", {}))
        if m["params"]["name"] == "fails":
            answer["error"] = {"code": -32000, "message": said}
        else:
            answer["result"] = {"content": [{"type": "text", "text": said}], "structuredContent": {"said": said}}
    else:
        answer["result"] = {}
    if "id" in m:
        print(json.dumps(answer), flush=True)
