package frozen

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"sandlot/internal/runtime/gvisor/kept"
)

const (
	// KeptName is the name of each kept file of the machine.
	KeptName = "file"
	// ownersPart: the images of one owner need at most one of so many parts of the store of kept files.
	ownersPart = 4
)

// Keeping keeps files of the machine for one image that is being made. What the images of an owner need, all together,
// is bounded: the owner chooses what is open in their sessions, and the store is for all.
type Keeping struct {
	store  *Store
	owner  string
	mine   map[string]int64 // what it has kept: bytes, by their SHA-256; mu of the store guards it, and own
	own    map[string]int64 // what the owner's images need, with this one and others that are being made
	pruned bool             // it has removed the files of no image to make room
}

// errShare means that the owner of an image has no room for a file, though others may have.
var errShare = errors.New("the sessions and snapshots of its owner need as many as they may")

// StartKeeping begins to keep files for an image of that owner. Done follows.
func (s *Store) StartKeeping(owner string) *Keeping {
	k := &Keeping{store: s, owner: owner, mine: map[string]int64{}, own: map[string]int64{}}
	s.mu.Lock()
	for other := range s.keeping {
		if other.owner == owner {
			maps.Copy(k.own, other.mine)
		}
	}
	s.keeping[k] = true // from now on the others tell it what they keep
	s.mu.Unlock()
	_ = s.eachImage(func(l listed) error { // an image that cannot be read does not wake either
		if l.owner == owner {
			s.mu.Lock()
			defer s.mu.Unlock()
			maps.Copy(k.own, l.files)
		}
		return nil
	})
	return k
}

// Done says that the image is there, or that there will be none.
func (k *Keeping) Done() {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	delete(k.store.keeping, k)
}

// KeepFile keeps the file that a path opens for the image, which is being made, and returns its SHA-256.
func (i *Info) KeepFile(from string) (sum string, err error) { return i.keeping.File(from) }

// File keeps the file that a path opens, and returns its SHA-256.
func (k *Keeping) File(from string) (sum string, err error) {
	sum, err = k.store.Files.KeepIf(from, KeptName, k.admit)
	if errors.Is(err, kept.ErrFull) && !k.pruned {
		k.pruned = true
		k.store.removing.RLock()
		k.store.pruneFiles(true)
		k.store.removing.RUnlock()
		sum, err = k.store.Files.KeepIf(from, KeptName, k.admit)
	}
	return sum, err
}

// admit returns an error if the owner has no room for a file; else the file belongs to the image.
func (k *Keeping) admit(sum string, size int64) error {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if _, known := k.own[sum]; !known {
		total := size
		for _, bytes := range k.own {
			total += bytes
		}
		if most := k.store.Files.Max() / ownersPart; total > most {
			return fmt.Errorf("%w: %d MB", errShare, most>>20)
		}
	}
	k.mine[sum] = size
	for other := range k.store.keeping {
		if other.owner == k.owner {
			other.own[sum] = size
		}
	}
	if k.store.since != nil {
		k.store.since[sum] = true
	}
	return nil
}

// eachImage calls do with what List says of each image, until do returns an error.
func (s *Store) eachImage(do func(listed) error) error {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if err == nil && validName.MatchString(e.Name()) {
			err = do(s.list(e.Name()))
		}
	}
	return err
}

// pruneFiles removes the kept files that no image needs, also none that is being made. Unless it is for room, it does
// nothing soon after the last time. The caller holds removing, or shares it: no image goes meanwhile whose copy is not
// listed yet.
func (s *Store) pruneFiles(room bool) {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	s.mu.Lock()
	due := room || time.Since(s.pruned) > pruneInterval
	if due {
		s.pruned, s.since = time.Now(), map[string]bool{}
		for k := range s.keeping { // before the images are listed, as one that is made is one of both
			for sum := range k.mine {
				s.since[sum] = true
			}
		}
	}
	s.mu.Unlock()
	if !due {
		return
	}
	needed := map[string]bool{}
	err := s.eachImage(func(l listed) error {
		if l.record.IsZero() && !l.broken { // it is not known what it needs
			return errors.New("an image cannot be read now")
		}
		for sum := range l.files {
			needed[sum] = true
		}
		return nil
	})
	if err == nil {
		_ = s.Files.Prune(func(sum string) bool { // what is left, the next time removes
			s.mu.Lock()
			defer s.mu.Unlock()
			return needed[sum] || s.since[sum]
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = nil
}
