package release

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"sandlot/internal/filelock"
)

// programName matches the names of the programs in an archive: sandlot, and those that it looks for beside itself.
var programName = regexp.MustCompile(`^sandlot(-(agent|runsc)[a-z0-9_-]*)?(\.exe)?$`)

// maxProgram is the largest program.
const maxProgram = 1 << 30

// Main is the name of the program that a user starts.
func Main() string {
	if runtime.GOOS == "windows" {
		return "sandlot.exe"
	}
	return "sandlot"
}

// An Upgrade replaces the programs of a folder. Its own folder is beside them, so that a program is replaced at once.
// Close ends it: unless Keep was called, the programs are unchanged.
type Upgrade struct {
	Dir string // with the programs

	lock     *os.File
	replaced bool
}

func (u *Upgrade) own() string    { return filepath.Join(u.Dir, ".sandlot-upgrade") }
func (u *Upgrade) before() string { return filepath.Join(u.own(), "before") }

// Staged is the folder with the new programs until they are put into place.
func (u *Upgrade) Staged() string { return filepath.Join(u.own(), "new") }

// Begin begins an upgrade of the programs in a folder. What an earlier one has left, which was killed, is undone.
func Begin(dir string) (*Upgrade, error) {
	u := &Upgrade{Dir: dir}
	err := os.Mkdir(u.own(), 0o755)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("the programs in %s cannot be replaced by this user: %w", dir, err)
	}
	if u.lock, err = filelock.Open(filepath.Join(u.own(), "lock"), 0o600); err != nil {
		return nil, err
	}
	if alone, err := filelock.Try(u.lock, true); err != nil || !alone {
		return nil, errors.Join(err, u.lock.Close(), fmt.Errorf("another upgrade of %s is under way", dir))
	}
	if _, err := os.Lstat(u.before()); err == nil {
		u.replaced = true
		err = u.undo()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("an earlier upgrade was killed, and cannot be undone: %w", err),
				u.lock.Close())
		}
	}
	if err := os.RemoveAll(u.Staged()); err != nil {
		return nil, errors.Join(err, u.lock.Close())
	}
	return u, nil
}

// Unpack gets the release's archive for this machine, and unpacks its programs into Staged.
func (u *Upgrade) Unpack(ctx context.Context, r *Release) error {
	file, err := r.archive(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return err
	}
	archive := filepath.Join(u.own(), "archive")
	if err := os.Remove(archive); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := r.download(ctx, file, archive); err != nil {
		return err
	}
	if err := os.Mkdir(u.Staged(), 0o755); err != nil {
		return err
	}
	unpack := unpackTar
	if strings.HasSuffix(file.Name, ".zip") {
		unpack = unpackZip
	}
	if err := unpack(archive, u.Staged()); err != nil {
		return fmt.Errorf("%s: %w", file.Name, err)
	}
	if _, err := os.Stat(filepath.Join(u.Staged(), Main())); err != nil {
		return fmt.Errorf("%s: it has no %s", file.Name, Main())
	}
	return os.Remove(archive)
}

func unpackTar(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for entries := tar.NewReader(z); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if programName.MatchString(header.Name) && header.Typeflag == tar.TypeReg {
			if err := writeProgram(filepath.Join(dir, header.Name), entries); err != nil {
				return err
			}
		}
	}
}

func unpackZip(archive, dir string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, entry := range z.File {
		if !programName.MatchString(entry.Name) {
			continue
		}
		from, err := entry.Open()
		if err == nil {
			err = errors.Join(writeProgram(filepath.Join(dir, entry.Name), from), from.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeProgram writes a program to the disk.
func writeProgram(path string, from io.Reader) error {
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	n, err := io.Copy(to, io.LimitReader(from, maxProgram+1))
	if n > maxProgram {
		err = fmt.Errorf("%s is too large", filepath.Base(path))
	}
	if err == nil {
		err = to.Chmod(0o755) // whatever the umask
	}
	if err == nil {
		err = to.Sync()
	}
	return errors.Join(err, to.Close())
}

// Replace puts the staged programs into place, the one that a user starts last. The others of before that the release
// does not have go: the new ones would take them for their own.
func (u *Upgrade) Replace() error {
	old, err := programs(u.Dir)
	if err != nil {
		return err
	}
	staged, err := programs(u.Staged())
	if err != nil {
		return err
	}
	// Nothing is in the folder before all of it is: an upgrade that was killed is undone whole.
	saving := u.before() + ".new"
	if err := errors.Join(os.RemoveAll(saving), os.Mkdir(saving, 0o755)); err != nil {
		return err
	}
	for _, name := range old {
		if err := save(filepath.Join(u.Dir, name), filepath.Join(saving, name)); err != nil {
			return err
		}
	}
	if err := os.Rename(saving, u.before()); err != nil {
		return err
	}
	u.replaced = true
	for _, name := range old {
		if name != Main() {
			if err := u.clear(name); err != nil {
				return err
			}
		}
	}
	for _, name := range staged { // Main is the first by name
		if name != Main() {
			if err := os.Rename(filepath.Join(u.Staged(), name), filepath.Join(u.Dir, name)); err != nil {
				return err
			}
		}
	}
	return u.put(filepath.Join(u.Staged(), Main()), Main())
}

// programs lists the programs in a folder.
func programs(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if programName.MatchString(e.Name()) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Keep ends the upgrade: the programs of before are forgotten.
func (u *Upgrade) Keep() error {
	u.replaced = false
	return u.forget()
}

// forget removes the programs of before, at once for who looks for them.
func (u *Upgrade) forget() error {
	old := filepath.Join(u.own(), "forgotten")
	return errors.Join(os.RemoveAll(old), os.Rename(u.before(), old), os.RemoveAll(old))
}

// undo puts the programs of before back. It can be repeated when it was killed.
func (u *Upgrade) undo() error {
	saved, err := programs(u.before())
	if err != nil {
		return err
	}
	now, err := programs(u.Dir)
	if err != nil {
		return err
	}
	for _, name := range now {
		if name != Main() {
			err = errors.Join(err, u.clear(name))
		}
	}
	for _, name := range saved {
		again := filepath.Join(u.own(), "again")
		if removeErr := os.Remove(again); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			return errors.Join(err, removeErr)
		}
		err = errors.Join(err, save(filepath.Join(u.before(), name), again), u.put(again, name))
	}
	if err != nil {
		return err
	}
	u.replaced = false
	return u.forget()
}

// put moves a program into place.
func (u *Upgrade) put(from, name string) error {
	to := filepath.Join(u.Dir, name)
	if runtime.GOOS == "windows" { // which does not replace a program that runs
		if err := u.clear(name); err != nil {
			return err
		}
	}
	return os.Rename(from, to)
}

// clear takes a program away. That of Windows, which may run, is moved aside, and removed by a later upgrade.
func (u *Upgrade) clear(name string) error {
	path := filepath.Join(u.Dir, name)
	err := os.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	aside, tempErr := os.MkdirTemp(u.own(), "running-")
	if tempErr != nil {
		return errors.Join(err, tempErr)
	}
	return os.Rename(path, filepath.Join(aside, name))
}

// Close ends the upgrade, and undoes it unless it was kept.
func (u *Upgrade) Close() error {
	if u.lock == nil {
		return nil
	}
	var err error
	if u.replaced {
		err = u.undo()
	}
	err = errors.Join(err, u.lock.Close())
	u.lock = nil
	if err == nil {
		// A program of Windows that still runs stays there until the next upgrade.
		if removeErr := os.RemoveAll(u.own()); runtime.GOOS != "windows" {
			err = removeErr
		}
	}
	return err
}

// save makes another name of a program, or where the file system has no links a copy.
func save(path, to string) error {
	if os.Link(path, to) == nil {
		return nil
	}
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(writeProgram(to, from), from.Close())
}
