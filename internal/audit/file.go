package audit

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// File gets stored events as lines of JSON. When it is full, it is renamed to the same name with
// .1 at its end, and the earlier files to .2 and so on. It gets events that it has missed, because
// the server ended or its disk was full, from the store.
type File struct {
	path     string
	maxBytes int64
	files    int // how many renamed files are kept
	log      *slog.Logger

	out     *os.File // nil: it is not open
	size    int64
	lastID  uint64 // of the newest event that was written
	current bool   // all events up to the latest were written
	failing bool
}

// NewFile returns a file that is renamed when it has maxBytes bytes.
func NewFile(path string, maxBytes int64, files int, log *slog.Logger) *File {
	return &File{path: path, maxBytes: maxBytes, files: files, log: log}
}

// add writes rows that were stored. An error is logged once, until rows can be written again.
func (f *File) add(ctx context.Context, s Store, rows []Row) {
	err := f.write(ctx, s, rows)
	switch {
	case err != nil && !f.failing:
		f.log.Error("events cannot be written to the file; it gets them later, from the store", "error", err)
	case err == nil && f.failing:
		f.log.Info("events are written to the file again", "file", f.path)
	}
	if f.failing = err != nil; f.failing {
		f.current = false
		f.close()
	}
}

func (f *File) write(ctx context.Context, s Store, rows []Row) error {
	if f.out == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	if f.current {
		return f.append(rows)
	}
	for {
		missed, err := s.Events(ctx, Query{After: f.lastID, Limit: batchSize})
		if err != nil {
			return err
		}
		if len(missed) == 0 {
			f.current = true
			return nil
		}
		if err := f.append(missed); err != nil {
			return err
		}
	}
}

func (f *File) append(rows []Row) error {
	if f.size >= f.maxBytes {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	w := bufio.NewWriter(f.out)
	for i := range rows {
		n, _ := w.Write(rows[i].Line())
		_ = w.WriteByte('\n') // Flush returns the error
		f.size += int64(n) + 1
	}
	if err := w.Flush(); err != nil {
		return err
	}
	f.lastID = rows[len(rows)-1].ID
	return nil
}

// rotate renames the file and the earlier ones, and begins a new one.
func (f *File) rotate() error {
	f.close()
	for n := f.files; n > 0; n-- {
		from := f.path
		if n > 1 {
			from = fmt.Sprintf("%s.%d", f.path, n-1)
		}
		if err := os.Rename(from, fmt.Sprintf("%s.%d", f.path, n)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	last := f.lastID
	err := f.open()
	f.lastID = max(last, f.lastID)
	return err
}

// open opens the file, and finds its last event. It cuts off half a line, which the end of the server or a full
// disk has left.
func (f *File) open() error {
	out, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := out.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", f.path)
	}
	if err == nil {
		err = out.Chmod(0o600)
	}
	if err == nil {
		f.size, f.lastID, err = findEnd(out, info.Size())
	}
	if err == nil && f.size == 0 {
		f.lastID, err = f.renamedEnd()
	}
	if err == nil && f.size < info.Size() {
		err = out.Truncate(f.size)
	}
	if err != nil {
		out.Close()
		return err
	}
	f.out = out
	return nil
}

// renamedEnd returns the id of the last event of the file that was renamed last; 0: there is none. The new file has no
// line yet after a crash behind the renaming, or with a full disk.
func (f *File) renamedEnd() (uint64, error) {
	in, err := os.Open(f.path + ".1")
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return 0, err
	}
	_, lastID, err := findEnd(in, info.Size())
	if err != nil {
		err = fmt.Errorf("%s.1: %w", f.path, err)
	}
	return lastID, err
}

// findEnd returns where the last whole line of a file of size bytes ends, and the id of its event; 0: the
// file has no line.
func findEnd(in io.ReaderAt, size int64) (end int64, lastID uint64, err error) {
	from := max(size-2*maxLine, 0)
	tail := make([]byte, size-from)
	if _, err := in.ReadAt(tail, from); err != nil && err != io.EOF {
		return 0, 0, err
	}
	cut := bytes.LastIndexByte(tail, '\n')
	if cut < 0 {
		if from > 0 {
			return 0, 0, fmt.Errorf("it is not a file of events")
		}
		return 0, 0, nil
	}
	line := tail[bytes.LastIndexByte(tail[:cut], '\n')+1 : cut]
	r, err := ParseLine(line)
	return from + int64(cut) + 1, r.ID, err
}

func (f *File) close() {
	if f.out != nil {
		f.out.Close()
		f.out = nil
	}
}
