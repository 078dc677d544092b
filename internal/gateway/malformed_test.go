package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandlot/internal/auth"
)

// The answer to an invalid message is JSON-RPC in both protocols, and never has another id than
// the message.
func TestMalformedMessages(t *testing.T) {
	g := newGateway(reportCaller())
	session := begin(t, g, local)
	const ping = `"jsonrpc":"2.0","method":"ping"`
	for name, body := range map[string]string{
		"a batch":                   `[{"id":1,` + ping + `}]`,
		"an empty batch":            `[]`,
		"a text":                    `"x"`,
		"a number":                  ` 7`,
		"null":                      `null`,
		"an empty object":           `{}`,
		"an id that is true":        `{"id":true,` + ping + `}`,
		"an object as id":           `{"id":{},` + ping + `}`,
		"a list as id":              `{"id":[1],` + ping + `}`,
		"a fraction as id":          `{"id":1.5,` + ping + `}`,
		"an id that is too large":   `{"id":12345678901234567890123,` + ping + `}`,
		"an id beyond numbers":      `{"id":1e400,` + ping + `}`,
		"null as id":                `{"id":null,` + ping + `}`,
		"no id":                     `{` + ping + `}`,
		"no version":                `{"id":1,"method":"ping"}`,
		"another version":           `{"id":1,"jsonrpc":"1.0","method":"ping"}`,
		"a method that is not text": `{"id":1,"jsonrpc":"2.0","method":7}`,
		"other letters":             `{"ID":1,"JSONRPC":"2.0","METHOD":"ping"}`,
		"deep nesting": `{"id":1,` + ping + `,"params":{"a":` +
			strings.Repeat(`{"a":`, 2000) + `1` + strings.Repeat("}", 2000) + `}}`,
	} {
		for _, header := range []map[string]string{
			{"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25"},
			{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "ping"},
		} {
			r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(body))
			for k, v := range header {
				r.Header.Set(k, v)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json, text/event-stream")
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r.WithContext(auth.NewContext(r.Context(), local)))
			var a struct {
				JSONRPC string
				ID      any
				Error   struct{ Code int }
			}
			if json.Unmarshal(w.Body.Bytes(), &a) != nil || w.Code != 400 || a.JSONRPC != "2.0" ||
				a.Error.Code != -32600 || a.ID != nil && a.ID != 1.0 {
				t.Errorf("%s, %s: %d %s", name, header["Mcp-Protocol-Version"], w.Code, w.Body)
			}
		}
	}
	for _, id := range []string{`1`, `-1`, `0`, `1.0`, `9007199254740992`, `"a"`, `""`, `"\u20ac"`} {
		if w := post(g, local, session, `{"id":`+id+`,`+ping+`}`); w.Code != 200 ||
			!strings.Contains(w.Body.String(), `"result"`) {
			t.Errorf("id %s: %d %s", id, w.Code, w.Body)
		}
	}
}
