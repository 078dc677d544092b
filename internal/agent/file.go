package agent

import (
	"context"
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
	m, err := timedCall(ctx, 0, c.rpc.ListFiles, &agentv1.ListFilesRequest{Path: wire.EncodePath(path), Depth: uint32(depth),
		Limit: uint32(maxEntries)})
	if err != nil {
		return nil, false, err
	}
	if len(m.Files) > maxEntries {
		return nil, false, ErrProtocol
	}
	files = make([]File, len(m.Files))
	for n, f := range m.Files {
		switch f.Type {
		case "file", "directory", "symlink", "other":
		default:
			return nil, false, ErrProtocol
		}
		if f.Size > maxSize {
			return nil, false, ErrProtocol
		}
		files[n] = File{Path: f.Path, Type: f.Type, Size: int64(f.Size), Mode: f.Mode & 0o7777,
			Modified: unixMillis(uint64(max(0, f.ModifiedUnixMillis))), Target: f.Target}
	}
	return files, m.Truncated, nil
}

// RemoveFile removes a file, a symbolic link itself, or a folder, which must be
// empty unless recursive is set.
func (c *Client) RemoveFile(ctx context.Context, path string, recursive bool) error {
	_, err := call(ctx, c.rpc.RemoveFile, &agentv1.RemoveFileRequest{Path: wire.EncodePath(path), Recursive: recursive})
	return err
}

// Download opens a file for reading, from an offset on and at most maxBytes; 0: to its end. It also
// returns the size of the whole file. The sandbox may send fewer bytes, or more.
func (c *Client) Download(ctx context.Context, path string, offset,
	maxBytes int64) (conn net.Conn, size int64, err error) {
	conn, reply, err := c.transfer(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_ReadFile{
		ReadFile: &agentv1.ReadStream{Path: wire.EncodePath(path), Offset: uint64(offset), Limit: uint64(maxBytes)}}})
	if err != nil {
		return nil, 0, err
	}
	if reply.Size > maxSize {
		conn.Close()
		return nil, 0, ErrProtocol
	}
	return conn, int64(reply.Size), nil
}

// Upload is a file that is being written in a sandbox.
type Upload struct {
	net.Conn
	Direct bool // the bytes go over a direct connection
}

// Upload opens a file for writing. After size bytes were written, Commit replaces the file in
// the sandbox with it. Closing it before that changes nothing.
func (c *Client) Upload(ctx context.Context, path string, size int64) (*Upload, error) {
	conn, reply, err := c.transfer(ctx, &agentv1.StreamOpen{Kind: &agentv1.StreamOpen_WriteFile{
		WriteFile: &agentv1.WriteStream{Path: wire.EncodePath(path), Size: new(uint64(size))}}})
	if err != nil {
		return nil, err
	}
	return &Upload{conn, reply.Direct}, nil
}

// Commit waits until the agent has replaced the file, and returns its size.
func (u *Upload) Commit(deadline time.Time) (size int64, err error) {
	u.SetReadDeadline(deadline)
	reply := new(agentv1.StreamReply)
	if err := wire.ReadMessage(u, reply); err != nil {
		return 0, err
	}
	switch {
	case reply.Code != 0:
		return 0, refused(reply)
	case reply.Size > maxSize:
		return 0, ErrProtocol
	}
	return int64(reply.Size), nil
}
