package image

import (
	"archive/tar"
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandlot/internal/inventory"
	"sandlot/internal/oci"
)

// folder is a state folder.
type folder struct {
	inventory.Inventory
	Templates, Used map[string]string // as of inventory.Uses
}

// world is a state folder with a store.
func world(t *testing.T) (state *folder, add func(name string) oci.Image, run func(args ...string) error) {
	t.Helper()
	dir := t.TempDir()
	state = &folder{Inventory: inventory.Inventory{
		Store: oci.Open(filepath.Join(dir, "images"), slog.New(slog.DiscardHandler))},
		Templates: map[string]string{}, Used: map[string]string{}}
	state.Uses = func() inventory.Uses { return inventory.Uses{Named: state.Templates, Built: state.Used} }
	add = func(name string) oci.Image {
		t.Helper()
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		if err := w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		w.Close()
		path := filepath.Join(dir, "root.tar")
		if err := os.WriteFile(path, archive.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		added, err := state.Store.Import(t.Context(), path, name, oci.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return added
	}
	run = func(args ...string) error {
		c := Command(func() (Images, error) { return Images{Inventory: &state.Inventory}, nil }, io.Discard, io.Discard)
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		return c.ExecuteContext(t.Context())
	}
	return state, add, run
}

// The image of a template is kept of which a server was started again so soon that its use was not noted twice.
func TestPruneAfterRestart(t *testing.T) {
	for since, kept := range map[time.Duration]bool{oci.UsedInterval / 2: true, 2 * oci.UsedInterval: false} {
		state, add, run := world(t)
		name := "sandlot/data:" + strings.Repeat("a", 32)
		add(name)
		if _, there, err := state.Store.Get(name); err != nil || !there {
			t.Fatal(err)
		}
		state.Since = time.Now().Add(since)
		if err := run("prune"); err != nil {
			t.Fatal(err)
		}
		if _, there, err := state.Store.Find(name); err != nil || there != kept {
			t.Errorf("by a server that started %s after it was used, it is kept: %t, %v", since, there, err)
		}
	}
}

// To remove an image uses no other one.
func TestRemoveUsesNothing(t *testing.T) {
	state, add, run := world(t)
	added := add("my:1")
	state.Templates["t"] = "my:1"
	if err := os.Remove(strings.TrimSuffix(added.Rootfs, ".erofs") + ".used"); err != nil { // that of its import
		t.Fatal(err)
	}
	if err := run("remove", "my:1"); err == nil || !strings.Contains(err.Error(), "is used by the template t") {
		t.Errorf("%v", err)
	}
	if i, _, err := state.Store.Find("my:1"); err != nil || !i.Used.Equal(i.Created) {
		t.Errorf("it was used at %s, and is of %s; %v", i.Used, i.Created, err)
	}
}

// A name that nothing uses is removed, though the image is used by another name, and is kept for that.
func TestRemoveOneOfTwoNames(t *testing.T) {
	state, add, run := world(t)
	for _, uses := range []func(i oci.Image){
		func(oci.Image) { state.Templates["t"] = "my:1" },
		func(i oci.Image) { state.Templates["t"] = i.Digest },
		func(i oci.Image) { state.Used[i.Digest] = "t" },
		func(i oci.Image) { state.Templates["t"], state.Used[i.Digest] = "my:1", "t" },
	} {
		clear(state.Templates)
		clear(state.Used)
		for _, names := range [][]string{{"a:1", "my:1"}, {"my:1", "z:1"}} {
			var i oci.Image
			for _, name := range names {
				i = add(name)
			}
			uses(i)
			other := names[0]
			if other == "my:1" {
				other = names[1]
			}
			if err := run("remove", i.Digest); err == nil || !strings.Contains(err.Error(), "is used by the template t") {
				t.Errorf("%v by its digest: %v", names, err)
			}
			if err := run("remove", other); err != nil {
				t.Errorf("%s of %v: %v", other, names, err)
			}
			if _, there, err := state.Store.Find("my:1"); err != nil || !there {
				t.Errorf("%v: the other name: %t, %v", names, there, err)
			}
			if err := run("remove", "my:1"); err == nil || !strings.Contains(err.Error(), "is used by the template t") {
				t.Errorf("the last name: %v", err)
			}
		}
	}
	clear(state.Templates)
	clear(state.Used)
	i := add("b:1")
	if err := run("remove", i.Digest); err != nil {
		t.Error(err)
	}
	if all, err := state.Store.List(); err != nil || len(all) != 0 {
		t.Errorf("by its digest: %+v, %v", all, err)
	}
}
