"""An agent of LlamaIndex, with the tools of an MCP client, and a model that is told by variables."""
import asyncio, os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from llama_index.tools.mcp import BasicMCPClient, McpToolSpec


async def main():
    headers = {"Authorization": "Bearer " + os.environ["SANDLOT_TEST_TOKEN"]}
    client = BasicMCPClient(os.environ["SANDLOT_URL"], headers=headers, timeout=120)
    model = OpenAILike(model=os.environ["MODEL"], api_base=os.environ["MODEL_URL"] + "/v1", api_key="none",
                       is_chat_model=True, is_function_calling_model=True, context_window=1_000_000)
    agent = FunctionAgent(tools=await McpToolSpec(client).to_tool_list_async(), llm=model, timeout=300)
    print(await agent.run("go", max_iterations=40))


asyncio.run(main())
