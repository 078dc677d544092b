package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestComingFrom: each variable that the page for newcomers from other systems
// names is read, and the setting that it names for it is the one that it sets.
func TestComingFrom(t *testing.T) {
	text, err := os.ReadFile("../../docs/guide/coming-from.md")
	if err != nil {
		t.Fatal(err)
	}
	spans := regexp.MustCompile("`([^`]+)`")
	variable := regexp.MustCompile(`^[A-Z]+(_[A-Z]+)+$`)
	noticed := []string{"MSB_SERVER_URL", "MSB_API_KEY"} // and set nothing of their own
	seen, rows := map[string]bool{}, Default().settings()
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		keys := []string{}
		for _, k := range spans.FindAllStringSubmatch(cells[3], -1) {
			keys = append(keys, k[1])
		}
		for _, v := range spans.FindAllStringSubmatch(cells[1], -1) {
			if !variable.MatchString(v[1]) {
				continue
			}
			seen[v[1]] = true
			i := slices.IndexFunc(rows, func(s setting) bool { return slices.Contains(s.legacyEnv, v[1]) })
			switch {
			case slices.Contains(noticed, v[1]):
			case i < 0:
				t.Errorf("%s is read by no setting", v[1])
			case !slices.Contains(keys, rows[i].key):
				t.Errorf("%s sets %s, and the page says %q", v[1], rows[i].key, keys)
			}
		}
	}
	for _, s := range rows { // and none is forgotten
		for _, v := range s.legacyEnv {
			if !seen[v] {
				t.Errorf("%s, which sets %s, is not on the page", v, s.key)
			}
		}
	}
	for _, v := range noticed {
		c, err := Load(Source{Env: map[string]string{v: "http://127.0.0.1:5555"}, Flags: map[string]string{"state_dir": t.TempDir()}})
		if err != nil || !strings.Contains(strings.Join(c.Notes, "\n"), v) {
			t.Errorf("the start says nothing of %s: %v", v, err)
		}
	}
}
