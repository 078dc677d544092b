// Package oci owns the image store: the folder with the container images of this machine. What is in the store
// under a digest has that digest, and an image that the store lists is complete: its documents, and one file with
// its root file system.
//
// The folder is an OCI image layout (blobs/sha256, index.json), and beside it
//
//	rootfs/DIGEST.erofs   the root file system of the image with that manifest, merged from its layers
//	rootfs/DIGEST.used    an empty file whose time is when the image was last asked for
//	partial/              what is being written: the next download goes on with it
//
// Several processes may use one store. Each file of partial/ is locked (flock) by who writes it, and becomes part
// of the store by a rename. The file lock orders the changes of index.json. The file users is locked by all that
// add images, shared, and by who removes blobs, exclusively.
//
// Registries, archives and images are hostile: every document and number is bounded, every blob is compared with
// its digest, and no file of an image is ever made on this machine.
package oci

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"sandlot/internal/atomicfile"
	"sandlot/internal/fault"
)

// Bounds of what an image may be.
const (
	maxDocument   = 4 << 20 // bytes of a manifest, a config or an index, as registries bound them
	maxLayers     = 256
	maxPlatforms  = 1024      // entries of an index
	maxNesting    = 3         // indexes that lead to indexes
	maxCompressed = 128 << 30 // bytes of all layers as they are transferred
)

// Image is an image of the store.
type Image struct {
	// Name is what the image is called, as Docker shows it: python:3.12-slim. It is empty when another image has
	// got the name since.
	Name     string `json:"name"`
	Digest   string `json:"digest"`   // of the manifest of this platform
	Platform string `json:"platform"` // such as linux/amd64
	Rootfs   string `json:"rootfs"`   // path of the EROFS file with the root file system
	Size     int64  `json:"size"`     // bytes of that file
	Config   Config `json:"config"`
	// Created is when the image was added to the store, Used when Get last returned it.
	Created time.Time `json:"created"`
	Used    time.Time `json:"used"`
}

// Config is what an image says about the programs that run in it.
type Config struct {
	User       string   `json:"user"`
	Workdir    string   `json:"workdir"`
	Env        []string `json:"env"`
	Entrypoint []string `json:"entrypoint"`
	Cmd        []string `json:"cmd"`
}

// Options are options of Pull and Import.
type Options struct {
	Platform string         // such as linux/arm64; default: linux and this machine's architecture
	Progress func(Progress) // is called by one goroutine at a time, and must not block
}

// Progress says how far one layer is.
type Progress struct {
	Layer       string // its digest
	Stage       Stage
	Done, Total int64 // bytes of the layer as it is transferred
}

// Stage is what happens to a layer.
type Stage string

// The stages of a layer, in their order.
const (
	Waiting Stage = "waiting"
	Loading Stage = "loading" // it is downloaded or copied, and unpacked at the same time
	Loaded  Stage = "loaded"
	Present Stage = "present" // the store has had it already
)

// Store is an image store.
type Store struct {
	dir   string
	log   *slog.Logger
	slots chan struct{} // one for each blob that is being transferred
	retry retryPolicy
}

// parallelTransfers is how many blobs are transferred at once.
const parallelTransfers = 4

// Open returns the store in a folder, which is made when the first image is added. Open does no I/O.
func Open(dir string, log *slog.Logger) *Store {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return &Store{dir: dir, log: log, slots: make(chan struct{}, parallelTransfers), retry: defaultRetry}
}

func (s *Store) blobs() string                  { return filepath.Join(s.dir, "blobs", "sha256") }
func (s *Store) blobPath(h v1.Hash) string      { return filepath.Join(s.blobs(), h.Hex) }
func (s *Store) rootfsPath(h v1.Hash) string    { return filepath.Join(s.dir, "rootfs", h.Hex+".erofs") }
func (s *Store) usedPath(h v1.Hash) string      { return filepath.Join(s.dir, "rootfs", h.Hex+".used") }
func (s *Store) partial() string                { return filepath.Join(s.dir, "partial") }
func (s *Store) partialPath(name string) string { return filepath.Join(s.partial(), name) }

// makeFolders makes the folders of the store.
func (s *Store) makeFolders() error {
	for _, dir := range []string{s.blobs(), filepath.Join(s.dir, "rootfs"), s.partial()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return s.diskError(err)
		}
	}
	return nil
}

// Transfer sums up the progress of all layers of an image. The zero value is one that has not begun.
type Transfer struct{ layers map[string]Progress }

// Add takes the progress of one layer.
func (t *Transfer) Add(p Progress) {
	if t.layers == nil {
		t.layers = map[string]Progress{}
	}
	t.layers[p.Layer] = p
}

// Bytes returns how much of the layers is here, and how much they have, as far as that is known.
func (t *Transfer) Bytes() (done, total int64) {
	for _, l := range t.layers {
		size := max(l.Total, l.Done)
		if total += size; l.Stage == Loaded || l.Stage == Present {
			done += size
		} else {
			done += l.Done
		}
	}
	return done, total
}

// progress calls an Options.Progress from several goroutines, one at a time.
type progress struct {
	mu   sync.Mutex
	call func(Progress)
	last map[string]report
}

// A report is the last one of a layer.
type report struct {
	stage Stage
	at    time.Time
}

func newProgress(call func(Progress)) *progress {
	return &progress{call: call, last: map[string]report{}}
}

// progressInterval is how often the progress of a layer in one stage is told.
const progressInterval = 100 * time.Millisecond

func (r *progress) tell(one Progress) {
	if r.call == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.last[one.Layer]
	if one.Stage == Loading && before.stage == Loading && time.Since(before.at) < progressInterval {
		return
	}
	r.last[one.Layer] = report{one.Stage, time.Now()}
	r.call(one)
}

// unreadable gives an error of reading the store that passes its kind.
func (s *Store) unreadable(err error) error {
	return fault.Wrap(fault.Configuration, err, "the image store %s cannot be read at the moment: %v. Nothing of it is "+
		"lost: try again", s.dir, err)
}

// diskError gives an error of writing into the store, which may be nil, its kind.
func (s *Store) diskError(err error) error {
	if err == nil {
		return nil
	}
	if f := fault.From(err); f.Kind != fault.Internal {
		return err
	}
	if atomicfile.IsDiskFull(err) {
		return fault.Wrap(fault.ResourceLimit, err, "the disk with the image store %s is full. Make room (`sandlot "+
			"image prune`, `sandlot image remove NAME`) and try again: what has been downloaded is kept", s.dir)
	}
	return fault.Wrap(fault.Configuration, err, "the image store %s cannot be written: %v", s.dir, err)
}
