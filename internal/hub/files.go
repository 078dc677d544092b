package hub

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session"
	"sandlot/internal/session/usage"
)

// FilePath is the absolute path of a file in a session.
type FilePath struct {
	SessionID
	Path string
}

// detail implements detailInput.
func (f FilePath) detail(*Hub, auth.Principal) string { return f.Path }

// fileRequest returns the request for an operation on a file.
func (h *Hub) fileRequest(o policy.Operation, p auth.Principal, f FilePath) Request {
	r := h.sessionRequest(o, p, f.SessionID)
	r.Detail = f.Path
	return r
}

// checkExists returns a fault if the file cannot be there: no session is made to read or to remove what is not in it.
func (f FilePath) checkExists() error {
	if f.SessionID == "new" {
		return fault.New(fault.NotFound, "a new session has no file yet: name a session that exists").
			Advise("Create one with POST /v1/sessions, and put a file into it with PUT")
	}
	return nil
}

// ByteRange is a part of a file, in bytes. Limit 0 means everything from Offset on.
type ByteRange struct{ Offset, Limit uint64 }

// File is a file of a session that is being read, until Close.
type File struct {
	*ActiveRequest
	io.Reader
	Size int64  // of the whole file, in bytes
	ETag string // empty: its agent knows none
}

// FileCondition is what must hold of a file before it is changed.
type FileCondition = agent.Condition

const (
	// stallTimeout is how long a transfer may make no progress.
	stallTimeout = time.Minute
	copyBuffer   = 256 << 10
)

// ReadFile opens a file of a session for reading.
func (h *Hub) ReadFile(ctx context.Context, p auth.Principal, file FilePath, span ByteRange) (*File, error) {
	if err := file.checkExists(); err != nil {
		return nil, err
	}
	return begin(ctx, h, h.fileRequest(policy.FileRead, p, file), func(a *ActiveRequest) (*File, error) {
		l, err := a.openSession(ctx, SessionSpec{ID: string(file.SessionID)})
		if err != nil {
			return nil, err
		}
		stream, whole, err := l.Agent().Download(ctx, file.Path, int64(span.Offset), int64(span.Limit))
		if err != nil {
			return nil, l.Fault(ctx, err, fault.FileAccess)
		}
		a.cleanups = append(a.cleanups, func() { stream.Close() })
		return &File{a, &countingReader{&deadlineConn{stream}, &a.sent}, whole.Size, etagOf(whole)}, nil
	})
}

// deadlineConn is a connection that fails a read or write after stallTimeout.
type deadlineConn struct{ net.Conn }

func (c *deadlineConn) Read(b []byte) (int, error) {
	c.Conn.SetReadDeadline(time.Now().Add(stallTimeout))
	return c.Conn.Read(b)
}

func (c *deadlineConn) Write(b []byte) (int, error) {
	c.Conn.SetWriteDeadline(time.Now().Add(stallTimeout))
	return c.Conn.Write(b)
}

// countingReader counts what is read.
type countingReader struct {
	io.Reader
	count *atomic.Int64
}

func (r *countingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.count.Add(int64(n))
	return n, err
}

// uploadReader tells the quota of the disk what is read.
type uploadReader struct {
	io.Reader
	quota *usage.Upload
}

func (r *uploadReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.quota.Sent(int64(n))
	return n, err
}

// errorRecorder records the error that ended reading, except io.EOF.
type errorRecorder struct {
	io.Reader
	err error
}

func (r *errorRecorder) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// upload is a file of a session that is being written.
type upload struct {
	request *ActiveRequest
	lease   *session.Lease
	stream  *agent.Upload
	quota   *usage.Upload
}

// FileContent is the new content of a file, which has Size bytes.
type FileContent struct {
	FilePath
	Content io.Reader
	Size    int64
	Holds   FileCondition
}

// WriteFile replaces a file of a session. It returns the file's size and ETag. If the content ends with an error, or the
// condition does not hold, the file does not change.
func (h *Hub) WriteFile(ctx context.Context, p auth.Principal, file FileContent) (size int64, etag string, err error) {
	u, err := begin(ctx, h, h.fileRequest(policy.FileWrite, p, file.FilePath), func(a *ActiveRequest) (*upload, error) {
		l, err := a.openSession(ctx, SessionSpec{ID: string(file.SessionID)})
		if err != nil {
			return nil, err
		}
		quota, err := l.ReserveUpload(file.Path, file.Size)
		if err != nil {
			return nil, err
		}
		a.cleanups = append(a.cleanups, quota.Close)
		stream, err := l.Agent().Upload(ctx, file.Path, file.Size, file.Holds)
		if err != nil {
			return nil, l.Fault(ctx, err, fault.FileAccess)
		}
		return &upload{a, l, stream, quota}, nil
	})
	if err != nil {
		return 0, "", err
	}
	defer u.request.Close()
	defer u.stream.Close()
	written, err := u.copy(ctx, file.Content)
	return written.Size, etagOf(written), u.request.Fail(err)
}

func (u *upload) copy(ctx context.Context, content io.Reader) (agent.File, error) {
	body := &errorRecorder{Reader: &uploadReader{&countingReader{content, &u.request.received}, u.quota}}
	_, copyErr := io.CopyBuffer(struct{ io.Writer }{&deadlineConn{u.stream}}, body, make([]byte, copyBuffer))
	if body.err != nil { // closing the stream tells the agent to discard what arrived
		return agent.File{}, fault.Wrap(fault.InvalidParameters, body.err, "the transfer broke, and nothing was changed")
	}
	written, err := u.stream.Commit(time.Now().Add(stallTimeout))
	if err != nil {
		if copyErr != nil && !errors.As(err, new(*agent.Refusal)) {
			err = copyErr
		}
		return agent.File{}, u.lease.Fault(ctx, err, fault.FileAccess)
	}
	u.quota.Done()
	return written, nil
}

// Removal is a file to be removed, or, with Recursive, a folder with everything in it.
type Removal struct {
	FilePath
	Recursive bool
	Holds     FileCondition
}

// Removed is the output of RemoveFile, for the event alone. It implements sessionAnswer.
type Removed struct{ sessionID string }

func (r Removed) session() string { return r.sessionID }

func (h *Hub) removeFile(ctx context.Context, p auth.Principal, r Removal) (Removed, error) {
	if err := r.checkExists(); err != nil {
		return Removed{}, err
	}
	l, err := h.Sessions.Wake(ctx, p, string(r.SessionID))
	if err != nil {
		return Removed{}, err
	}
	defer l.Release()
	if err := l.Agent().RemoveFile(ctx, r.Path, r.Recursive, r.Holds); err != nil {
		return Removed{l.ID()}, l.Fault(ctx, err, fault.FileAccess)
	}
	return Removed{l.ID()}, nil
}
