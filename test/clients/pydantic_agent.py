"""An agent of Pydantic AI, with one MCP session, and a model that is told by variables."""
import asyncio, os

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def main():
    headers = {"Authorization": "Bearer " + os.environ["SANDLOT_TEST_TOKEN"]}
    provider = OpenAIProvider(base_url=os.environ["MODEL_URL"] + "/v1", api_key="none")
    # Two failures in a row end a run, unless it may retry more often.
    toolset = MCPToolset(os.environ["SANDLOT_URL"], headers=headers, max_retries=5)
    agent = Agent(OpenAIChatModel(os.environ["MODEL"], provider=provider), toolsets=[toolset])
    async with agent:
        print((await agent.run("go")).output)


asyncio.run(main())
