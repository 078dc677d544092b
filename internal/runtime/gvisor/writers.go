package gvisor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sandlot/internal/proc"
	"sandlot/internal/writes"
)

// sure is in how many looks after each other a sandbox has to have written too much
// into a full volume before it ends: a write that is on its way is told when it is
// done.
const sure = 5

// blamed is what is known of those who write into a full volume.
type blamed struct {
	mu    sync.Mutex    // held while the disk is asked, which may not answer
	watch *writes.Watch // nil: the kernel does not tell
	looks map[string]int
	wrote map[string]int64 // what each had written to whatever when it was first seen
}

// blame ends those of the writers whose own writes have made files of a full volume
// grow by more than the slack. Without writers it forgets what it knows.
func (r *Runtime) blame(source string, writers []*box) {
	r.blaming.Lock()
	w := r.blamed[source]
	begins := w == nil && len(writers) > 0
	if begins {
		w = &blamed{looks: map[string]int{}, wrote: map[string]int64{}}
		if r.blamed == nil {
			r.blamed = map[string]*blamed{}
		}
		r.blamed[source] = w
	} else if len(writers) == 0 {
		delete(r.blamed, source)
	}
	r.blaming.Unlock()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(writers) == 0 {
		w.close()
		return
	}
	if begins {
		watch, err := writes.Open(source)
		if err == nil {
			w.watch = watch
		} else if !r.Rootless {
			r.Log.Warn("a sandbox has a file of a full volume open for writing, and whether it writes cannot be told", "volume", source, "error", err)
		}
	}
	if w.watch == nil {
		return
	}
	who := whoOf(source, writers)
	if err := w.watch.Read(who); err != nil {
		return
	}
	grown, err := w.watch.Grown(who)
	for _, b := range writers {
		id, _ := b.identity()
		if err != nil || min(grown[id], w.written(b)) <= slack {
			w.looks[id] = 0
			continue
		}
		if w.looks[id]++; w.looks[id] < sure {
			continue
		}
		r.Log.Warn("a sandbox goes on writing into a volume that is full, and ends", "sandbox", id, "volume", source, "megabytes", grown[id]>>20)
		b.kill("volume")
	}
}

// blameNobody ends all watches, but for one that waits for a disk that does not answer.
func (r *Runtime) blameNobody() {
	r.blaming.Lock()
	defer r.blaming.Unlock()
	for _, w := range r.blamed {
		if w.mu.TryLock() {
			w.close()
			w.mu.Unlock()
		}
	}
	clear(r.blamed)
}

// close ends the watch. The lock is held.
func (w *blamed) close() {
	if w.watch != nil {
		w.watch.Close()
		w.watch = nil
	}
}

// written is how many bytes the sandbox has written, to whatever, since it was first
// seen. A file also grows by mappings of it and by truncation, of which the watch hears
// nothing: what somebody else has made of it that way is not the sandbox's.
func (w *blamed) written(b *box) int64 {
	b.mu.Lock()
	id, pid := b.spec.ID, b.pid
	b.mu.Unlock()
	b.seal.mu.Lock()
	server := b.seal.server
	b.seal.mu.Unlock()
	now := proc.Written(pid) + proc.Written(server)
	first, seen := w.wrote[id]
	if !seen || now < first {
		w.wrote[id], first = now, now
	}
	return now - first
}

// whoOf names the sandbox of a process that writes into a volume, by the mounts that
// the sandbox has of it.
func whoOf(source string, writers []*box) func(pid int, mount uint64) string {
	type mounted struct {
		pid   int
		mount uint64
	}
	all := map[mounted]string{}
	for _, b := range writers {
		b.mu.Lock()
		id, pid, targets := b.spec.ID, b.pid, writableAt(b.spec.Mounts, source)
		b.mu.Unlock()
		b.seal.mu.Lock()
		server := b.seal.server
		b.seal.mu.Unlock()
		for _, m := range mountsAt(server, targets) {
			all[mounted{pid, m}], all[mounted{server, m}] = id, id
		}
	}
	return func(pid int, mount uint64) string { return all[mounted{pid, mount}] }
}

// mountsAt are the ids of a file server's mounts at those places.
func mountsAt(server int, targets []string) (ids []uint64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", server))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := strings.TrimPrefix(strings.ReplaceAll(f[4], `\040`, " "), goferRoot)
		if id, err := strconv.ParseUint(f[0], 10, 64); err == nil && slices.Contains(targets, at) {
			ids = append(ids, id)
		}
	}
	return ids
}
