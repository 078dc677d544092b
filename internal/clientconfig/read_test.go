package clientconfig

import (
	"strings"
	"testing"
)

// What the author of a client's file writes takes neither the stack nor the memory.
func TestClientFilesAreBounded(t *testing.T) {
	for what, text := range map[string]string{
		"deep":           `{"mcpServers":{"a":` + strings.Repeat("[", 500_000),
		"deep, and huge": `{"mcpServers":{"a":` + strings.Repeat("[", 9_000_000),
		"many":           `{"mcpServers":{` + strings.Repeat(`"a":{},`, 200_000) + `"b":{}}}`,
	} {
		if _, err := readSections([]byte(text)); err == nil {
			t.Errorf("%s: it is read", what)
		}
	}
	text := "{\"x\": [1], // [\n \"mcpServers\": {\"a\": {\"command\": \"/*[\"},},}"
	if top, err := readSections([]byte(text)); err != nil || top["mcpServers"] == nil {
		t.Errorf("%v, %v", top, err)
	}
}
