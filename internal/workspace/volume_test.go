package workspace

import (
	"errors"
	"os"
	"slices"
	"testing"
)

// Who has the files of a workspace is known to the next server, also without the workspace's folder, and after the
// workspace's removal until it is forgotten.
func TestVolume(t *testing.T) {
	s := newStore(t)
	id, plain := fresh(t, s), fresh(t, s)
	want := Volume{Runtime: "r", Address: "here", Keeper: "k", Made: true}
	if v, err := s.Volume(id); v != nil || err != nil {
		t.Errorf("of a new workspace: %v, %v", v, err)
	}
	if err := errors.Join(s.SetVolume(id, Volume{Runtime: "before"}), s.SetVolume(id, want), os.Remove(s.Path(id)),
		s.Remove(plain)); err != nil {
		t.Fatal(err)
	}
	s, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := s.Volume(id); err != nil || v == nil || *v != want {
		t.Errorf("%v, %v, want %v", v, err, want)
	}
	if all, err := s.All(); err != nil || !slices.Equal(all, []string{id}) {
		t.Errorf("All = %v, %v, want %s alone", all, err, id)
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Volume(id); v != nil || err != nil {
		t.Errorf("after the removal: %v, %v", v, err)
	}
	if all, err := s.All(); err != nil || len(all) != 0 {
		t.Errorf("after the removal, All = %v, %v", all, err)
	}
	for range 2 { // the second removal of a workspace changes nothing
		if removed, err := s.Removed(); err != nil || len(removed) != 1 || removed[id] != want {
			t.Errorf("Removed = %v, %v, want %s alone", removed, err, id)
		}
		if err := s.Remove(id); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := s.Forget(id); err != nil {
			t.Error(err)
		}
	}
	if removed, err := s.Removed(); err != nil || len(removed) != 0 {
		t.Errorf("after Forget, Removed = %v, %v", removed, err)
	}
	if err := os.WriteFile(s.volumeFile(id), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Volume(id); err == nil {
		t.Errorf("a damaged file says %v", v)
	}
}
