// An agent of the AI SDK, with one MCP session, and a model that is told by variables.
import { createMCPClient } from "@ai-sdk/mcp";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs } from "ai";

const { MODEL, MODEL_URL, SANDLOT_TEST_TOKEN, SANDLOT_URL } = process.env;
const client = await createMCPClient({
  transport: { type: "http", url: SANDLOT_URL, headers: { Authorization: `Bearer ${SANDLOT_TEST_TOKEN}` } },
});
const openai = createOpenAI({ baseURL: MODEL_URL + "/v1", apiKey: "none" });
const { text } = await generateText({
  model: openai.responses(MODEL), tools: await client.tools(), prompt: "go", stopWhen: stepCountIs(40),
  providerOptions: { openai: { store: false } },
});
console.log(text);
await client.close();
