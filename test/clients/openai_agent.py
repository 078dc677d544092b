"""An agent of the OpenAI Agents SDK, with one MCP session, and a model that is told by variables."""
import asyncio, os

from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

set_tracing_disabled(True)


async def main():
    headers = {"Authorization": "Bearer " + os.environ["SANDLOT_TEST_TOKEN"]}
    params = {"url": os.environ["SANDLOT_URL"], "headers": headers, "timeout": 120}
    api = AsyncOpenAI(base_url=os.environ["MODEL_URL"] + "/v1", api_key="none")
    model = OpenAIResponsesModel(model=os.environ["MODEL"], openai_client=api)
    async with MCPServerStreamableHttp(params=params, client_session_timeout_seconds=120) as server:
        end = await Runner.run(Agent(name="agent", model=model, mcp_servers=[server]), "go", max_turns=40)
        print(end.final_output)


asyncio.run(main())
