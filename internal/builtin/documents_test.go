package builtin

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandlot/internal/auth"
	"sandlot/internal/registry"
	"sandlot/internal/servers"
	"sandlot/internal/toolview"
)

// README and the guide list every tool, and the guide says how many there are.
func TestToolsOfDocuments(t *testing.T) {
	finding := []string{toolview.SearchTools, toolview.DescribeTools, toolview.CallTool}
	names := slices.Clone(finding)
	for _, d := range New(Config{Connections: new(servers.Servers), Registries: new(registry.Registries)}).Tools(t.Context(), auth.Local) {
		if d.Name != "get_volume_mappings" { // an older name, which no list has
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	for file, pattern := range map[string]string{
		"../../README.md":           "(?m)^\\| `([a-z_]+)` \\| ",
		"../../docs/guide/tools.md": `(?m)^##+ ([a-z]+(?:_[a-z]+)+)$`,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var listed []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			listed = append(listed, m[1])
		}
		slices.Sort(listed)
		if !slices.Equal(listed, names) {
			t.Errorf("%s lists %q, want %q", file, listed, names)
		}
		total := fmt.Sprintf("Sandlot has %d tools. A client sees %d of them,", len(names), len(names)-len(finding))
		if strings.HasSuffix(file, "tools.md") && !strings.Contains(string(text), total) {
			t.Errorf("%s does not say %q", file, total)
		}
	}
}
