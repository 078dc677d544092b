package agent

import (
	"bytes"
	"context"
	"encoding/hex"
	"net"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// File is one entry of a folder in a sandbox.
type File struct {
	Path     string // relative to the folder that was listed
	Type     string // file, directory, symlink or other
	Size     int64  // bytes
	Mode     uint32 // permission bits
	Modified time.Time
	Target   string // of a symbolic link
	Version  string // another one after each change; hexadecimal, empty: not known
}

// Condition is what must hold of a file before it is changed. The zero value holds always.
type Condition struct {
	Versions []string // it has one of them; empty: any
	Exists   bool     // it exists, with any version
	Absent   bool     // there is nothing
}

// Any reports whether the condition holds always.
func (c Condition) Any() bool { return len(c.Versions) == 0 && !c.Exists && !c.Absent }

// maxVersions is how many versions a condition may name.
const maxVersions = 32

// message returns the condition for the agent; nil: it holds always. A version that no agent has made matches nothing.
func (c Condition) message() *agentv1.FileCondition {
	if c.Any() {
		return nil
	}
	m := &agentv1.FileCondition{Exists: c.Exists, Absent: c.Absent}
	for _, v := range c.Versions[:min(len(c.Versions), maxVersions)] {
		b, err := hex.DecodeString(v)
		if err != nil || len(b) == 0 {
			b = []byte{0}
		}
		m.Versions = append(m.Versions, b)
	}
	return m
}

// maxVersion is how many bytes a version has at most.
const maxVersion = 64

func checkFile(f *agentv1.FileInfo) (File, error) {
	switch f.Type {
	case "file", "directory", "symlink", "other":
	default:
		return File{}, ErrProtocol
	}
	if f.Size > maxSize || len(f.Version) > maxVersion {
		return File{}, ErrProtocol
	}
	return File{Path: f.Path, Type: f.Type, Size: int64(f.Size), Mode: f.Mode & 0o7777,
		Modified: unixMillis(uint64(max(0, f.ModifiedUnixMillis))), Target: f.Target,
		Version: hex.EncodeToString(f.Version)}, nil
}

// ReadFile returns at most maxBytes of a file, from an offset on, and the size of the whole file.
func (c *Client) ReadFile(ctx context.Context, path string, offset,
	maxBytes int64) (data []byte, size int64, err error) {
	m, err := timedCall(ctx, 0, c.rpc.ReadFile, &agentv1.ReadFileRequest{Path: wire.EncodePath(path), Offset: uint64(offset),
		Limit: uint32(maxBytes)})
	if err != nil {
		return nil, 0, err
	}
	if int64(len(m.Data)) > maxBytes || m.Size > maxSize {
		return nil, 0, ErrProtocol
	}
	return m.Data, int64(m.Size), nil
}

// FileWrite says what to write into a file.
type FileWrite struct {
	Path   string
	Data   []byte
	Append bool
	Offset *int64 // where to write, keeping the rest; nil: replace the file
	Mode   uint32 // permission bits; 0: those of the old file, or 0644
}

// WriteFile writes a file, makes the folders above it, and returns its size.
func (c *Client) WriteFile(ctx context.Context, w FileWrite) (size int64, err error) {
	q := &agentv1.WriteFileRequest{Path: wire.EncodePath(w.Path), Data: w.Data, Append: w.Append, Mode: w.Mode}
	if w.Offset != nil {
		q.Offset = new(uint64(*w.Offset))
	}
	m, err := timedCall(ctx, 0, c.rpc.WriteFile, q)
	if err != nil {
		return 0, err
	}
	if m.Size > maxSize {
		return 0, ErrProtocol
	}
	return int64(m.Size), nil
}

// ListFiles returns at most maxEntries entries of a folder, and of the folders in it down to a depth;
// depth 1 is the folder alone. Truncated is set if there are more entries.
func (c *Client) ListFiles(ctx context.Context, path string, depth,
	maxEntries int) (files []File, truncated bool, err error) {
	l, err := c.AwaitFiles(ctx, FileWatch{Path: path, Depth: depth, MaxEntries: maxEntries})
	return l.Files, l.Truncated, err
}

// FileWatch says which list of files to wait for. Known is the digest of the list that is known; empty: none, and there
// is no wait. The other fields are as for ListFiles.
type FileWatch struct {
	Path              string
	Depth, MaxEntries int
	Known             []byte
	Wait              time.Duration
}

// FileListing is the entries of a folder. Without a digest, the agent cannot wait for changes.
type FileListing struct {
	Files     []File
	Truncated bool
	Digest    []byte
	Unchanged bool // it is what was known, and Files is empty
}

// AwaitFiles returns the list of a folder, once it differs from the one that is known, or time is over.
func (c *Client) AwaitFiles(ctx context.Context, w FileWatch) (l FileListing, err error) {
	m, err := timedCall(ctx, w.Wait, c.rpc.ListFiles, &agentv1.ListFilesRequest{Path: wire.EncodePath(w.Path),
		Depth: uint32(w.Depth), Limit: uint32(w.MaxEntries), Known: w.Known, WaitMillis: uint64(w.Wait.Milliseconds())})
	if err != nil {
		return l, err
	}
	if len(m.Files) > w.MaxEntries || len(m.Digest) > maxVersion {
		return l, ErrProtocol
	}
	l = FileListing{Files: make([]File, len(m.Files)), Truncated: m.Truncated, Digest: m.Digest,
		Unchanged: len(w.Known) > 0 && bytes.Equal(m.Digest, w.Known)}
	for n, f := range m.Files {
		if l.Files[n], err = checkFile(f); err != nil {
			return FileListing{}, err
		}
	}
	return l, nil
}

// StatFile returns what there is at a path, which may be a symbolic link; its version is that of what it leads to. The
// file's Type is empty if there is nothing.
func (c *Client) StatFile(ctx context.Context, path string) (File, error) {
	return c.stat(ctx, path, Condition{})
}

func (c *Client) stat(ctx context.Context, path string, holds Condition) (f File, err error) {
	m, err := timedCall(ctx, 0, c.rpc.StatFile, &agentv1.StatFileRequest{Path: wire.EncodePath(path),
		Condition: holds.message()})
	if err != nil || m.Info == nil {
		return f, err
	}
	return checkFile(m.Info)
}

// check returns an error if a condition does not hold, or the agent knows no conditions: it would not heed it.
func (c *Client) check(ctx context.Context, path string, holds Condition) error {
	if holds.Any() {
		return nil
	}
	_, err := c.stat(ctx, path, holds)
	return err
}

// RemoveFile removes a file, a symbolic link itself, or a folder, which must be
// empty unless recursive is set.
func (c *Client) RemoveFile(ctx context.Context, path string, recursive bool, holds Condition) error {
	if err := c.check(ctx, path, holds); err != nil {
		return err
	}
	_, err := call(ctx, c.rpc.RemoveFile, &agentv1.RemoveFileRequest{Path: wire.EncodePath(path), Recursive: recursive,
		Condition: holds.message()})
	return err
}

// FileMove says which file or folder gets which name. Holds is about the file that is moved.
type FileMove struct {
	From, To string
	Replace  bool // a file that has the new name
	Holds    Condition
}

// MoveFile moves a file, a symbolic link itself, or a folder, and makes the folders above the new name.
func (c *Client) MoveFile(ctx context.Context, m FileMove) error {
	_, err := timedCall(ctx, 0, c.rpc.MoveFile, &agentv1.MoveFileRequest{From: wire.EncodePath(m.From),
		To: wire.EncodePath(m.To), Replace: m.Replace, Condition: m.Holds.message()})
	return err
}

// MakeFolder makes a folder, and the folders above it.
func (c *Client) MakeFolder(ctx context.Context, path string) error {
	_, err := timedCall(ctx, 0, c.rpc.MakeFolder, &agentv1.MakeFolderRequest{Path: wire.EncodePath(path)})
	return err
}

// Download opens a file for reading, from an offset on and at most maxBytes; 0: to its end. It also
// returns the whole file, with its size and version. The sandbox may send fewer bytes, or more.
func (c *Client) Download(ctx context.Context, path string, offset,
	maxBytes int64) (conn net.Conn, whole File, err error) {
	conn, reply, err := c.transfer(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_ReadFile{
		ReadFile: &agentv1.ReadStream{Path: wire.EncodePath(path), Offset: uint64(offset), Limit: uint64(maxBytes)}}})
	if err != nil {
		return nil, whole, err
	}
	if reply.Size > maxSize || len(reply.Version) > maxVersion {
		conn.Close()
		return nil, whole, ErrProtocol
	}
	return conn, File{Path: path, Type: "file", Size: int64(reply.Size), Version: hex.EncodeToString(reply.Version)}, nil
}

// Upload is a file that is being written in a sandbox.
type Upload struct {
	net.Conn
	Direct bool // the bytes go over a direct connection
}

// Upload opens a file for writing, if a condition holds, which is checked again at the end. After size bytes were
// written, Commit replaces the file in the sandbox with it. Closing it before that changes nothing.
func (c *Client) Upload(ctx context.Context, path string, size int64, holds Condition) (*Upload, error) {
	if err := c.check(ctx, path, holds); err != nil {
		return nil, err
	}
	conn, reply, err := c.transfer(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_WriteFile{
		WriteFile: &agentv1.WriteStream{Path: wire.EncodePath(path), Size: new(uint64(size)), Condition: holds.message()}}})
	if err != nil {
		return nil, err
	}
	return &Upload{conn, reply.Direct}, nil
}

// Commit waits until the agent has replaced the file, and returns its size and version.
func (u *Upload) Commit(deadline time.Time) (written File, err error) {
	u.SetReadDeadline(deadline)
	reply := new(agentv1.StreamReply)
	if err := wire.ReadMessage(u, reply); err != nil {
		return written, err
	}
	switch {
	case reply.Code != 0:
		return written, refused(reply)
	case reply.Size > maxSize, len(reply.Version) > maxVersion:
		return written, ErrProtocol
	}
	return File{Type: "file", Size: int64(reply.Size), Version: hex.EncodeToString(reply.Version)}, nil
}
