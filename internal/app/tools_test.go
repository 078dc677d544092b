package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandlot/internal/config"
)

// A view of the settings that there is not is refused with its place.
func TestToolsFor(t *testing.T) {
	for text, want := range map[string]string{
		"tools_for: {users: all, services: code, principals: {ann: search}}\n": "",
		"tools_for: {users: some}\n":                               "users: must be one of all, search,",
		"tools_for: {services: some}\n":                            "services: must be one of all",
		"tools_for: {principals: {ann: codes}}\n":                  "principals: ann: must be one of all",
		"tools_for: {principals: {ann: all, \"user:ann\": all}}\n": "is named twice",
		"tools_for: {principals: {\"a b\": all}}\n":                "principals: a b: ",
	} {
		file := filepath.Join(t.TempDir(), "sandlot.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(config.Source{File: file}); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
