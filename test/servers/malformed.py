"""An MCP server whose definitions and results are not valid, as those of some real servers."""
import json
import sys

OBJECT = {"type": "object"}
TOOLS = [
    {"name": "fine", "inputSchema": OBJECT},
    {"name": "nulls", "description": None, "annotations": {"readOnlyHint": None, "title": None}, "inputSchema": {"type": "object", "properties": None, "required": None}},
    {"name": "words", "inputSchema": {"type": "object", "properties": {"a": "string", "b": True, "n": {"type": "integer", "minimum": "1"}}}},
    {"name": "php", "annotations": [], "inputSchema": {"type": "object", "properties": []}, "outputSchema": []},
    {"name": "array", "inputSchema": OBJECT, "outputSchema": {"type": "array", "items": {}}},
    {"name": "promise", "inputSchema": OBJECT, "outputSchema": {"type": "object", "properties": {"a": {"type": "string", "minLength": "1", "pattern": "\\_(", "$ref": "#/$defs/none"}}}},
    {"name": "promised", "inputSchema": OBJECT, "outputSchema": {"type": "object", "properties": None}},
    {"name": "hopeless", "inputSchema": {"type": "array"}},
    {"name": "icons", "inputSchema": OBJECT, "icons": [{"src": None}], "execution": {"taskSupport": "maybe"}, "title": 5},
]
PROMPTS = [{"name": "fine"}, {"name": "nulls", "arguments": None, "title": None}, {"name": "odd", "arguments": [{"name": "a", "required": "true"}, None]}]
RESOURCES = [{"uri": "mem://fine", "name": "fine"}, {"uri": "mem://odd", "name": "odd", "size": "12", "mimeType": None, "annotations": {"priority": 7}}, {"uri": "relative", "name": "relative"}]
TEMPLATES = [{"uriTemplate": "mem://{a}", "name": None, "mimeType": 5}]
RESULTS = {
    "fine": {"content": [{"type": "text", "text": "fine"}]},
    "nulls": {"content": None, "isError": None, "structuredContent": None},
    "words": {"content": "plain", "isError": "true"},
    "php": {"content": [{"type": "text", "text": "", "annotations": None}, {"type": "resource", "resource": {"uri": "mem://a", "text": "t", "blob": None, "mimeType": None}}]},
    "array": {"content": [], "structuredContent": [1, 2]},
}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}, "prompts": {}, "resources": {}}, "serverInfo": {"name": "malformed", "version": "1"}}
    if method == "tools/call" and params["name"] == "icons":
        return None
    if method == "prompts/get":
        return {"description": None, "messages": [{"role": "system", "content": "one"}, {"role": "user", "content": [{"type": "text", "text": "two"}]}]}
    if method == "resources/read":
        return {"contents": [{"text": 5, "mimeType": None}]}
    return {"tools/list": {"tools": TOOLS}, "prompts/list": {"prompts": PROMPTS}, "resources/list": {"resources": RESOURCES},
            "resources/templates/list": {"resourceTemplates": TEMPLATES}, "tools/call": RESULTS.get(params.get("name")), "ping": {}}[method]


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        try:
            outcome = {"result": answer(message.get("method"), message.get("params") or {})}
        except KeyError:
            outcome = {"error": "no such method"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)
