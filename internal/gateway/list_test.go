package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/tool"
)

func manyTools(n int) []tool.Tool {
	var all []tool.Tool
	for i := range n {
		name := fmt.Sprintf("ext_s_tool_%05d", i)
		all = append(all, tool.Tool{Name: name,
			Raw: json.RawMessage(fmt.Sprintf(`{"name":%q,"description":%q,`+
				`"inputSchema":{"type":"object","properties":{"b":{"type":"number"},`+
				`"a":{"type":"string","description":"An argument of this tool."}}}}`, name,
				strings.Repeat("Does something <useful>. ", 10)))})
	}
	return all
}

// One client of the stateful protocol requests two pages of 1000 tools.
func BenchmarkList(b *testing.B) {
	g := newGateway(&fakeExternal{tools: manyTools(2000)})
	id := begin(b, g, auth.Local)
	for b.Loop() {
		cursor := ""
		for range 2 {
			w := post(g, auth.Local, id, `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{`+cursor+`}}`)
			_, next, _ := strings.Cut(w.Body.String(), `"nextCursor":"`)
			next, _, _ = strings.Cut(next, `"`)
			cursor = fmt.Sprintf(`"cursor":%q`, next)
		}
	}
}

func BenchmarkEndpoint(b *testing.B) {
	t := &fakeExternal{tools: manyTools(2000)}
	for b.Loop() {
		newGateway(t).acquire(endpointKey{principal: auth.Local})
	}
}
