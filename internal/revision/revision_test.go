package revision

import "testing"

func TestRevisions(t *testing.T) {
	for version, want := range map[string]struct{ stateless, stateful, batches bool }{
		"":           {batches: true},
		"2024-11-05": {stateful: true, batches: true},
		"2025-03-26": {stateful: true, batches: true},
		"2025-06-18": {stateful: true},
		"2025-11-25": {stateful: true},
		"2026-07-28": {stateless: true},
		"2027-01-01": {stateless: true},
	} {
		if IsStateless(version) != want.stateless || IsStateful(version) != want.stateful ||
			HasBatches(version) != want.batches {
			t.Errorf("%q: stateless %v, stateful %v, batches %v", version, IsStateless(version), IsStateful(version),
				HasBatches(version))
		}
	}
}
