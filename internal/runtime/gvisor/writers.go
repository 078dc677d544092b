package gvisor

import (
	"slices"
	"strings"
	"sync"

	"sandlot/internal/proc"
	"sandlot/internal/runtime/gvisor/hostfile"
	"sandlot/internal/writes"
)

// maxOverLooks is how many times in a row a sandbox must be found to have written too much into
// a full volume before it is killed. Once is not enough: the kernel reports a write only
// when it has finished, and it may have begun before the volume was full.
const maxOverLooks = 5

// writeWatch is what is known of the sandboxes that write into one full volume. Its mu is
// held during system calls on the volume's disk, which may never return. It is taken before
// the locks of boxes.
type writeWatch struct {
	mu           sync.Mutex
	opened       bool
	watch        *writes.Watch    // nil: the writes cannot be watched
	overLooks    map[string]int   // how many times in a row each sandbox had written too much
	firstWritten map[string]int64 // bytes that each sandbox had written, to all files, when first seen
}

// endWriters kills those writers whose own writes have made the files of a full volume grow
// by more than slack. Without writers it closes the volume's watch.
func (r *Runtime) endWriters(source string, writers []*box) {
	r.watchesMu.Lock()
	w := r.writeWatches[source]
	switch {
	case len(writers) == 0:
		delete(r.writeWatches, source)
	case w == nil:
		w = &writeWatch{overLooks: map[string]int{}, firstWritten: map[string]int64{}}
		r.writeWatches[source] = w
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
		if err != nil || min(grown[id], w.writtenSince(b)) <= slack {
			w.overLooks[id] = 0
			continue
		}
		if w.overLooks[id]++; w.overLooks[id] < maxOverLooks {
			continue
		}
		r.Log.Warn("a sandbox kept writing into a full volume, and was ended", "sandbox", id, "volume", source,
			"megabytes", grown[id]>>20)
		b.kill("volume")
	}
}

// closeWatches closes all watches, except one whose lock is held because its disk does not answer.
func (r *Runtime) closeWatches() {
	r.watchesMu.Lock()
	defer r.watchesMu.Unlock()
	for _, w := range r.writeWatches {
		if w.mu.TryLock() {
			w.close()
			w.mu.Unlock()
		}
	}
	clear(r.writeWatches)
}

// close ends the watch. The caller holds w.mu.
func (w *writeWatch) close() {
	if w.watch != nil {
		w.watch.Close()
		w.watch = nil
	}
}

// writtenSince returns how many bytes the sandbox has written, to all files, since it was first
// seen. The watch does not see that a mapping or a truncation makes a file grow, so a file
// may have grown by more than the sandbox wrote: the rest is not the sandbox's.
func (w *writeWatch) writtenSince(b *box) int64 {
	id := b.spec.ID
	pid, _ := b.process()
	now := proc.BytesWritten(pid) + proc.BytesWritten(b.seal.knownGofer())
	first, seen := w.firstWritten[id]
	if !seen || now < first {
		w.firstWritten[id], first = now, now
	}
	return now - first
}

// ownerOf returns a function that returns the sandbox's id for a process and the id of the
// mount by which it writes into the volume. The function returns "" if that is no writer.
func ownerOf(source string, writers []*box) func(pid int, mount uint64) string {
	type processMount struct {
		pid   int
		mount uint64
	}
	owners := map[processMount]string{}
	for _, b := range writers {
		pid, _ := b.process()
		server, targets := b.seal.knownGofer(), writableTargets(b.spec.Mounts, source)
		for _, m := range proc.Mounts(server) {
			if slices.Contains(targets, strings.TrimPrefix(m.Target, hostfile.GoferRoot)) {
				owners[processMount{pid, m.ID}], owners[processMount{server, m.ID}] = b.spec.ID, b.spec.ID
			}
		}
	}
	return func(pid int, mount uint64) string { return owners[processMount{pid, mount}] }
}
