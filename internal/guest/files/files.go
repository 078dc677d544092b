// Package files implements the RPCs about files. It confines them to the roots, which are
// folders that the host names, whatever symbolic links there are, and also when a link is
// replaced during a call. They have the rights of the sandbox's user.
package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandlot/internal/agent/wire"
	"sandlot/internal/guest/user"
	"sandlot/proto/agentv1"
)

// Files has the roots of a sandbox, and implements the RPCs about the files in them.
type Files struct {
	// packageFolder returns the folder of installed packages, or "". A listing contains the
	// folder, but not the files in it: they are many, and not the user's work.
	packageFolder func() string
	user          *user.User

	mu    sync.Mutex
	roots []*agentv1.FileRoot
	// changing is held from the check of a condition until the change.
	changing sync.Mutex
}

// New returns a Files whose only root is /workspace, and which has the rights of that user.
// PackageFolder returns the folder of installed packages, or "": a listing does not contain the
// files in it.
func New(packageFolder func() string, u *user.User) *Files {
	return &Files{packageFolder: packageFolder, user: u, roots: []*agentv1.FileRoot{{Path: "/workspace"}}}
}

// SetRoots replaces the roots. An empty list changes nothing.
func (f *Files) SetRoots(roots []*agentv1.FileRoot) error {
	for _, r := range roots {
		if !path.IsAbs(r.Path) || path.Clean(r.Path) != r.Path {
			return wire.Errorf(connect.CodeInvalidArgument, "file root %q is not a clean absolute path", r.Path)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(roots) > 0 {
		f.roots = roots
	}
	return nil
}

// Base returns the first root, which relative paths are relative to.
func (f *Files) Base() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.roots[0].Path
}

// Path is a path in one of the roots.
type Path struct {
	root      *os.Root
	name      string // the path relative to the root
	requested string // the path as the host sent it, for error texts
	readOnly  bool   // of the root
}

// withPath calls do with the path that the host requested, with the user's rights. It returns do's
// error as Explain does. With follow, a symbolic link at the end of the path is resolved, too.
func (f *Files) withPath(requested string, follow bool, do func(*Path) error) error {
	return f.user.Do(func() error {
		p, err := f.find(requested, follow)
		if err != nil {
			return err
		}
		defer p.root.Close()
		return f.Explain(requested, do(p))
	})
}

// Open opens a regular file to read it.
func (f *Files) Open(requested string) (file *os.File, st fs.FileInfo, err error) {
	err = f.withPath(requested, true, func(p *Path) error {
		file, st, err = p.openRegular(os.O_RDONLY, 0)
		return err
	})
	return file, st, err
}

// find opens the root that a path is in. It resolves symbolic links first, since an absolute
// link may stay in a root, which os.Root does not allow. Whoever opens the resolved path in the
// os.Root cannot leave it, even when a link was replaced since.
func (f *Files) find(requested string, follow bool) (*Path, error) {
	requested = wire.DecodePath(requested)
	if strings.ContainsRune(requested, 0) {
		return nil, wire.Errorf(connect.CodeInvalidArgument, "a path cannot hold a zero byte")
	}
	resolved := resolve(f.abs(requested), follow)
	f.mu.Lock()
	roots := append(slices.Clone(f.roots), &agentv1.FileRoot{Path: wire.OutputDir, ReadOnly: true})
	f.mu.Unlock()
	slices.SortStableFunc(roots, func(a, b *agentv1.FileRoot) int { return cmp.Compare(len(b.Path), len(a.Path)) })
	for _, r := range roots {
		if rel, ok := within(r.Path, resolved); ok {
			root, err := os.OpenRoot(r.Path)
			return &Path{root, rel, requested, r.ReadOnly}, f.Explain(requested, err)
		}
	}
	return nil, f.outsideError(requested)
}

// abs returns a path as an absolute and clean one.
func (f *Files) abs(requested string) string {
	if !path.IsAbs(requested) {
		requested = path.Join(f.Base(), requested)
	}
	return path.Clean(requested)
}

// within returns the path p relative to a folder, and whether p is in the folder.
func within(dir, p string) (string, bool) {
	if p == dir {
		return ".", true
	}
	return strings.CutPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// outsideError returns the error for a path that is in no root.
func (f *Files) outsideError(requested string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, len(f.roots))
	for i, r := range f.roots {
		names[i] = r.Path
	}
	const text = "Path '%s' resolves outside the sandbox workspace. All paths must be within %s."
	return wire.Errorf(connect.CodeOutOfRange, text, wire.UTF8(requested), strings.Join(names, " or "))
}

// resolve resolves the symbolic links of an absolute path, as far as the path exists. With
// followLast also that of its last element.
func resolve(abs string, followLast bool) string {
	resolved, remaining := "/", strings.Split(strings.TrimPrefix(abs, "/"), "/")
	for hops := 0; len(remaining) > 0 && hops < 64; {
		name := remaining[0]
		remaining = remaining[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			resolved = path.Dir(resolved)
			continue
		}
		next := path.Join(resolved, name)
		if len(remaining) == 0 && !followLast {
			return next
		}
		target, err := os.Readlink(next)
		if err != nil {
			resolved = next
			continue
		}
		hops++
		if path.IsAbs(target) {
			resolved = "/"
		}
		remaining = append(strings.Split(target, "/"), remaining...)
	}
	return path.Join(append([]string{resolved}, remaining...)...)
}

// explanations has the errors that the host gets for errors of the kernel.
var explanations = []struct {
	err  error
	code connect.Code
	text string // with the path
}{
	{fs.ErrNotExist, connect.CodeNotFound, "File not found in sandbox: %s"},
	{syscall.EISDIR, connect.CodeFailedPrecondition, "Path is a directory: %s"},
	{syscall.ENOTDIR, connect.CodeFailedPrecondition, "Not a directory: %s"},
	{syscall.ENOTEMPTY, connect.CodeFailedPrecondition, "Directory is not empty: %s"},
	{syscall.ENOSPC, connect.CodeResourceExhausted, "No space left in the sandbox: %s"},
	{syscall.EDQUOT, connect.CodeResourceExhausted, "No space left in the sandbox: %s"},
	{syscall.EFBIG, connect.CodeResourceExhausted, "No space left in the sandbox: %s"},
	{fs.ErrPermission, connect.CodePermissionDenied, "Permission denied: %s"},
	{syscall.EROFS, connect.CodePermissionDenied, "Permission denied: %s"},
	{syscall.EXDEV, connect.CodeFailedPrecondition, "Not on the same file system: %s"},
	{syscall.ENAMETOOLONG, connect.CodeInvalidArgument, "Not a valid path: %.200s"},
	{syscall.EINVAL, connect.CodeInvalidArgument, "Not a valid path: %.200s"},
}

// Explain returns the error that the host gets for an error of the kernel, with the path.
func (f *Files) Explain(requested string, err error) error {
	if err == nil || errors.As(err, new(*connect.Error)) {
		return err
	}
	requested = wire.UTF8(requested)
	for _, e := range explanations {
		if errors.Is(err, e.err) {
			return wire.Errorf(e.code, e.text, requested)
		}
	}
	if strings.Contains(err.Error(), "escapes") {
		return f.outsideError(requested)
	}
	return wire.Errorf(connect.CodeFailedPrecondition, "%s: %w", requested, err)
}

// openRegular opens a regular file, and nothing else: reading a pipe or a device might block.
func (p *Path) openRegular(flag int, mode os.FileMode) (*os.File, fs.FileInfo, error) {
	f, err := p.root.OpenFile(p.name, flag|unix.O_NONBLOCK, mode)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		err = syscall.EISDIR
	}
	if err == nil && !st.Mode().IsRegular() {
		err = wire.Errorf(connect.CodeFailedPrecondition, "Not a regular file: %s", wire.UTF8(p.requested))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// checkWritable returns an error when the root is read-only, or the path is the root itself.
func (p *Path) checkWritable() error {
	if p.readOnly {
		return wire.Errorf(connect.CodePermissionDenied, "Path is read-only: %s", wire.UTF8(p.requested))
	}
	if p.name == "." {
		return wire.Errorf(connect.CodeFailedPrecondition, "Path is a directory: %s", wire.UTF8(p.requested))
	}
	return nil
}

// makeParents makes the folders above the path.
func (p *Path) makeParents() error {
	err := p.root.MkdirAll(path.Dir(p.name), 0o755)
	if errors.Is(err, fs.ErrExist) { // one of them exists, and is a file
		return syscall.ENOTDIR
	}
	return err
}

const maxReadBytes = 8 << 20

// ReadFile implements the RPC.
func (f *Files) ReadFile(_ context.Context, r *agentv1.ReadFileRequest) (*agentv1.ReadFileResponse, error) {
	answer := new(agentv1.ReadFileResponse)
	return answer, f.withPath(r.Path, true, func(p *Path) error {
		file, st, err := p.openRegular(os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		answer.Size = uint64(st.Size())
		length := uint64(0)
		if r.Offset < answer.Size {
			length = min(uint64(r.Limit), maxReadBytes, answer.Size-r.Offset)
		}
		data := make([]byte, length)
		n, err := file.ReadAt(data, int64(min(r.Offset, answer.Size)))
		if errors.Is(err, io.EOF) {
			err = nil
		}
		answer.Data = data[:n]
		return err
	})
}

// Replacement is a temporary file beside the file that it replaces when it is committed.
type Replacement struct {
	File   *os.File
	files  *Files
	target *Path
	temp   string
}

// Replace begins to replace a file, or to create one. With mode 0 the new file has the mode of
// the old one, or 0644. Commit ends it.
func (f *Files) Replace(requested string, mode uint32) (r *Replacement, err error) {
	err = f.user.Do(func() error {
		p, err := f.find(requested, true)
		if err != nil {
			return err
		}
		if r, err = p.replace(mode); err != nil {
			p.root.Close()
			return f.Explain(requested, err)
		}
		r.files = f
		return nil
	})
	return r, err
}

// replace begins to replace a file. The caller ends it with commit.
func (p *Path) replace(mode uint32) (*Replacement, error) {
	if err := p.checkWritable(); err != nil {
		return nil, err
	}
	perm := os.FileMode(0o644)
	if st, err := p.root.Stat(p.name); err == nil {
		if st.IsDir() {
			return nil, syscall.EISDIR
		}
		perm = st.Mode().Perm()
	}
	if mode != 0 {
		perm = os.FileMode(mode & 0o777)
	}
	dir := path.Dir(p.name)
	if err := p.makeParents(); err != nil {
		return nil, err
	}
	var b [6]byte
	unix.Getrandom(b[:], 0)
	temp := path.Join(dir, fmt.Sprintf(".sandlot-%x.tmp", b))
	f, err := p.root.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(perm); err != nil {
		f.Close()
		p.root.Remove(temp)
		return nil, err
	}
	return &Replacement{File: f, target: p, temp: temp}, nil
}

// Commit renames the new file to the old one, if the condition holds. When err, the error of writing the new file,
// is not nil, it removes the new file instead. It returns err, or its own error.
func (r *Replacement) Commit(c *agentv1.FileCondition, err error) error {
	return r.files.user.Do(func() error {
		defer r.target.root.Close()
		r.files.changing.Lock()
		defer r.files.changing.Unlock()
		if err == nil {
			err = r.files.check(c, r.target.requested)
		}
		return r.files.Explain(r.target.requested, r.commit(err))
	})
}

func (r *Replacement) commit(err error) error {
	if cerr := r.File.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = r.target.root.Rename(r.temp, r.target.name)
	}
	if err != nil {
		r.target.root.Remove(r.temp)
	}
	return err
}

// WriteFile implements the RPC.
func (f *Files) WriteFile(_ context.Context, r *agentv1.WriteFileRequest) (*agentv1.WriteFileResponse, error) {
	answer := new(agentv1.WriteFileResponse)
	return answer, f.withPath(r.Path, true, func(p *Path) (err error) {
		f.changing.Lock()
		defer f.changing.Unlock()
		answer.Size, err = p.write(r)
		return err
	})
}

// write writes to the file as a request says, and returns the file's size.
func (p *Path) write(m *agentv1.WriteFileRequest) (uint64, error) {
	if !m.Append && m.Offset == nil {
		n, err := p.replace(m.Mode)
		if err != nil {
			return 0, err
		}
		_, err = n.File.Write(m.Data)
		return uint64(len(m.Data)), n.commit(err)
	}
	if err := p.checkWritable(); err != nil {
		return 0, err
	}
	if err := p.makeParents(); err != nil {
		return 0, err
	}
	f, st, err := p.openRegular(os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	at := st.Size()
	if m.Offset != nil {
		at = int64(min(*m.Offset, 1<<50))
	}
	if _, err := f.WriteAt(m.Data, at); err != nil {
		return 0, err
	}
	if m.Mode != 0 {
		if err := f.Chmod(os.FileMode(m.Mode & 0o777)); err != nil {
			return 0, err
		}
	}
	if st, err = f.Stat(); err != nil {
		return 0, err
	}
	return uint64(st.Size()), f.Close()
}

func describe(name string, st fs.FileInfo) *agentv1.FileInfo {
	i := &agentv1.FileInfo{Path: wire.UTF8(name), Type: "other", Size: uint64(max(0, st.Size())),
		Mode: uint32(st.Mode().Perm()), ModifiedUnixMillis: st.ModTime().UnixMilli(), Version: VersionOf(st)}
	switch {
	case st.Mode().IsRegular():
		i.Type = "file"
	case st.IsDir():
		i.Type = "directory"
	case st.Mode()&fs.ModeSymlink != 0:
		i.Type = "symlink"
	}
	return i
}

// ListFiles implements the RPC.
func (f *Files) ListFiles(ctx context.Context, r *agentv1.ListFilesRequest) (*agentv1.ListFilesResponse, error) {
	if len(r.Known) == 0 || r.WaitMillis == 0 {
		return f.list(ctx, r)
	}
	return f.awaitChange(ctx, r)
}

func (f *Files) list(ctx context.Context, r *agentv1.ListFilesRequest) (*agentv1.ListFilesResponse, error) {
	l := &listing{skipped: f.packagesIn(wire.DecodePath(r.Path)), limit: int(min(max(r.Limit, 1), 10_000)),
		depth: int(min(max(r.Depth, 1), 10))}
	err := f.withPath(r.Path, true, func(p *Path) error {
		l.root, l.base = p.root, p.name
		if st, err := p.root.Stat(p.name); err != nil {
			return err
		} else if !st.IsDir() {
			return syscall.ENOTDIR
		}
		return l.walk(ctx)
	})
	slices.SortFunc(l.files, func(x, y *agentv1.FileInfo) int { return cmp.Compare(x.Path, y.Path) })
	return &agentv1.ListFilesResponse{Files: l.files, Truncated: l.truncated, Digest: l.digest()}, err
}

// packagesIn returns the folder of installed packages relative to a listed folder, or "" when it
// is not in that folder.
func (f *Files) packagesIn(listed string) string {
	if rel, ok := within(f.abs(listed), f.packageFolder()); ok && rel != "." {
		return rel
	}
	return ""
}

// listing lists a folder level by level, so that the limit cuts the deepest files. The limit
// also bounds the memory that it uses.
type listing struct {
	root         *os.Root
	base         string // the listed folder, relative to the root
	skipped      string // a folder whose files are not listed
	limit, depth int
	files        []*agentv1.FileInfo
	truncated    bool
}

func (l *listing) walk(ctx context.Context) error {
	level := []string{""}
	for d := 0; d < l.depth && len(level) > 0; d++ {
		var next []string
		for _, dir := range level {
			f, err := l.root.Open(path.Join(l.base, dir))
			if err != nil {
				if dir == "" {
					return err
				}
				continue // the folder was removed, or may not be read
			}
			subfolders, err := l.readDir(ctx, f, dir)
			f.Close()
			if err != nil {
				return err
			}
			next = append(next, subfolders...)
			if l.truncated {
				return nil
			}
		}
		level = next
	}
	return nil
}

// readDir lists one folder, and returns the folders in it.
func (l *listing) readDir(ctx context.Context, f *os.File, dir string) (subfolders []string, err error) {
	for {
		entries, err := f.ReadDir(256)
		for _, e := range entries {
			if len(l.files) == l.limit {
				l.truncated = true
				return subfolders, nil
			}
			name := path.Join(dir, e.Name())
			st, err := l.root.Lstat(path.Join(l.base, name))
			if err != nil {
				continue
			}
			i := describe(name, st)
			if i.Type == "symlink" {
				target, _ := l.root.Readlink(path.Join(l.base, name))
				i.Target = wire.UTF8(target)
			}
			l.files = append(l.files, i)
			if st.IsDir() && name != l.skipped {
				subfolders = append(subfolders, name)
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return subfolders, nil
			}
			return subfolders, err
		}
		if ctx.Err() != nil {
			return subfolders, ctx.Err()
		}
	}
}

// RemoveFile implements the RPC. It removes a symbolic link itself, and not its target.
func (f *Files) RemoveFile(_ context.Context, r *agentv1.RemoveFileRequest) (*agentv1.RemoveFileResponse, error) {
	return new(agentv1.RemoveFileResponse), f.withPath(r.Path, false, func(p *Path) error {
		if err := p.checkWritable(); err != nil {
			return err
		}
		if r.Condition != nil || !r.Recursive { // a large folder takes long
			f.changing.Lock()
			defer f.changing.Unlock()
		}
		if err := f.check(r.Condition, r.Path); err != nil {
			return err
		}
		if _, err := p.root.Lstat(p.name); err != nil {
			return err
		}
		if r.Recursive {
			return p.root.RemoveAll(p.name)
		}
		return p.root.Remove(p.name)
	})
}
