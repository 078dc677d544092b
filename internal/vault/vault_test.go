package vault

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
)

// records is a Store in memory.
type records struct {
	mu  sync.Mutex
	all map[[2]string]Record
}

func (m *records) PutSecret(_ context.Context, r Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[[2]string]Record{}
	}
	m.all[[2]string{r.Owner, r.Name}] = r
	return nil
}

func (m *records) Secret(_ context.Context, owner, name string) (Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.all[[2]string{owner, name}]
	if !ok {
		return r, ErrNotFound
	}
	return r, nil
}

func (m *records) Secrets(_ context.Context, owner string) ([]Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.SortedFunc(maps.Values(m.all), func(a, b Record) int { return cmp.Compare(a.Name, b.Name) })
	return slices.DeleteFunc(all, func(r Record) bool { return r.Owner != owner }), nil
}

func (m *records) RemoveSecret(_ context.Context, owner, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.all[[2]string{owner, name}]; !ok {
		return ErrNotFound
	}
	delete(m.all, [2]string{owner, name})
	return nil
}

func (m *records) row(owner, name string) Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[[2]string{owner, name}]
}

func fresh(t *testing.T) (*Vault, *records) {
	t.Helper()
	m := &records{}
	return &Vault{Store: m, KeyFile: filepath.Join(t.TempDir(), "secrets.key"), CreateKey: true}, m
}

func set(t *testing.T, v *Vault, owner, name, value string) Info {
	t.Helper()
	i, err := v.Set(t.Context(), owner, name, secret.Value(value), nil)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// is checks what a secret's value is; "" stands for a fault that tells how to
// store it again.
func is(t *testing.T, v *Vault, owner, name, want string) {
	t.Helper()
	got, err := v.Reveal(t.Context(), owner, name)
	if want != "" && (err != nil || got.Reveal() != want) {
		t.Errorf("%s of %s is %.40q, %v; want %.40q", name, owner, got.Reveal(), err, want)
	}
	if want == "" && (err == nil || got != "" || !strings.Contains(err.Error(), "sandlot secret set "+name)) {
		t.Errorf("%s of %s is %q, %v", name, owner, got.Reveal(), err)
	}
}

const ann, bob = "user:ann", "user:bob"

func TestValues(t *testing.T) {
	v, m := fresh(t)
	first := set(t, v, ann, "KEY", "one of ann")
	set(t, v, bob, "KEY", "one of bob")
	set(t, v, ann, "other_2", strings.Repeat("ä", MaxValueBytes/2))
	is(t, v, ann, "KEY", "one of ann")
	is(t, v, bob, "KEY", "one of bob")
	is(t, v, ann, "other_2", strings.Repeat("ä", MaxValueBytes/2))
	is(t, v, bob, "other_2", "")
	is(t, v, ann, "key", "")
	is(t, v, "user", "KEY", "")

	before := m.row(ann, "KEY").Sealed
	if bytes.Contains(before, []byte("ann")) {
		t.Errorf("stored as it is: %q", before)
	}
	again := set(t, v, ann, "KEY", "one of ann")
	if bytes.Equal(before, m.row(ann, "KEY").Sealed) {
		t.Error("the same value is sealed alike twice")
	}
	if !again.Created.Equal(first.Created) || again.Changed.Before(first.Changed) {
		t.Errorf("created %v and then %v", first, again)
	}
	set(t, v, ann, "KEY", "two")
	is(t, v, ann, "KEY", "two")
	is(t, v, bob, "KEY", "one of bob")

	list, err := v.List(t.Context(), ann)
	if err != nil || len(list) != 2 || list[0].Name != "KEY" || list[1].Name != "other_2" || !list[0].Readable ||
		strings.Contains(fmt.Sprintf("%+v", list), "two") {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := v.Remove(t.Context(), bob, "other_2"); !fault.Is(err, fault.NotFound) {
		t.Errorf("removing another's: %v", err)
	}
	if err := v.Remove(t.Context(), ann, "KEY"); err != nil {
		t.Error(err)
	}
	is(t, v, ann, "KEY", "")
	is(t, v, bob, "KEY", "one of bob")
	if err := v.Remove(t.Context(), ann, "KEY"); !fault.Is(err, fault.NotFound) {
		t.Errorf("removing one that is gone: %v", err)
	}
}

// What is sealed opens for its principal, under its name, and whole, alone.
func TestSwappedRows(t *testing.T) {
	v, m := fresh(t)
	set(t, v, ann, "A", "of ann")
	set(t, v, ann, "B", "other of ann")
	set(t, v, bob, "A", "of bob")
	put := func(to Record, sealed []byte) {
		to.Sealed = sealed
		if err := m.PutSecret(t.Context(), to); err != nil {
			t.Fatal(err)
		}
	}
	own := m.row(ann, "A")
	cut, turned := own.Sealed[:len(own.Sealed)-1], bytes.Clone(own.Sealed)
	turned[len(turned)/2] ^= 1
	for what, sealed := range map[string][]byte{"another name's": m.row(ann, "B").Sealed,
		"another's": m.row(bob, "A").Sealed,
		"a cut one": cut, "a changed one": turned, "an empty one": nil, "one byte": {1}} {
		put(own, sealed)
		if got, err := v.Reveal(t.Context(), ann, "A"); err == nil || got != "" {
			t.Errorf("%s opens as %q", what, got.Reveal())
		}
		if list, err := v.List(t.Context(), ann); err != nil || len(list) != 2 || list[0].Readable ||
			!list[1].Readable {
			t.Errorf("%s is listed as %+v, %v", what, list, err)
		}
	}
	put(own, own.Sealed)
	is(t, v, ann, "A", "of ann")
	if string(secretAdditionalData("a", "b_c", "")) == string(secretAdditionalData("a\x00b", "c", "")) ||
		bytes.Equal(secretAdditionalData("user:a", "b", ""), secretAdditionalData("user:", "ab", "")) {
		t.Error("two purposes are one")
	}
}

// With another key, or none, what was stored is listed and removed, and stored
// again.
func TestLostKey(t *testing.T) {
	v, _ := fresh(t)
	set(t, v, ann, "A", "a")
	set(t, v, ann, "B", "b")
	if st, err := os.Stat(v.KeyFile); err != nil || st.Mode().Perm() != 0o600 || st.Size() != 32 {
		t.Fatalf("the key: %v, %v", st, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(v.KeyFile), ".*")); len(left) > 0 {
		t.Errorf("left beside it: %q", left)
	}
	if err := os.Remove(v.KeyFile); err != nil {
		t.Fatal(err)
	}
	unreadable := func() {
		t.Helper()
		is(t, v, ann, "A", "")
		list, err := v.List(t.Context(), ann)
		if err != nil || len(list) == 0 || list[0].Readable {
			t.Errorf("listed %+v, %v", list, err)
		}
	}
	unreadable()
	if _, err := os.Stat(v.KeyFile); !errors.Is(err, os.ErrNotExist) {
		t.Error("reading makes a key")
	}
	if err := os.WriteFile(v.KeyFile, secret.Bytes(32), 0o600); err != nil {
		t.Fatal(err)
	}
	unreadable()
	if err := v.Remove(t.Context(), ann, "B"); err != nil {
		t.Error(err)
	}
	set(t, v, ann, "A", "again")
	is(t, v, ann, "A", "again")

	// A file that is no key is left as it is: it may be mended.
	if err := os.WriteFile(v.KeyFile, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{func() error { _, err := v.Reveal(t.Context(), ann, "A"); return err }(),
		func() error { _, err := v.Set(t.Context(), ann, "A", "x", nil); return err }()} {
		f := fault.From(err)
		if f.Kind != fault.Configuration || len(f.Advice) == 0 || strings.Contains(f.Error(), filepath.Dir(v.KeyFile)) {
			t.Errorf("with a file that is not a key: %v %q", err, f.Advice)
		}
	}
	if list, err := v.List(t.Context(), ann); err != nil || len(list) != 1 || list[0].Readable {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := v.Remove(t.Context(), ann, "A"); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(v.KeyFile); string(b) != "short" {
		t.Errorf("the file became %q", b)
	}
}

// A key file that the operator named is theirs to make.
func TestNamedKey(t *testing.T) {
	v, _ := fresh(t)
	v.CreateKey = false
	if _, err := v.Set(t.Context(), ann, "A", "a", nil); !fault.Is(err, fault.Configuration) {
		t.Errorf("without it: %v", err)
	}
	if _, err := os.Stat(v.KeyFile); !errors.Is(err, os.ErrNotExist) {
		t.Error("it was made")
	}
	if err := os.WriteFile(v.KeyFile, secret.Bytes(32), 0o600); err != nil {
		t.Fatal(err)
	}
	set(t, v, ann, "A", "a")
	is(t, v, ann, "A", "a")
}

// However many store at once, there is one key, and no more than the limit.
func TestAtOnce(t *testing.T) {
	v, m := fresh(t)
	other := &Vault{Store: m, KeyFile: v.KeyFile, CreateKey: true} // with a lock of its own
	var work sync.WaitGroup
	for n := range 10 {
		work.Go(func() {
			for _, v := range []*Vault{v, other} {
				if _, err := v.Set(t.Context(), fmt.Sprintf("user:%d", n), "A", secret.Value(fmt.Sprint("value ", n)),
					nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	for n := range 10 {
		is(t, v, fmt.Sprintf("user:%d", n), "A", fmt.Sprint("value ", n))
	}
	for n := range MaxSecrets + 10 {
		work.Go(func() {
			if _, err := v.Set(t.Context(), ann, fmt.Sprintf("S%d", n), "x", nil); err != nil &&
				!fault.Is(err, fault.ResourceLimit) {
				t.Error(err)
			}
		})
	}
	work.Wait()
	list, err := v.List(t.Context(), ann)
	if err != nil || len(list) != MaxSecrets {
		t.Fatalf("%d secrets, %v", len(list), err)
	}
	set(t, v, ann, list[0].Name, "one that is there")
	set(t, v, bob, "ANOTHER", "s")
}

func TestRefused(t *testing.T) {
	v, m := fresh(t)
	for _, name := range []string{"", "1A", "A-B", "A B", "ä", "A\n", "A}", "../A", strings.Repeat("A", 65)} {
		if _, err := v.Set(t.Context(), ann, name, "hunter2", nil); !fault.Is(err, fault.InvalidParameters) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("name %q: %v", name, err)
		}
		if _, err := v.Reveal(t.Context(), ann, name); !fault.Is(err, fault.NotFound) {
			t.Errorf("name %q: %v", name, err)
		}
		if err := v.Remove(t.Context(), ann, name); !fault.Is(err, fault.NotFound) {
			t.Errorf("removing %q: %v", name, err)
		}
	}
	for what, value := range map[string]string{"nothing": "", "a NUL": "hunter2\x00", "no text": "hunter2\xff",
		"too much": strings.Repeat("hunter2", MaxValueBytes/7+1)} {
		if _, err := v.Set(t.Context(), ann, "A", secret.Value(value), nil); !fault.Is(err, fault.InvalidParameters) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(m.all) > 0 {
		t.Errorf("stored %v", m.all)
	}
	for _, name := range []string{"A", "_", "a_9", strings.Repeat("Z", 64)} {
		set(t, v, ann, name, "lines\nof\ntext\n")
		is(t, v, ann, name, "lines\nof\ntext\n")
	}
}
