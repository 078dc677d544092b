package importtest

import (
	"slices"
	"testing"
)

// The messages of the link to an agent are seen by both of its ends alone, also
// in tests: everything else on the host uses the types of package agent.
func TestMessagesStayBehindTheAgent(t *testing.T) {
	ends := []string{"sandlot/internal/agent", "sandlot/internal/guest", "sandlot/proto", "sandlot/test/hostile"}
	seen := 0
	for from, tos := range sources(t, true) {
		for to := range tos {
			if !below(to, "sandlot/proto/agentv1") {
				continue
			}
			seen++
			if !slices.ContainsFunc(ends, func(e string) bool { return below(from, e) }) {
				t.Errorf("%s imports %s", from, to)
			}
		}
	}
	if seen == 0 {
		t.Error("nothing imports the messages")
	}
}
