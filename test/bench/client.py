"""Makes one warm call for each line on standard input, with the official Python client."""
import asyncio, sys

from mcp import Client


async def main(url, session):
    async with Client(url, mode="2026-07-28") as c:
        while sys.stdin.readline():
            r = await c.call_tool("execute_code", {"code": "1+1", "session_id": session})
            assert not r.is_error and r.content[0].text == "2" and r.structured_content["session_id"] == session, r
            print("ok", flush=True)


asyncio.run(main(*sys.argv[1:]))
