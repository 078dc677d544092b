package importtest

import (
	"strings"
	"testing"
)

// The messages of the link to an agent are seen by both of its ends alone, also
// in tests: everything else on the host uses the types of package agent.
func TestMessagesStayBehindTheAgent(t *testing.T) {
	ends := []string{"sandlot/internal/agent", "sandlot/internal/guest", "sandlot/proto", "sandlot/test/hostile"}
	const format = "{{$p := .ImportPath}}{{range .Imports}}{{$p}},{{.}} {{end}}{{range .TestImports}}{{$p}},{{.}} " +
		"{{end}}{{range .XTestImports}}{{$p}},{{.}} {{end}}"
	seen := 0
next:
	for _, l := range list(t, format, "sandlot/...") {
		from, to, _ := strings.Cut(l, ",")
		if !below(to, "sandlot/proto/agentv1") {
			continue
		}
		seen++
		for _, e := range ends {
			if below(from, e) {
				continue next
			}
		}
		t.Errorf("%s imports %s", from, to)
	}
	if seen == 0 {
		t.Error("nothing imports the messages")
	}
}
