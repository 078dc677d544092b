package vault

import (
	"strings"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

func bindTo(t *testing.T, v *Vault, owner, name, value string, hosts ...string) Info {
	t.Helper()
	i, err := v.Set(t.Context(), owner, name, secret.Value(value), &Binding{Hosts: hosts})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func boundOf(t *testing.T, v *Vault, owner string) []BoundSecret {
	t.Helper()
	list, err := v.Bound(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The value of a bound secret goes to the broker alone. Its placeholder stays, whatever changes, and is another one for
// each principal and secret.
func TestBound(t *testing.T) {
	v, _ := fresh(t)
	first := bindTo(t, v, ann, "key", "of-ann", "API.example.com.", "git.example.com:8443", "api.example.com:443")
	b := first.Binding
	if strings.Join(b.Hosts, " ") != "api.example.com:443 git.example.com:8443" || len(b.Placeholder) != 48 ||
		!strings.HasPrefix(b.Placeholder, "sandlot_") {
		t.Errorf("bound as %+v", b)
	}
	is(t, v, ann, "key", b.Placeholder)
	if got := boundOf(t, v, ann); len(got) != 1 || got[0].Value.Reveal() != "of-ann" || Variable(got[0].Name) != "KEY" {
		t.Errorf("bound are %+v", got)
	}
	seen := map[string]bool{b.Placeholder: true}
	for _, i := range []Info{bindTo(t, v, ann, "other", "of-ann", "a.test"), bindTo(t, v, bob, "key", "of-bob",
		"a.test")} {
		if seen[i.Binding.Placeholder] {
			t.Error("two secrets have one placeholder")
		}
		seen[i.Binding.Placeholder] = true
	}
	// A new value without hosts leaves it bound, and does not make the old one readable.
	again := set(t, v, ann, "key", "again")
	if again.Binding == nil || again.Binding.Placeholder != b.Placeholder || len(again.Binding.Hosts) != 2 {
		t.Errorf("a new value: %+v", again.Binding)
	}
	is(t, v, ann, "key", b.Placeholder)
	if i := bindTo(t, v, ann, "key", "again", "a.test:1"); i.Binding.Placeholder != b.Placeholder ||
		len(i.Binding.Hosts) != 1 {
		t.Errorf("new hosts: %+v", i.Binding)
	}
	set(t, v, ann, "plain", "plain")
	is(t, v, ann, "plain", "plain")
	if i := bindTo(t, v, ann, "plain", "plain-bound", "a.test"); i.Binding.Placeholder == "" {
		t.Error("a plain one was not bound")
	}
	if got := boundOf(t, v, ann); len(got) != 3 || got[0].Value.Reveal() != "again" {
		t.Errorf("bound are %d", len(got))
	}
	if err := v.Remove(t.Context(), ann, "key"); err != nil || len(boundOf(t, v, ann)) != 2 {
		t.Error("one that was removed is bound")
	}
}

// With hosts that were changed in the store, a value does not open; nor does another's, or one that was bound, as a
// plain one.
func TestBoundIsSealed(t *testing.T) {
	v, m := fresh(t)
	bindTo(t, v, ann, "key", "of-ann", "a.test")
	own := m.row(ann, "key")
	for what, change := range map[string]func(r *Record){
		"other hosts": func(r *Record) { r.Binding = strings.Replace(r.Binding, "a.test", "evil.test", 1) },
		"a header": func(r *Record) {
			r.Binding = strings.Replace(r.Binding, `"hosts"`, `"header":"X","hosts"`,
				1)
		},
		"no JSON":       func(r *Record) { r.Binding = "x" },
		"no hosts":      func(r *Record) { r.Binding = "" },
		"another owner": func(r *Record) { r.Owner = bob },
	} {
		r := own
		change(&r)
		_ = m.RemoveSecret(t.Context(), ann, "key")
		if err := m.PutSecret(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if got := boundOf(t, v, r.Owner); len(got) > 0 {
			t.Errorf("%s: it opens", what)
		}
		if got, err := v.Reveal(t.Context(), r.Owner, "key"); strings.Contains(got.Reveal(), "of-ann") {
			t.Errorf("%s: %v", what, err)
		}
		_ = m.RemoveSecret(t.Context(), r.Owner, "key")
	}
}

// What cannot be bound is refused, with what to do, and without the value.
func TestBindRefuses(t *testing.T) {
	v, _ := fresh(t)
	for what, test := range map[string]struct {
		name, value string
		to          Binding
	}{
		"no host":            {"K", "hunter2", Binding{}},
		"a URL":              {"K", "hunter2", Binding{Hosts: []string{"https://a.test"}}},
		"an address":         {"K", "hunter2", Binding{Hosts: []string{"10.0.0.1"}}},
		"an address of IPv6": {"K", "hunter2", Binding{Hosts: []string{"[::1]:443"}}},
		"names below":        {"K", "hunter2", Binding{Hosts: []string{"*.a.test"}}},
		"port 0":             {"K", "hunter2", Binding{Hosts: []string{"a.test:0"}}},
		"a large port":       {"K", "hunter2", Binding{Hosts: []string{"a.test:65536"}}},
		"too many":           {"K", "hunter2", Binding{Hosts: strings.Split(strings.Repeat("a.test ", 17), " ")}},
		"a line end":         {"K", "hunter2\r\nX: y", Binding{Hosts: []string{"a.test"}}},
		"not ASCII":          {"K", "hunter2é", Binding{Hosts: []string{"a.test"}}},
		"too long":           {"K", strings.Repeat("hunter2", 2000), Binding{Hosts: []string{"a.test"}}},
		"no password":        {"K", "hunter2", Binding{Hosts: []string{"a.test"}, Basic: true}},
		"two ways":           {"K", "a:hunter2", Binding{Hosts: []string{"a.test"}, Basic: true, Header: "X"}},
		"an odd header":      {"K", "hunter2", Binding{Hosts: []string{"a.test"}, Header: "X:"}},
		"Host":               {"K", "hunter2", Binding{Hosts: []string{"a.test"}, Header: "host"}},
		"Content-Length":     {"K", "hunter2", Binding{Hosts: []string{"a.test"}, Header: "content-length"}},
		"a variable of all":  {"path", "hunter2", Binding{Hosts: []string{"a.test"}}},
		"of the linker":      {"ld_preload", "hunter2", Binding{Hosts: []string{"a.test"}}},
	} {
		_, err := v.Set(t.Context(), ann, test.name, secret.Value(test.value), &test.to)
		if !fault.Is(err, fault.InvalidParameters) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if list, err := v.List(t.Context(), ann); err != nil || len(list) > 0 {
		t.Errorf("stored: %+v, %v", list, err)
	}
}
