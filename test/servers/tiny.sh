#!/bin/sh
# An MCP server over stdio, with nothing but a shell. Its tool die ends it.
while IFS= read -r line; do
	id=${line#*'"id":'}
	id=${id%%[,\}]*}
	case $line in
	*'"initialize"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"tiny","version":"1"}}}\n' "$id" ;;
	*'"tools/list"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"hello","inputSchema":{"type":"object"}},{"name":"die","inputSchema":{"type":"object"}}]}}\n' "$id" ;;
	*'"tools/call"'*'"die"'*) exit 3 ;;
	*'"tools/call"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"hello"}]}}\n' "$id" ;;
	*'"id":'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}\n' "$id" ;;
	esac
done
