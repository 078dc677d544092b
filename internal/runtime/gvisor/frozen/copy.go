package frozen

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"sandlot/internal/atomicfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
	"sandlot/internal/toolfolder"
)

// Copy makes an image with the files of another one, by other names: it needs no space of its own. The key of a
// sealed image is sealed again, for the new name. Nobody changes a
// file of an image, but for replacing it.
func (s *Store) Copy(name string) (copied sandbox.FrozenImage, err error) {
	defer s.Use(name)()
	s.removing.RLock()
	defer s.removing.RUnlock()
	info, _, err := s.Read(name)
	if err != nil {
		return copied, err
	}
	key, err := s.key(name, info)
	if err != nil {
		return copied, err
	}
	copied = sandbox.FrozenImage{Name: sandbox.CopyPrefix + secret.ID(), Bytes: info.Bytes, Made: info.Made,
		Packed: info.Packed != nil, Unkept: info.Unkept()}
	to := filepath.Join(s.Dir, making+copied.Name)
	entries, err := os.ReadDir(s.path(name))
	err = errors.Join(err, os.Mkdir(to, 0o700))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), keyFile) { // it is sealed for a name
			continue
		}
		link := os.Link
		if e.IsDir() {
			link = toolfolder.Link
		}
		err = errors.Join(err, link(filepath.Join(s.path(name), e.Name()), filepath.Join(to, e.Name())))
	}
	if err == nil && info.Sealed {
		var stored Key
		if stored, err = readKey(s.Dir, name); err == nil {
			err = s.writeKey(to, copied.Name, stored.Bundle, key)
		}
		if err == nil {
			err = atomicfile.Sync(filepath.Join(to, keyFile))
		}
	}
	if err = errors.Join(err, atomicfile.Sync(to)); err != nil {
		return copied, errors.Join(err, os.RemoveAll(to))
	}
	return copied, errors.Join(os.Rename(to, s.path(copied.Name)), atomicfile.Sync(s.Dir))
}
