package agent

import "testing"

func TestIdentity(t *testing.T) {
	for name, want := range map[string][2]string{
		"ann":              {"ann", "ann@sandlot.invalid"},
		"ann@example.test": {"ann", "ann@example.test"},
		"Ann Bär":          {"Ann Bär", "Ann-B-r@sandlot.invalid"},
		"a@b <c>":          {"a@b <c>", "a-b--c-@sandlot.invalid"},
		"@":                {"@", "-@sandlot.invalid"},
	} {
		if id := IdentityOf(name); id.Name != want[0] || id.Email != want[1] {
			t.Errorf("%q: %q <%s>", name, id.Name, id.Email)
		}
	}
}
