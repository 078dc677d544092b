package session

import (
	"testing"

	"sandlot/internal/sandbox"
)

// TestTooMuch: who has most loses the oldest images, and nobody else does as long as they have less.
func TestTooMuch(t *testing.T) {
	all := []sandbox.FrozenImage{{Name: "bob 1", Bytes: 10}, {Name: "ann 1", Bytes: 5}, {Name: "ann 2", Bytes: 50},
		{Name: "ann 3", Bytes: 50}, {Name: "eve 1", Bytes: 20}}
	for max, want := range map[int64]string{135: "", 134: "ann 1", 80: "ann 1, ann 2", 79: "ann 1, ann 2, ann 3",
		29: "ann 1, ann 2, ann 3, eve 1", 0: "ann 1, ann 2, ann 3, eve 1, bob 1"} {
		got := ""
		for _, one := range tooMuch(append([]sandbox.FrozenImage{}, all...), max, func(image string) string {
			return image[:3]
		}) {
			if got != "" {
				got += ", "
			}
			got += one.Name
		}
		if got != want {
			t.Errorf("with %d bytes %q go, want %q", max, got, want)
		}
	}
}
