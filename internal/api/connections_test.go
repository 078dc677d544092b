package api

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"sandlot/internal/tool"
)

// What a third-party server answers is no fault of ours, and is said.
func TestRefusal(t *testing.T) {
	for code, status := range map[int64]int{-32602: 400, -32002: 404, -32603: 502, 7: 502} {
		for _, data := range []string{"", `{"big":12345678901234567890}`} {
			w := httptest.NewRecorder()
			refusal := &tool.ExternalError{Code: code, Message: "path must be absolute", Data: json.RawMessage(data)}
			new(Server).problem(w, httptest.NewRequest("POST", "/v1/tools/ext_t", nil),
				fmt.Errorf("calling: %w", refusal))
			if w.Code != status || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%d: %d %s", code, w.Code, w.Body)
			}
			for _, want := range []string{"path must be absolute", fmt.Sprintf(`"rpc_code":%d`, code), data} {
				if !strings.Contains(w.Body.String(), want) {
					t.Errorf("%d: %s has no %s", code, w.Body, want)
				}
			}
		}
	}
}
