package gvisor

import (
	"slices"
	"strings"
	"sync"

	"sandlot/internal/proc"
	"sandlot/internal/writes"
)

// mostLooks is in how many looks after each other a sandbox has to have written too much
// into a full volume before it ends: the kernel reports a write when it is finished.
const mostLooks = 5

// writeWatch is what is known of the sandboxes that write into one full volume. Its lock
// is held while the disk is asked, which may not answer; it comes before those of boxes.
type writeWatch struct {
	mu     sync.Mutex
	opened bool
	watch  *writes.Watch    // nil: the kernel does not tell
	looks  map[string]int   // by sandbox
	wrote  map[string]int64 // bytes that each had written to all files when it was first seen
}

// endWriters ends those of the writers whose own writes have made the files of a full
// volume grow by more than the slack. Without writers it closes the volume's watch.
func (r *Runtime) endWriters(source string, writers []*box) {
	r.watchesMu.Lock()
	w := r.watches[source]
	switch {
	case len(writers) == 0:
		delete(r.watches, source)
	case w == nil:
		w = &writeWatch{looks: map[string]int{}, wrote: map[string]int64{}}
		r.watches[source] = w
	}
	r.watchesMu.Unlock()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(writers) == 0 {
		w.close()
		return
	}
	if !w.opened {
		w.opened = true
		watch, err := writes.Open(source)
		if err == nil {
			w.watch = watch
		} else if !r.Rootless {
			r.Log.Warn("a sandbox has a file of a full volume open for writing, and whether it writes cannot be told",
				"volume", source, "error", err)
		}
	}
	if w.watch == nil {
		return
	}
	owner := ownerOf(source, writers)
	if err := w.watch.Read(owner); err != nil {
		return
	}
	grown, err := w.watch.Grown(owner)
	for _, b := range writers {
		id := b.spec.ID
		if err != nil || min(grown[id], w.written(b)) <= slack {
			w.looks[id] = 0
			continue
		}
		if w.looks[id]++; w.looks[id] < mostLooks {
			continue
		}
		r.Log.Warn("a sandbox goes on writing into a volume that is full, and ends", "sandbox", id, "volume", source,
			"megabytes", grown[id]>>20)
		b.kill("volume")
	}
}

// closeWatches closes all watches, except one that waits for a disk that does not answer.
func (r *Runtime) closeWatches() {
	r.watchesMu.Lock()
	defer r.watchesMu.Unlock()
	for _, w := range r.watches {
		if w.mu.TryLock() {
			w.close()
			w.mu.Unlock()
		}
	}
	clear(r.watches)
}

// close ends the watch. The lock is held.
func (w *writeWatch) close() {
	if w.watch != nil {
		w.watch.Close()
		w.watch = nil
	}
}

// written is how many bytes the sandbox has written, to all files, since it was first
// seen. A file also grows by mappings of it and by truncation, which the watch is not
// told: growth beyond the sandbox's own writes is somebody else's.
func (w *writeWatch) written(b *box) int64 {
	id := b.spec.ID
	pid, _ := b.process()
	now := proc.Written(pid) + proc.Written(b.seal.serverPID())
	first, seen := w.wrote[id]
	if !seen || now < first {
		w.wrote[id], first = now, now
	}
	return now - first
}

// ownerOf returns a function that names the sandbox of a process which writes into a
// volume by a mount with that id.
func ownerOf(source string, writers []*box) func(pid int, mount uint64) string {
	type mounted struct {
		pid   int
		mount uint64
	}
	owners := map[mounted]string{}
	for _, b := range writers {
		pid, _ := b.process()
		server, targets := b.seal.serverPID(), writableAt(b.spec.Mounts, source)
		for _, m := range proc.Mounts(server) {
			if slices.Contains(targets, strings.TrimPrefix(m.Target, goferRoot)) {
				owners[mounted{pid, m.ID}], owners[mounted{server, m.ID}] = b.spec.ID, b.spec.ID
			}
		}
	}
	return func(pid int, mount uint64) string { return owners[mounted{pid, mount}] }
}
