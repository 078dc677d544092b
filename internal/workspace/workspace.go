// Package workspace owns the folders with files that outlive a sandbox. It
// never opens or follows anything inside one: what is in there was written by
// hostile code.
package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"sandlot/internal/secret"
)

// Shelf holds all workspaces of one server.
type Shelf struct{ dir string }

// Open returns the shelf in the folder dir, which it makes when needed.
func Open(dir string) (*Shelf, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder for workspaces: %w", err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	return &Shelf{real}, nil
}

var valid = regexp.MustCompile(`^[a-z2-7]{26}$`)

// New makes an empty workspace and returns its id.
func (s *Shelf) New() (string, error) {
	id := secret.ID()
	if err := os.Mkdir(filepath.Join(s.dir, id), 0o700); err != nil {
		return "", fmt.Errorf("making a workspace: %w", err)
	}
	return id, nil
}

// Ensure makes the workspace again if its folder is gone.
func (s *Shelf) Ensure(id string) error {
	err := os.Mkdir(s.Path(id), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Path is the folder on the host.
func (s *Shelf) Path(id string) string {
	if !valid.MatchString(id) {
		panic("workspace: not an id: " + id)
	}
	return filepath.Join(s.dir, id)
}

// Empty says whether there is nothing in it.
func (s *Shelf) Empty(id string) (bool, error) {
	f, err := os.Open(s.Path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// Remove deletes it with all that is in it. One that is not there is fine.
func (s *Shelf) Remove(id string) error {
	err := os.RemoveAll(s.Path(id))
	if errors.Is(err, fs.ErrPermission) { // folders that its own user closed
		open(s.Path(id))
		err = os.RemoveAll(s.Path(id))
	}
	return err
}

// open makes the folders accessible that hostile code may have closed. No link
// is followed.
func open(dir string) {
	os.Chmod(dir, 0o700)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	pending := []string{"."}
	for len(pending) > 0 {
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		root.Chmod(name, 0o700) // what fails shows when it is removed
		f, err := root.Open(name)
		if err != nil {
			continue
		}
		list, _ := f.ReadDir(-1)
		f.Close()
		for _, e := range list {
			if e.IsDir() {
				pending = append(pending, filepath.Join(name, e.Name()))
			}
		}
	}
}

// All lists the ids of all workspaces.
func (s *Shelf) All() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if valid.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
