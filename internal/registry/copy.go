package registry

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandlot/internal/atomicfile"
)

// Bounds of the copy of a registry.
const (
	maxEntries  = 40_000
	maxPages    = 1000
	maxCopy     = 64 << 20        // bytes of the list
	maxRead     = 4 * maxCopy     // bytes of all answers that it is made of
	maxTurn     = 5 * time.Second // how long a request waits for others
	maxReading  = 5 * time.Minute // of the whole registry
	firstWait   = 8 * time.Second // how long the first search waits for the copy
	retryAfter  = time.Minute     // after a reading that failed
	keptDetails = 500             // entries whose details are kept
	pageSize    = "100"
)

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func (r *Registry) listFile() string { return filepath.Join(r.folder, "list.jsonl") }

// readAt returns when the copy was read; zero: there is none.
func (r *Registry) readAt() time.Time {
	st, err := os.Stat(r.listFile())
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// search adds what matches to m. A copy that is too old is used while it is read again.
func (r *Registry) search(ctx context.Context, rs *Registries, m *matches) (s State, err error) {
	s.Name = r.Name
	if r.http == nil {
		return s, r.eachOnDisk(ctx, func(o opened) {
			s.Entries++
			m.add(o.summary(r.Name))
		})
	}
	at := r.readAt()
	if time.Since(at) > r.age {
		reading := r.read(rs)
		if at.IsZero() {
			wait := time.NewTimer(firstWait)
			defer wait.Stop()
			select {
			case <-reading:
			case <-wait.C:
			case <-ctx.Done():
				return s, ctx.Err()
			}
			at = r.readAt()
		}
	}
	if at.IsZero() {
		return r.searchThere(ctx, s, m)
	}
	s.ReadAt = at.UTC().Format(time.RFC3339)
	r.mu.Lock()
	if r.failure != nil {
		s.Note = "its copy is shown, as " + text(r.failure.Error(), 200)
	}
	r.mu.Unlock()
	return s, r.eachInCopy(ctx, func(e Summary) {
		s.Entries++
		m.add(e)
	})
}

// searchThere asks the registry itself, which searches names alone, while there is no copy.
func (r *Registry) searchThere(ctx context.Context, s State, m *matches) (State, error) {
	r.mu.Lock()
	failure := r.failure
	r.mu.Unlock()
	if failure != nil {
		return s, r.unreachable(failure)
	}
	query := url.Values{"version": {"latest"}, "limit": {pageSize}}
	longest := ""
	for _, w := range m.words {
		if len(w) > len(longest) {
			longest = w
		}
	}
	if longest != "" {
		query.Set("search", longest)
	}
	p, err := r.page(ctx, query, maxTurn)
	if err != nil {
		return s, r.unreachable(err)
	}
	for _, raw := range p.Servers {
		if o, err := open(raw); err == nil && o.meta.Status != "deleted" {
			m.add(o.summary(r.Name))
		}
	}
	s.Note = "the registry is being read for the first time, and only names were searched: search again in a minute"
	return s, nil
}

// read begins reading the registry, if nobody does. The channel is closed at its end.
func (r *Registry) read(rs *Registries) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reading != nil {
		return r.reading
	}
	done := make(chan struct{})
	if r.failure != nil && time.Since(r.failed) < retryAfter || rs.ctx.Err() != nil {
		close(done)
		return done
	}
	r.reading = done
	rs.work.Go(func() {
		ctx, cancel := context.WithTimeout(rs.ctx, maxReading)
		defer cancel()
		err := r.copyAll(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reading, r.failure, r.failed = nil, err, time.Now()
		if err != nil && rs.ctx.Err() == nil {
			r.log.Warn("an MCP registry was not read", "registry", r.Name, "error", err)
		}
		close(done)
	})
	return done
}

// turn waits, for at most that long, until fewer requests than the bound are at the registry.
func (r *Registry) turn(ctx context.Context, most time.Duration) (release func(), err error) {
	wait := time.NewTimer(most)
	defer wait.Stop()
	select {
	case r.gets <- struct{}{}:
		return func() { <-r.gets }, nil
	case <-wait.C:
		return nil, errors.New("it has not yet answered others; try again in a minute")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// page reads one page of the list.
func (r *Registry) page(ctx context.Context, query url.Values, most time.Duration) (p page, err error) {
	release, err := r.turn(ctx, most)
	if err != nil {
		return p, err
	}
	defer release()
	data, err := r.get(ctx, "/v0.1/servers", query)
	if err != nil {
		return p, err
	}
	if err = decode(data, &p); err == nil && p.Servers == nil {
		err = errors.New("its answer is no list of servers")
	}
	p.size = len(data)
	return p, err
}

// copyAll reads all pages into a new copy, which replaces the old one when it is complete.
func (r *Registry) copyAll(ctx context.Context) error {
	if err := os.MkdirAll(r.folder, 0o700); err != nil {
		return err
	}
	left, _ := filepath.Glob(filepath.Join(escapeGlob(r.folder), "new-*")) // of a server that was killed; one reads at a time
	for _, file := range left {
		_ = os.Remove(file)
	}
	f, err := os.CreateTemp(r.folder, "new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // once it is renamed, it has another name
	defer f.Close()
	w := &copyWriter{to: bufio.NewWriter(f), names: map[string]bool{}}
	query := url.Values{"version": {"latest"}, "limit": {pageSize}}
	cursors := map[string]bool{}
	for range maxPages {
		p, err := r.page(ctx, query, maxReading)
		if err != nil {
			return err
		}
		if w.answers += p.size; w.answers > maxRead {
			return fmt.Errorf("its list has over %d MiB", maxRead>>20)
		}
		for _, raw := range p.Servers {
			if err := w.add(raw, r.Name); err != nil {
				return err
			}
		}
		next := p.Metadata.NextCursor
		if next == "" {
			return r.replaceCopy(w, f)
		}
		if cursors[next] || len(next) > 1000 {
			return errors.New("its list has no end")
		}
		cursors[next] = true
		query.Set("cursor", next)
	}
	return fmt.Errorf("its list has over %d pages", maxPages)
}

// replaceCopy puts a new copy in place of the old one. An empty one replaces none that has entries.
func (r *Registry) replaceCopy(w *copyWriter, f *os.File) error {
	if old, err := os.Stat(r.listFile()); err == nil && old.Size() > 0 && w.size == 0 {
		return errors.New("its list is empty, and was not before")
	}
	if err := cmp.Or(w.to.Flush(), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), r.listFile())
}

// copyWriter writes the list of a copy.
type copyWriter struct {
	to    *bufio.Writer
	names map[string]bool
	size  int
	// answers is how many bytes were read for it.
	answers int
}

// add writes an entry, if it is one of which others are not the latest.
func (w *copyWriter) add(raw json.RawMessage, registry string) error {
	o, err := open(raw)
	if err != nil || o.meta.Status == "deleted" || o.meta.IsLatest != nil && !*o.meta.IsLatest || w.names[o.Name] {
		return nil // the other entries of a list are not lost with one that nobody can read
	}
	w.names[o.Name] = true
	line, err := json.Marshal(o.summary(registry))
	if err != nil {
		return err
	}
	if w.size += len(line) + 1; w.size > maxCopy || len(w.names) > maxEntries {
		return fmt.Errorf("it has over %d entries, or %d MiB", maxEntries, maxCopy>>20)
	}
	_, err = w.to.Write(append(line, '\n'))
	return err
}

// eachInCopy calls f for each entry of the copy.
func (r *Registry) eachInCopy(ctx context.Context, f func(Summary)) error {
	file, err := os.Open(r.listFile())
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<10)
	for n := 0; lines.Scan(); n++ {
		if n%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		var s Summary
		if json.Unmarshal(lines.Bytes(), &s) == nil && s.Name != "" {
			s.Registry = r.Name
			f(s)
		}
	}
	return lines.Err()
}

// one returns an entry that was read within age, or later if the registry does not answer; an empty version means the
// latest.
func (r *Registry) one(ctx context.Context, name, version string, age time.Duration) (o opened, err error) {
	if r.http == nil {
		return r.oneOnDisk(ctx, name, version)
	}
	if version == "" {
		version = "latest"
	}
	path := "/v0.1/servers/" + url.PathEscape(name) + "/versions/" + url.PathEscape(version)
	file := filepath.Join(r.folder, "entries", digest(path)+".json")
	st, err := os.Stat(file)
	kept := err == nil
	if kept && time.Since(st.ModTime()) < age {
		if o, err := r.opened(file, name, version); err == nil {
			return o, nil
		}
	}
	data, err := r.fetchOne(ctx, path)
	if err == nil {
		if o, err = checked(data, name, version); err == nil {
			r.keep(file, data)
		}
		return o, err
	}
	if kept && !errors.Is(err, errNotThere) && ctx.Err() == nil {
		if o, kerr := r.opened(file, name, version); kerr == nil {
			o.note = fmt.Sprintf("The registry was asked again, and did not answer (%s): this is what it had on %s, and it may "+
				"have withdrawn it.", text(err.Error(), 200), st.ModTime().UTC().Format(time.DateTime))
			return o, nil
		}
	}
	return o, err
}

func (r *Registry) fetchOne(ctx context.Context, path string) ([]byte, error) {
	release, err := r.turn(ctx, maxTurn)
	if err != nil {
		return nil, err
	}
	defer release()
	return r.get(ctx, path, nil)
}

// opened reads an entry that is kept.
func (r *Registry) opened(file, name, version string) (opened, error) {
	data, err := atomicfile.Read(file, maxDocument)
	if err != nil {
		return opened{}, err
	}
	return checked(data, name, version)
}

// checked reads an entry, which must be the one that was asked for.
func checked(data []byte, name, version string) (opened, error) {
	o, err := open(data)
	if err == nil && (o.Name != name || version != "latest" && o.Version != version) {
		err = fmt.Errorf("it answers with another entry than %s %s", name, version)
	}
	return o, err
}

// keep stores an entry, and removes the oldest ones if there are many.
func (r *Registry) keep(file string, data []byte) {
	r.keeping.Lock()
	defer r.keeping.Unlock()
	folder := filepath.Dir(file)
	if os.MkdirAll(folder, 0o700) != nil || atomicfile.Write(file, data) != nil {
		return // it is read again
	}
	all, err := os.ReadDir(folder)
	if err != nil || len(all) <= keptDetails {
		return
	}
	age := map[string]time.Time{}
	for _, e := range all {
		if i, err := e.Info(); err == nil {
			age[e.Name()] = i.ModTime()
		}
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return age[a.Name()].Compare(age[b.Name()]) })
	for _, e := range all[:len(all)-keptDetails] {
		_ = os.Remove(filepath.Join(folder, e.Name()))
	}
}

// Bounds of a copy that the operator made.
const (
	maxDiskFile  = 64 << 20
	maxDiskFiles = 20_000
)

// eachOnDisk calls f for each entry of a copy that the operator made: a file or a folder of files *.json, each with an
// answer of the API, a list of entries, or a server.json.
func (r *Registry) eachOnDisk(ctx context.Context, f func(opened)) error {
	files := []string{r.Path}
	if st, err := os.Stat(r.Path); err == nil && st.IsDir() {
		all, err := filepath.Glob(filepath.Join(escapeGlob(r.Path), "*.json"))
		if err != nil {
			return err
		}
		files = all[:min(len(all), maxDiskFiles)]
	}
	count := 0
	for _, file := range files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		data, err := atomicfile.Read(file, maxDiskFile)
		if err != nil {
			return r.unreachable(err)
		}
		var p page
		var list []json.RawMessage
		switch {
		case decode(data, &p) == nil && p.Servers != nil:
			list = p.Servers
		case decode(data, &list) == nil:
		default:
			list = []json.RawMessage{data}
		}
		for _, raw := range list {
			if o, err := open(raw); err == nil && count < maxEntries {
				count++
				f(o)
			}
		}
	}
	return nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// oneOnDisk returns an entry of a copy that the operator made: that version, or else the one that is said to be the latest,
// or the last one.
func (r *Registry) oneOnDisk(ctx context.Context, name, version string) (found opened, err error) {
	err, there, sure := errNotThere, false, false
	reading := r.eachOnDisk(ctx, func(o opened) {
		switch {
		case o.Name != name || version != "" && version != "latest" && o.Version != version || sure:
			return
		}
		found, there = o, true
		sure = o.meta.IsLatest != nil && *o.meta.IsLatest
	})
	if reading != nil {
		return found, reading
	}
	if there {
		err = nil
	}
	return found, err
}
