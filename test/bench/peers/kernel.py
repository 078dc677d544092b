"""Uses one Python that keeps its state: a Jupyter kernel, or a session of Sandlot. It takes the time of each use.

    kernel.py zmq             a kernel of this program, by jupyter_client
    kernel.py gateway URL     a kernel of a Jupyter Kernel Gateway, by a websocket
    kernel.py mcp URL         a session of Sandlot, by the official MCP client

Reads commands in JSON, one a line, and answers each with a line.
"""
import asyncio, json, socket, sys, time, uuid

PRINT = "for i in range(100000): print(i)"
PRINTED = "".join(f"{i}\n" for i in range(100000))


class Zmq:
    async def start(self):
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def pids(self):
        return [self.manager.provisioner.pid]

    async def run(self, code):
        text, value = [], None

        def hook(m):
            nonlocal value
            if m["msg_type"] == "stream":
                text.append(m["content"]["text"])
            elif m["msg_type"] == "execute_result":
                value = m["content"]["data"]["text/plain"]

        reply = self.client.execute_interactive(code, output_hook=hook)
        assert reply["content"]["status"] == "ok", reply
        return "".join(text), value

    async def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Gateway:
    def __init__(self, url):
        self.url = url

    def request(self, method, path):
        from urllib.request import Request, urlopen

        data = b"{}" if method == "POST" else None
        with urlopen(Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)) as r:
            return r.read()

    async def start(self):
        self.id = json.loads(self.request("POST", "/api/kernels"))["id"]
        self.refresh()

    def refresh(self):
        # The gateway closes a connection on which nobody answers its pings, and this client answers only while it reads.
        import websocket

        if getattr(self, "socket", None):
            self.socket.close()
        self.socket = websocket.create_connection(
            self.url.replace("http:", "ws:") + f"/api/kernels/{self.id}/channels", suppress_origin=True,
            sockopt=((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),))
        self.socket.settimeout(60)

    def pids(self):
        return []  # the gateway's children

    async def run(self, code):
        id = uuid.uuid4().hex
        self.socket.send(json.dumps({
            "channel": "shell", "parent_header": {}, "metadata": {}, "buffers": [],
            "header": {"msg_id": id, "msg_type": "execute_request", "version": "5.3", "username": "bench",
                       "session": self.id, "date": ""},
            "content": {"code": code, "silent": False, "store_history": True, "user_expressions": {},
                        "allow_stdin": False, "stop_on_error": True}}))
        text, value, idle, status = [], None, False, None
        while not idle or status is None:
            m = json.loads(self.socket.recv())
            if m["parent_header"].get("msg_id") != id:
                continue
            kind, content = m["header"]["msg_type"], m["content"]
            if kind == "stream":
                text.append(content["text"])
            elif kind == "execute_result":
                value = content["data"]["text/plain"]
            elif kind == "execute_reply":
                status = content["status"]
            elif kind == "status":
                idle = content["execution_state"] == "idle"
        assert status == "ok", status
        return "".join(text), value

    async def stop(self):
        self.socket.close()
        self.request("DELETE", "/api/kernels/" + self.id)


class Mcp:
    def __init__(self, url):
        self.url, self.session = url, "new"

    async def connect(self):
        from mcp import Client

        self.client = await Client(self.url, mode="2026-07-28").__aenter__()

    async def start(self):
        pass  # the first call makes the session

    def pids(self):
        return []

    async def run(self, code):
        r = await self.client.call_tool("execute_code", {"code": code, "session_id": self.session})
        assert not r.is_error, r
        self.session = r.structured_content["session_id"]
        text = r.content[0].text
        if uri := r.structured_content.get("stdout_uri"):  # the whole output
            text = (await self.client.read_resource(uri)).contents[0].text
        return text, r.structured_content.get("result")

    async def stop(self):
        await self.client.call_tool("stop_session", {"session_id": self.session})
        self.session = "new"


async def main(kind, *args):
    kernel = {"zmq": Zmq, "gateway": Gateway, "mcp": Mcp}[kind](*args)
    if kind == "mcp":
        await kernel.connect()
    else:
        import jupyter_client, websocket  # a program that uses them has them already

    async def call():
        began = time.perf_counter_ns()
        _, value = await kernel.run("n + 2")
        took = time.perf_counter_ns() - began
        assert value == "42", value
        return took

    while line := sys.stdin.readline():
        order = json.loads(line)
        took, more = [], {}
        if kind == "gateway" and order["do"] != "start":
            kernel.refresh()
        if order["do"] == "start":
            began = time.perf_counter_ns()
            await kernel.start()
            _, value = await kernel.run("n = 40; n + 2")
            took = [time.perf_counter_ns() - began]
            assert value == "42", value
            more = {"pids": kernel.pids()}
        elif order["do"] == "calls":
            took = [await call() for _ in range(order["n"])]
        elif order["do"] == "for":
            end = time.perf_counter_ns() + order["ns"]
            while time.perf_counter_ns() < end:
                took.append(await call())
        elif order["do"] == "lines":
            began = time.perf_counter_ns()
            text, _ = await kernel.run(PRINT)
            took = [time.perf_counter_ns() - began]
            assert text == PRINTED, text[-100:]
        elif order["do"] == "stop":
            await kernel.stop()
        print(json.dumps({"took": took, **more}), flush=True)


asyncio.run(main(*sys.argv[1:]))
