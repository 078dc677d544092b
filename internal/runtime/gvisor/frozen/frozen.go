// Package frozen owns the folder of frozen images, and the programs that they need. Images hold the memory of users'
// programs: only the server's user may enter the folder.
package frozen

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"sandlot/internal/atomicfile"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/runtime/gvisor/kept"
	"sandlot/internal/runtime/specfile"
	"sandlot/internal/sandbox"
	"sandlot/internal/secret"
)

// Info is what is stored of an image, beside gVisor's files and the sandbox's bundle.
type Info struct {
	Record specfile.Record `json:"record"` // of the sandbox, without its secret
	// Owner is whose it is. Older versions did not store it.
	Owner  string `json:"owner,omitempty"`
	Rootfs string `json:"rootfs,omitempty"`
	GVisor string `json:"gvisor"` // the version that wrote the image
	// Platform is gVisor's, which the sandbox goes on with.
	Platform string   `json:"platform,omitempty"`
	Runsc    string   `json:"runsc"` // SHA-256
	Agent    string   `json:"agent"` // SHA-256
	Host     []string `json:"host"`  // the kernel and the processors
	// Files are the host's files that the sandbox had open.
	Files []hostfile.Needed `json:"files"`
	Bytes int64             `json:"bytes"` // on the disk
	// InUse are the bytes of memory and of files outside the mounts that the sandbox had. Older versions did not store
	// them.
	InUse int64 `json:"in_use,omitempty"`
	// Tree is how many of Bytes belong to the tool tree, without which the image is complete.
	Tree int64     `json:"tree,omitempty"`
	Made time.Time `json:"made"`
	// Packed are the lengths of gVisor's files, by name, if they are packed; else nil.
	Packed map[string]int64 `json:"packed,omitempty"`
	// Sealed: gVisor's files are sealed, packed or not. Older versions sealed none.
	Sealed bool `json:"sealed,omitempty"`

	// The fields below belong to an image in the making.
	key     []byte // nil: it is not sealed
	keeping *Keeping
}

const (
	infoFile   = "frozen.json"
	bundleFile = "config.json"
	making     = ".making-"
	unpacked   = ".unpacked-"
	// ToolsDir is the folder of an image with the sandbox's tool tree.
	ToolsDir = "tools"
	// maxFiles bounds the files of the machine that are kept, in bytes: a set of programs and libraries for each state
	// of the machine in which sessions sleep.
	maxFiles = 2 << 30
	// pruneInterval is the least time between two looks for kept files that no image needs: all images are read.
	pruneInterval = 10 * time.Minute
	// Reserve is how much of the disk stays free, in bytes.
	Reserve = 64 << 20
)

var validName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// Store is the folder of images.
type Store struct {
	Dir      string
	Programs *kept.Store
	// Files are the machine's files that sandboxes had open, such as programs and libraries. Images share them.
	Files *kept.Store
	// Keys open sealed images, and with Seal, new images are sealed. Both are set before the store is used.
	Keys sandbox.ImageKeys
	Seal bool
	// Memory is a folder in memory for the clear files of sealed images; empty: they are beside the images.
	Memory string

	cleaned sync.Once
	// pruning is held to remove the kept files of no image.
	pruning sync.Mutex
	// removing is held to remove images and programs, and shared to keep programs, and to copy an image.
	removing sync.RWMutex

	mu     sync.Mutex
	inUse  map[string]int     // how many use an image now, by name
	packed map[string]packing // images that are being packed, by name
	needed map[string]int     // how many images that are being made need a program, by its SHA-256
	listed map[string]listed  // what List read of an image, by name
	pruned time.Time          // when the files of no image were removed last
	clear  int64              // bytes of clear files in Memory, at most
	// keeping is what keeps files for images that are being made. Since has the SHA-256 of those that were kept for such
	// since pruneFiles began; nil: it is not under way.
	keeping map[*Keeping]bool
	since   map[string]bool
}

// listed is what an image was when its record was written.
type listed struct {
	record time.Time // zero: the image could not be read
	image  sandbox.FrozenImage
	owner  string
	files  map[string]int64 // the kept files that it needs: bytes, by their SHA-256
	broken bool             // it never wakes, and needs nothing
}

// packing is the work on one image.
type packing struct {
	cancel func()
	done   chan struct{}
}

// New returns the store in a state folder.
func New(stateDir string) *Store {
	s := &Store{Dir: filepath.Join(stateDir, "frozen"), Memory: MemoryDir, Programs: kept.New(filepath.Join(stateDir, "programs")),
		inUse: map[string]int{}, packed: map[string]packing{}, needed: map[string]int{}, listed: map[string]listed{},
		keeping: map[*Keeping]bool{}}
	s.Files = kept.NewBounded(filepath.Join(stateDir, "files"), maxFiles, s.HasRoom)
	return s
}

// Make makes an image of that name: keep keeps the programs that it needs, and write writes gVisor's files into a
// folder, and completes what is stored. Then the image is durable. After an error nothing is left. Removing images
// waits for keep, and not for write, which takes long.
func (s *Store) Make(name string, keep func() (Info, error), write func(dir string, info *Info) (bundle []byte,
	err error)) (info Info, err error) {
	dir := filepath.Join(s.Dir, making+name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return info, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	info, done, err := s.keep(keep)
	if err != nil {
		return info, err
	}
	defer done()
	info.keeping = s.StartKeeping(info.Owner)
	defer info.keeping.Done()
	if s.Seal {
		info.Sealed, info.key = true, secret.Bytes(keySize)
		if _, err := s.sealKey(name, "", info.key); err != nil { // before anything stands still for it
			return info, err
		}
	}
	bundle, err := write(dir, &info)
	if err != nil {
		return info, err
	}
	if err := s.writeKey(dir, name, bundleSum(bundle), info.key); err != nil {
		return info, err
	}
	record, err := json.Marshal(info)
	if err != nil {
		return info, err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, bundleFile), bundle, 0o600),
		os.WriteFile(filepath.Join(dir, infoFile), record, 0o600), syncFiles(dir)); err != nil {
		return info, err
	}
	return info, errors.Join(os.Rename(dir, s.path(name)), atomicfile.Sync(s.Dir))
}

// writeKey writes the key of the image of that name into its folder, sealed; nil: it is not sealed.
func (s *Store) writeKey(dir, name, bundle string, key []byte) error {
	if key == nil {
		return nil
	}
	sealed, err := s.sealKey(name, bundle, key)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, keyFile), sealed, 0o600)
}

func (s *Store) sealKey(name, bundle string, key []byte) ([]byte, error) {
	sealed, err := s.Keys.SealImageKey(name, bundle, key)
	if err != nil {
		err = sandbox.Explain("its memory is sealed, and the server's key of secrets cannot be used", err)
	}
	return sealed, err
}

// keep calls keep. Nobody removes the programs until done is called, when the image that needs them is there.
func (s *Store) keep(keep func() (Info, error)) (info Info, done func(), err error) {
	s.removing.RLock()
	defer s.removing.RUnlock()
	if info, err = keep(); err != nil {
		return info, nil, fmt.Errorf("keeping the programs: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sums := []string{info.Runsc, info.Agent}
	for _, sum := range sums {
		s.needed[sum]++
	}
	return info, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, sum := range sums {
			if s.needed[sum]--; s.needed[sum] == 0 {
				delete(s.needed, sum)
			}
		}
	}, nil
}

// Unkept returns the files of the machine that the sandbox had open, by their paths there, and that have no copy.
func (i *Info) Unkept() (paths []string) {
	for _, f := range i.Files {
		if f.IsRegular() && f.Sum == "" && f.Target != "" {
			paths = append(paths, f.Target)
		}
	}
	slices.Sort(paths)
	return paths
}

// syncFiles makes the files of a folder durable, and nobody else's.
func syncFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() { // the tool tree can be made again
			continue
		}
		path := filepath.Join(dir, e.Name())
		err = errors.Join(err, os.Chmod(path, 0o600), atomicfile.Sync(path))
	}
	return errors.Join(err, atomicfile.Sync(dir))
}

func (s *Store) path(name string) string { return filepath.Join(s.Dir, name) }

// Tools returns the folder of an image with the tool tree, which may not exist.
func (s *Store) Tools(name string) string { return filepath.Join(s.path(name), ToolsDir) }

// Read reads what is stored of an image.
func (s *Store) Read(name string) (info Info, bundle *specs.Spec, err error) {
	if !validName.MatchString(name) {
		return info, nil, fmt.Errorf("gvisor: %q is not an image", name)
	}
	text, err := os.ReadFile(filepath.Join(s.path(name), infoFile))
	if errors.Is(err, fs.ErrNotExist) {
		return info, nil, sandbox.Explain("its image is gone", err)
	}
	if err == nil {
		err = broken(json.Unmarshal(text, &info))
	}
	if err == nil {
		text, err = os.ReadFile(filepath.Join(s.path(name), bundleFile))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = sandbox.Explain("its image is incomplete", err)
	}
	if err == nil {
		err = broken(json.Unmarshal(text, &bundle))
	}
	if err == nil && (bundle == nil || bundle.Root == nil || bundle.Linux == nil) {
		err = broken(errors.New("its bundle has no root"))
	}
	if err != nil {
		return info, bundle, err
	}
	size, err := diskBytes(s.path(name))
	switch {
	case atomicfile.IsPassing(err):
		return info, bundle, err
	case err != nil || size < info.Bytes-info.Tree:
		return info, bundle, sandbox.Explain("its image is incomplete", err)
	}
	return info, bundle, nil
}

// broken says of an error that what was read is not what was written.
func broken(err error) error {
	if err == nil {
		return nil
	}
	return sandbox.Explain("its image is broken", err)
}

// List lists the images, the oldest first. The first call removes what an earlier server did not finish.
func (s *Store) List() (all []sandbox.FrozenImage, err error) {
	first := false
	s.cleaned.Do(func() {
		first = true
		for _, prefix := range []string{making, unpacked} {
			unfinished, _ := filepath.Glob(filepath.Join(s.Dir, prefix+"*"))
			for _, dir := range unfinished {
				os.RemoveAll(dir)
			}
		}
		s.removeClear()
	})
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	now := map[string]listed{}
	for _, e := range entries {
		if !validName.MatchString(e.Name()) {
			continue
		}
		if first {
			s.removeTwins(e.Name())
		}
		now[e.Name()] = s.list(e.Name())
		all = append(all, now[e.Name()].image)
	}
	s.mu.Lock()
	s.listed = now
	s.mu.Unlock()
	s.removing.RLock()
	s.pruneFiles(false)
	s.removing.RUnlock()
	slices.SortFunc(all, func(x, y sandbox.FrozenImage) int {
		return cmp.Or(x.Made.Compare(y.Made), strings.Compare(x.Name, y.Name))
	})
	return all, nil
}

// list returns what List says of an image. There may be thousands, so each is read once for each record of it.
func (s *Store) list(name string) listed {
	s.mu.Lock()
	known := s.listed[name]
	s.mu.Unlock()
	unread := func(err error) listed {
		passing := atomicfile.IsPassing(err)
		if passing && !known.record.IsZero() {
			return known
		}
		return listed{image: sandbox.FrozenImage{Name: name}, broken: !passing} // Wake says what is wrong
	}
	record, err := os.Stat(filepath.Join(s.path(name), infoFile))
	if err != nil {
		return unread(err)
	}
	if known.record.Equal(record.ModTime()) {
		return known
	}
	info, _, err := s.Read(name)
	if err != nil {
		return unread(err)
	}
	l := listed{record: record.ModTime(), image: sandbox.FrozenImage{Name: name, Bytes: info.Bytes, Made: info.Made,
		Packed: info.Packed != nil, Unkept: info.Unkept()}, owner: info.Owner, files: map[string]int64{}}
	for _, f := range info.Files {
		if f.Sum != "" {
			l.files[f.Sum] = int64(f.Size)
		}
	}
	return l
}

// Remove removes an image, if there is one, and the programs that no image needs any more, but not those with these
// SHA-256.
func (s *Store) Remove(name string, needed func() (map[string]bool, error)) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("gvisor: %q is not an image", name)
	}
	defer s.Use(name)()
	s.removing.Lock()
	defer s.removing.Unlock()
	if err := os.RemoveAll(s.path(name)); err != nil {
		return err
	}
	sums, err := needed()
	if err != nil {
		return err
	}
	s.mu.Lock() // before the images are listed, as one that is made is one of both
	beingMade := maps.Clone(s.needed)
	s.mu.Unlock()
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The images are read only if a program might have to go: there may be thousands.
	ofImages := sync.OnceValues(func() (map[string]bool, error) {
		found := map[string]bool{}
		for _, e := range entries {
			info, _, err := s.Read(e.Name())
			if atomicfile.IsPassing(err) {
				return nil, err
			}
			if err == nil {
				found[info.Runsc], found[info.Agent] = true, true
			}
		}
		return found, nil
	})
	s.pruneFiles(false)
	return s.Programs.Prune(func(sum string) bool {
		if sums[sum] || beingMade[sum] > 0 {
			return true
		}
		found, err := ofImages()
		return err != nil || found[sum] // what an image needs that cannot be read now is not known
	})
}

// Roots returns the images that are the root file systems of frozen sandboxes. It fails if one of those cannot be read now.
func (s *Store) Roots() (map[string]bool, error) {
	roots := map[string]bool{}
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		info, _, err := s.Read(e.Name())
		if atomicfile.IsPassing(err) { // it may need any of them
			return nil, err
		}
		if err == nil {
			roots[info.Rootfs] = true
		}
	}
	return roots, nil
}

// Unpacked calls do with a folder in which gVisor's files of an image are, as gVisor wrote them. Nobody packs or removes
// the image meanwhile.
func (s *Store) Unpacked(ctx context.Context, name string, info Info, do func(dir string) error) error {
	if info.Packed == nil && !info.Sealed {
		return do(s.path(name))
	}
	return s.open(ctx, name, info, do)
}

// Use keeps an image from being packed until the function that it returns is called. It ends packing that has begun.
func (s *Store) Use(name string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse[name]++
	for p, found := s.packed[name]; found; p, found = s.packed[name] {
		p.cancel()
		s.mu.Unlock()
		<-p.done
		s.mu.Lock()
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.inUse[name]--; s.inUse[name] == 0 {
			delete(s.inUse, name)
		}
	}
}

// Pack packs an image, until ctx ends or somebody uses it. After an error it is as before.
func (s *Store) Pack(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if _, begun := s.packed[name]; begun || s.inUse[name] > 0 {
		s.mu.Unlock()
		return fmt.Errorf("%w: the image is in use", sandbox.ErrLater)
	}
	p := packing{cancel, make(chan struct{})}
	s.packed[name] = p
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.packed, name)
		close(p.done)
	}()
	info, _, err := s.Read(name)
	if err != nil || info.Packed != nil {
		return err
	}
	if err := s.HasRoom(info.Bytes); err != nil {
		return err
	}
	return s.packFiles(ctx, s.path(name), info)
}

// packFiles writes packed files beside the others, then says so in what is stored, and then removes the others: a crash
// leaves an image that can be used.
func (s *Store) packFiles(ctx context.Context, dir string, info Info) (err error) {
	key, err := s.key(filepath.Base(dir), info)
	if err != nil {
		return err
	}
	names, err := s.files(filepath.Base(dir))
	if err != nil {
		return err
	}
	info.Packed, info.Bytes = map[string]int64{}, info.Tree
	defer func() {
		remove := "" // what is not needed any more
		if err != nil {
			remove = packedSuffix
		} else if atomicfile.Sync(dir) != nil {
			return // the next server may read the file of before
		}
		for name := range info.Packed {
			os.Remove(filepath.Join(dir, name+remove))
		}
	}()
	for _, name := range names {
		path := filepath.Join(dir, name)
		os.Remove(path + packedSuffix)
		if strings.HasSuffix(name, packedSuffix) {
			continue // a crash has left it
		}
		st, err := os.Stat(path)
		if err != nil {
			return err
		}
		if err := pack(ctx, path, path+packedSuffix, key); err != nil {
			return err
		}
		if info.Packed[name] = st.Size(); info.Sealed {
			info.Packed[name] = clearSize(st.Size())
		}
		var packed unix.Stat_t
		if err := unix.Stat(path+packedSuffix, &packed); err != nil {
			return err
		}
		info.Bytes += packed.Blocks * 512
	}
	text, err := json.Marshal(info)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	err = atomicfile.WriteThrough(filepath.Join(dir, infoFile), text)
	if now, _, readErr := s.Read(filepath.Base(dir)); readErr == nil && now.Packed != nil {
		return nil // though it may not be durable: then the next server has both forms
	}
	return err
}

// removeTwins removes the form of an image's files that is not used, which a crash of packFiles has left.
func (s *Store) removeTwins(name string) {
	info, _, err := s.Read(name)
	if err != nil {
		return
	}
	packed, _ := filepath.Glob(filepath.Join(s.path(name), "*"+packedSuffix))
	for _, path := range packed {
		if info.Packed == nil {
			os.Remove(path)
			continue
		}
		plain := strings.TrimSuffix(path, packedSuffix)
		if _, both := info.Packed[filepath.Base(plain)]; both {
			os.Remove(plain)
		}
	}
}

// HasRoom returns an error if the disk of the images has no room for so many bytes.
func (s *Store) HasRoom(need int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(s.Dir, &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < need+Reserve {
		return &sandbox.Explained{Limit: true, Cause: unix.ENOSPC, Words: fmt.Sprintf("the server's disk has %d MB "+
			"left, and it needs %d MB", free>>20, (need+Reserve)>>20)}
	}
	return nil
}

// Measure notes how much of the disk the files of an image take that are in a folder.
func (i *Info) Measure(dir string) (err error) {
	i.Bytes, err = diskBytes(dir)
	i.Tree = 0
	walkErr := filepath.WalkDir(filepath.Join(dir, ToolsDir), func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && !d.IsDir() && unix.Lstat(path, &st) == nil {
			i.Tree += st.Blocks * 512
		}
		return err
	})
	if errors.Is(walkErr, fs.ErrNotExist) {
		walkErr = nil
	}
	i.Bytes += i.Tree
	return errors.Join(err, walkErr)
}

// diskBytes returns how much of the disk the files of an image take, without the tool tree's: of thousands of
// images, that would be millions of files.
func diskBytes(dir string) (total int64, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		var st unix.Stat_t
		switch lerr := unix.Lstat(filepath.Join(dir, e.Name()), &st); {
		case lerr == nil:
			total += st.Blocks * 512
		case lerr != unix.ENOENT: // else it was packed meanwhile
			err = errors.Join(err, lerr)
		}
	}
	return total, err
}
