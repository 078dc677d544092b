package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sandlot/internal/fault"
)

// TestNobodyFloodsARegistry: what one principal makes this server ask registries is bounded, over all of them and all ways
// to ask. Others ask all the same, and what the copy has is no request.
func TestNobodyFloodsARegistry(t *testing.T) {
	one, other := serve(t, weather), serve(t, weather)
	rs := registriesOf(t, Config{Sources: []Source{{Name: "one", URL: one.URL}, {Name: "other", URL: other.URL}}})
	ann := For(t.Context(), "user:ann")
	refused := 0
	for i := range 4 * maxAsked {
		ref := Reference{Registry: []string{"one", "other"}[i%2], Name: fmt.Sprintf("io.github.ann/w%d", i)}
		var err error
		if i%3 == 0 {
			_, err = rs.Plan(ann, ref, Choice{})
		} else {
			_, err = rs.Get(ann, ref)
		}
		if fault.Is(err, fault.ResourceLimit) {
			refused++
		} else if !fault.Is(err, fault.NotFound) {
			t.Fatal(err)
		}
	}
	// A busy machine may give back some meanwhile.
	if asked := int(one.asked.Load() + other.asked.Load()); asked+refused != 4*maxAsked || asked < maxAsked || asked > 3*maxAsked {
		t.Errorf("%d requests, and %d were refused", asked, refused)
	}
	if _, err := rs.Get(For(t.Context(), "user:bob"), Reference{Registry: "one", Name: "io.github.ann/weather"}); err != nil {
		t.Errorf("another user: %v", err)
	}
	for range 2 * maxAsked {
		if _, err := rs.Get(ann, Reference{Registry: "one", Name: "io.github.ann/weather"}); err != nil {
			t.Fatalf("what another user has read: %v", err)
		}
	}
	if found, err := rs.Search(ann, Query{Words: "weather"}); err != nil || found.Total == 0 {
		t.Errorf("the copy: %v, %v", found, err)
	}
	for i := range 2 * maxAskers {
		if err := rs.all[0].asked.take(For(t.Context(), fmt.Sprint(i))); err != nil && !fault.Is(err, fault.ResourceLimit) {
			t.Fatal(err)
		}
	}
	if n := len(rs.all[0].asked.left); n > maxAskers {
		t.Errorf("%d principals are remembered", n)
	}
}

// TestRemoveOthers: the copies of registries that are not in the settings any more go, and nothing else.
func TestRemoveOthers(t *testing.T) {
	folder, outside := t.TempDir(), t.TempDir()
	kept := Source{Name: "one", URL: "https://registry.example"}
	moved := Source{Name: "one", URL: "https://old.example"}
	gone := Source{Name: "other", URL: "https://other.example"}
	for _, name := range []string{copyName(kept), copyName(moved), copyName(gone), "mine", "mine-0123"} {
		if err := os.MkdirAll(filepath.Join(folder, name, "entries"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name, "list.jsonl"), []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := "linked-0123456789ab"
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "file"), nil, 0o600), os.Symlink(outside, filepath.Join(folder, link)),
		os.WriteFile(filepath.Join(folder, "file-0123456789ab"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	RemoveOthers(folder, []Source{kept, {Name: "disk", Path: "/srv/copy"}}, slog.New(slog.DiscardHandler))
	var left []string
	all, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		left = append(left, e.Name())
	}
	want := []string{copyName(kept), "file-0123456789ab", link, "mine", "mine-0123"}
	if slices.Sort(want); !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Error(err)
	}
	RemoveOthers(filepath.Join(folder, "none"), nil, slog.New(slog.DiscardHandler))
}
