"""An agent of LangChain, with the tools of one MCP session, and a model that is told by variables."""
import asyncio, os

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI


async def main():
    headers = {"Authorization": "Bearer " + os.environ["SANDLOT_TEST_TOKEN"]}
    server = {"transport": "streamable_http", "url": os.environ["SANDLOT_URL"], "headers": headers}
    client = MultiServerMCPClient({"sandlot": server})
    model = ChatOpenAI(model=os.environ["MODEL"], base_url=os.environ["MODEL_URL"] + "/v1", api_key="none")
    async with client.session("sandlot") as session:
        agent = create_agent(model, await load_mcp_tools(session))
        end = await agent.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 60})
        print(end["messages"][-1].content)


asyncio.run(main())
