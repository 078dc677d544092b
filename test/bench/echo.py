"""Calls a tool that answers with its arguments, for each line on standard input, with the official Python client."""
import asyncio, json, sys

from mcp import Client


async def main(url, tool):
    async with Client(url, mode="2026-07-28") as c:
        n = 0
        while sys.stdin.readline():
            n += 1
            r = await c.call_tool(tool, {"text": str(n)})
            assert not r.is_error and json.loads(r.content[0].text) == {"text": str(n)}, r
            print("ok", flush=True)


asyncio.run(main(*sys.argv[1:]))
