"""A tour with the official Python SDK: connects to the URL given, uses every kind of tool."""
import asyncio, base64, sys

from mcp import Client


def text(result):
    return result.content[0].text


async def tour(url, **options):
    async with Client(url, **options) as c:
        tools = await c.list_tools()
        names = {t.name for t in tools.tools}
        assert {"execute_code", "execute_command", "sandbox_read_file", "read_process"} <= names, names
        r = await c.call_tool("execute_code", {"code": "x = 20\nprint('hello')\nx + 1", "session_id": "new"})
        assert not r.is_error and text(r) == "hello", r
        data = r.structured_content
        assert data["result"] == "21" and data["session_created"] is True, data
        session = data["session_id"]
        r = await c.call_tool("execute_code", {"code": "x * 2", "session_id": session})
        assert r.structured_content["result"] == "40", r
        r = await c.call_tool("execute_code", {"code": "raise ValueError('no')", "session_id": session})
        assert r.is_error and "ValueError: no" in text(r), r
        r = await c.call_tool("execute_command", {"command": "printf a | tr a b; exit 3", "session_id": session})
        assert r.is_error and text(r) == "b" and r.structured_content["exit_code"] == 3, r
        blob = base64.b64encode(bytes(range(256))).decode()
        await c.call_tool("sandbox_write_file", {"path": "/workspace/b", "content": blob, "encoding": "base64", "session_id": session})
        r = await c.call_tool("sandbox_read_file", {"path": "/workspace/b", "encoding": "base64", "session_id": session})
        assert text(r) == blob, r
        said = []

        async def progress(done, total, message):
            said.append(message)

        r = await c.call_tool("execute_command", {"command": "for i in 1 2 3; do echo step $i; sleep 0.4; done", "session_id": session}, progress_callback=progress)
        assert "step 3" in text(r) and any("step 1" in (m or "") for m in said), (r, said)
        r = await c.call_tool("execute_code", {"code": "1", "session_id": "nobodys"})
        assert r.is_error and "Session not found" in text(r) and r.structured_content["error_code"] == "SESSION_NOT_FOUND", r
        await c.call_tool("stop_session", {"session_id": session})
        print("ok", options)


asyncio.run(tour(sys.argv[1]))
for mode in ("legacy", "2026-07-28"):
    asyncio.run(tour(sys.argv[1], mode=mode))
