package template

import (
	"fmt"
	"strings"
	"testing"
)

// The first cause of a failed build stands first, so that it is there when the text is cut.
func TestFirstCauseFirst(t *testing.T) {
	var output strings.Builder
	for i := range 500 {
		fmt.Fprintf(&output, "note: step %d of a long build\n", i)
	}
	output.WriteString("ERROR: No matching distribution found for nope\n")
	for name, refusals := range map[string]string{
		"ERROR: No matching distribution found for nope": "",
		"the network policy does not allow a.example":    "the network policy does not allow a.example",
	} {
		said := problemOf(failedWith("pip install nope", 1, refusals, output.String()))
		if !strings.HasPrefix(said, "pip install nope: "+name+"\nit ended with code 1:\n") {
			t.Errorf("%.200s", said)
		}
	}
	if said := failedWith("true", 1, "", "").Error(); said != "true: it ended with code 1, and printed nothing" {
		t.Error(said)
	}
}
