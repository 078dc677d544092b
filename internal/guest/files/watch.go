package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"sandlot/proto/agentv1"
)

const (
	// maxWait is the longest time that a request waits for a change.
	maxWait = 30 * time.Second
	// lookEvery is how often a folder is read whose changes the kernel does not tell; toldEvery if it does. It may leave
	// some out: what is changed from outside of the sandbox, and what is in folders that nobody watches.
	lookEvery, toldEvery = time.Second, 5 * time.Second
	// maxWatched is how many folders the kernel watches for one request.
	maxWatched = 64
	// together is the time in which changes are told as one.
	together = 50 * time.Millisecond
)

// digest returns another value when the list says something else.
func (l *listing) digest() []byte {
	h := sha256.New()
	for _, f := range l.files {
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(f) // every name in it is UTF-8
		fmt.Fprintf(h, "%d ", len(b))
		h.Write(b)
	}
	fmt.Fprint(h, l.truncated)
	return h.Sum(nil)[:12]
}

// awaitChange waits until a list has another digest than the one that the host knows.
func (f *Files) awaitChange(ctx context.Context, r *agentv1.ListFilesRequest) (*agentv1.ListFilesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, min(time.Duration(min(r.WaitMillis, 1<<20))*time.Millisecond, maxWait))
	defer cancel()
	n := f.notices(ctx, r.Path)
	defer n.close()
	for {
		began := time.Now()
		answer, err := f.list(context.WithoutCancel(ctx), r)
		if err != nil || !bytes.Equal(answer.Digest, r.Known) {
			return answer, err
		}
		n.watch(answer.Files)
		if n.wait(ctx, 20*time.Since(began)); ctx.Err() != nil {
			answer.Files = nil
			return answer, nil
		}
	}
}

// notices is what the kernel tells of changes in folders.
type notices struct {
	files   *Files
	folder  string   // as requested
	from    *os.File // nil: the kernel tells nothing
	fd      int
	stop    func() bool
	watched map[string]bool
}

func (f *Files) notices(ctx context.Context, folder string) *notices {
	n := &notices{files: f, folder: folder, stop: func() bool { return true }, watched: map[string]bool{}}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return n
	}
	n.from, n.fd = os.NewFile(uintptr(fd), "inotify"), fd
	if n.from.SetReadDeadline(time.Time{}) != nil { // else a read could last for ever
		n.close()
		return n
	}
	n.stop = context.AfterFunc(ctx, func() { _ = n.from.SetReadDeadline(time.Unix(1, 0)) })
	n.watch(nil)
	return n
}

func (n *notices) close() {
	n.stop()
	if n.from != nil {
		n.from.Close()
		n.from = nil
	}
}

// watch watches the folder and those that its list names.
func (n *notices) watch(list []*agentv1.FileInfo) {
	if n.from == nil {
		return
	}
	_ = n.files.withPath(n.folder, true, func(p *Path) error {
		n.add(p, ".")
		for _, f := range list {
			if f.Type == "directory" {
				n.add(p, f.Path)
			}
		}
		return nil
	})
}

func (n *notices) add(p *Path, name string) {
	if n.watched[name] || len(n.watched) >= maxWatched {
		return
	}
	d, err := p.root.Open(path.Join(p.name, name))
	if err != nil {
		return
	}
	defer d.Close()
	const all = unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MODIFY |
		unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(n.fd, fmt.Sprintf("/proc/self/fd/%d", d.Fd()), all); err == nil {
		n.watched[name] = true
	}
}

// wait waits for a change, and for that long at least.
func (n *notices) wait(ctx context.Context, least time.Duration) {
	until := time.Now().Add(max(least, lookEvery))
	if n.from != nil && len(n.watched) > 0 {
		until = time.Now().Add(max(least, toldEvery))
		if n.heard(ctx, until) {
			pause(ctx, max(least, together))
			return
		}
	}
	pause(ctx, time.Until(until))
}

// heard waits until the kernel tells of a change, and reads all that it tells.
func (n *notices) heard(ctx context.Context, until time.Time) bool {
	if ctx.Err() != nil || n.from.SetReadDeadline(until) != nil {
		return false
	}
	if ctx.Err() != nil { // its end may have come before this deadline
		return false
	}
	b := make([]byte, 16<<10)
	if _, err := n.from.Read(b); err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			n.close()
		}
		return false
	}
	return true
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
