// An MCP server over stdio, with nothing but Node.
import readline from 'node:readline'
const tool = {name: 'greet', description: 'Greets.', inputSchema: {type: 'object', properties: {name: {type: 'string'}}, required: ['name']}}
const answers = {
  'initialize': () => ({protocolVersion: '2025-06-18', capabilities: {tools: {}}, serverInfo: {name: 'greeter', version: '1.2.3'}}),
  'tools/list': () => ({tools: [tool]}),
  'tools/call': p => ({content: [{type: 'text', text: `Hello, ${p.arguments.name}!`}]}),
}
for await (const line of readline.createInterface({input: process.stdin})) {
  const {id, method, params} = JSON.parse(line)
  if (id === undefined) continue
  const reply = answers[method] ? {result: answers[method](params)} : {error: {code: -32601, message: 'Method not found'}}
  console.log(JSON.stringify({jsonrpc: '2.0', id, ...reply}))
}
