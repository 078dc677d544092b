package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Volume says who has the files of a workspace that are not in its folder. It is in a file beside the folder, which no
// sandbox sees.
type Volume struct {
	Runtime string `json:"runtime"` // its name
	Address string `json:"address"` // where the runtime has the volume
	Keeper  string `json:"keeper"`  // what is at the address says that it is this one
	// Made: the volume was made, and may have files. Else it may be missing.
	Made bool `json:"made"`
}

// IsAt reports whether a volume is where a runtime has its volumes. Whoever has come to an address has taken the place
// of who was there.
func (v *Volume) IsAt(address, keeper string) bool { return v.Address == address || v.Keeper == keeper }

const (
	volumeSuffix  = ".volume"
	removedSuffix = ".removed-volume" // of the file of a workspace that was removed
)

func (s *Store) volumeFile(id string) string { return s.Path(id) + volumeSuffix }

func (s *Store) removedFile(id string) string { return s.Path(id) + removedSuffix }

// Volume returns what SetVolume has stored of a workspace, or nil.
func (s *Store) Volume(id string) (*Volume, error) { return readVolume(s.volumeFile(id)) }

func readVolume(path string) (*Volume, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	v := new(Volume)
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return nil, fmt.Errorf("reading which runtime has a workspace's files, in %s: %w", path, err)
	}
	return v, nil
}

// SetVolume stores who has the files of a workspace.
func (s *Store) SetVolume(id string, v Volume) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := s.volumeFile(id)
	if err = writeSynced(path+".new", text); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("storing which runtime has a workspace's files: %w", err)
	}
	return nil
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// Removed returns the volumes of workspaces that were removed, by the workspaces' ids, until Forget.
func (s *Store) Removed() (map[string]Volume, error) {
	ids, err := s.list(removedSuffix)
	volumes := map[string]Volume{}
	for _, id := range ids {
		v, readErr := readVolume(s.removedFile(id))
		if v != nil {
			volumes[id] = *v
		}
		err = errors.Join(err, readErr)
	}
	return volumes, err
}

// Forget is called when the volume of a removed workspace is gone.
func (s *Store) Forget(id string) error {
	err := os.Remove(s.removedFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
