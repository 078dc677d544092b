"""Logs a user in with the official Python SDK, and calls a tool. It prints the link, and reads where the browser was sent."""
import asyncio, json, sys

import httpx2
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata

url, redirect, issuer = sys.argv[1:]
metadata = {"redirect_uris": [redirect], "token_endpoint_auth_method": "none", "grant_types": ["authorization_code", "refresh_token"]}


class Storage:
    tokens = None
    client = OAuthClientInformationFull(client_id="mcp-client", issuer=issuer, **metadata)

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


async def ask(link):
    print(link, flush=True)


async def answer():
    got = json.loads(sys.stdin.readline())
    return AuthorizationCodeResult(code=got["code"][0], state=got["state"][0], iss=got.get("iss", [None])[0])


async def main():
    auth = OAuthClientProvider(url, OAuthClientMetadata(**metadata), Storage(), ask, answer)
    async with httpx2.AsyncClient(auth=auth, timeout=60) as http:
        async with streamable_http_client(url, http_client=http) as streams:
            async with ClientSession(streams[0], streams[1]) as c:
                await c.initialize()
                print((await c.call_tool("execute_code", {"code": "6*7"})).structured_content["result"])


asyncio.run(main())
