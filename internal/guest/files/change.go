package files

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io/fs"
	"path"
	"slices"
	"syscall"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// VersionOf returns another value after each change of a file. A change within the same tick of the kernel's clock, of a
// file that keeps its size and its inode, is not seen: requests about files make a new inode.
func VersionOf(st fs.FileInfo) []byte {
	s, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	var b []byte
	for _, n := range []int64{int64(s.Dev), int64(s.Ino), s.Size, s.Mtim.Sec, s.Mtim.Nsec, s.Ctim.Sec, s.Ctim.Nsec} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	sum := sha256.Sum256(b)
	return sum[:12]
}

// Version returns the version of the file that a path leads to; nil: there is none.
func (f *Files) Version(requested string) (version []byte, err error) {
	err = f.user.Do(func() error {
		version, err = f.version(requested)
		return err
	})
	return version, err
}

// version is Version with the rights of the caller. A symbolic link that leads nowhere has the version of itself.
func (f *Files) version(requested string) ([]byte, error) {
	for _, follow := range []bool{true, false} {
		p, err := f.find(requested, follow)
		if err != nil {
			return nil, err
		}
		st, err := p.root.Lstat(p.name)
		p.root.Close()
		switch {
		case err == nil:
			return VersionOf(st), nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return nil, f.Explain(requested, err)
		}
	}
	return nil, nil
}

// check returns an error when a condition does not hold; nil holds.
func (f *Files) check(c *agentv1.FileCondition, requested string) error {
	if c == nil {
		return nil
	}
	version, err := f.version(requested)
	if err != nil {
		return err
	}
	name := wire.UTF8(wire.DecodePath(requested))
	same := func(v []byte) bool { return bytes.Equal(v, version) }
	switch {
	case c.Absent && version != nil:
		return wire.Errorf(connect.CodeAborted, "There is something at %s already, and nothing was changed", name)
	case (c.Exists || len(c.Versions) > 0) && version == nil:
		return wire.Errorf(connect.CodeAborted, "%s does not exist any more, and nothing was changed", name)
	case len(c.Versions) > 0 && !slices.ContainsFunc(c.Versions, same):
		return wire.Errorf(connect.CodeAborted, "%s has changed since it was read, and nothing was changed", name)
	}
	return nil
}

// StatFile implements the RPC.
func (f *Files) StatFile(_ context.Context, r *agentv1.StatFileRequest) (*agentv1.StatFileResponse, error) {
	answer := new(agentv1.StatFileResponse)
	return answer, f.withPath(r.Path, false, func(p *Path) error {
		if err := f.check(r.Condition, r.Path); err != nil {
			return err
		}
		st, err := p.root.Lstat(p.name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil
		}
		if err != nil {
			return err
		}
		i := describe(path.Base(p.name), st)
		if i.Type == "symlink" {
			target, _ := p.root.Readlink(p.name)
			i.Target = wire.UTF8(target)
			if v, err := f.version(r.Path); err == nil && v != nil { // what it leads to may be outside of the roots
				i.Version = v
			}
		}
		answer.Info = i
		return nil
	})
}

// MoveFile implements the RPC. It moves a symbolic link itself, and not its target.
func (f *Files) MoveFile(_ context.Context, r *agentv1.MoveFileRequest) (*agentv1.MoveFileResponse, error) {
	return new(agentv1.MoveFileResponse), f.withPath(r.From, false, func(from *Path) error {
		to, err := f.find(r.To, false)
		if err != nil {
			return err
		}
		defer to.root.Close()
		if err := cmp.Or(from.checkWritable(), to.checkWritable()); err != nil {
			return err
		}
		f.changing.Lock()
		defer f.changing.Unlock()
		if err := f.check(r.Condition, r.From); err != nil {
			return err
		}
		if _, err := from.root.Lstat(from.name); err != nil {
			return err
		}
		if from.root.Name() != to.root.Name() {
			return f.Explain(r.To, syscall.EXDEV)
		}
		return f.Explain(r.To, f.move(from, to, r.Replace))
	})
}

func (f *Files) move(from, to *Path, replace bool) error {
	there, err := to.root.Lstat(to.name)
	switch {
	case err == nil && !replace:
		return wire.Errorf(connect.CodeAborted, "There is something at %s already, and nothing was changed",
			wire.UTF8(to.requested))
	case err == nil && there.IsDir():
		return syscall.EISDIR
	}
	if err := to.makeParents(); err != nil {
		return err
	}
	return from.root.Rename(from.name, to.name)
}

// MakeFolder implements the RPC.
func (f *Files) MakeFolder(_ context.Context, r *agentv1.MakeFolderRequest) (*agentv1.MakeFolderResponse, error) {
	return new(agentv1.MakeFolderResponse), f.withPath(r.Path, false, func(p *Path) error {
		if err := p.checkWritable(); err != nil {
			return err
		}
		if err := p.makeParents(); err != nil {
			return err
		}
		err := p.root.Mkdir(p.name, 0o755)
		if errors.Is(err, fs.ErrExist) {
			return wire.Errorf(connect.CodeAborted, "There is something at %s already, and nothing was changed",
				wire.UTF8(p.requested))
		}
		return err
	})
}
