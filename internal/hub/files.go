package hub

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/policy"
	"sandlot/internal/session"
)

// Place is a file of a session, by its absolute path.
type Place struct {
	SessionID
	Path string
}

// Span is a part of a file, in bytes. Limit 0 is everything from Offset on.
type Span struct{ Offset, Limit uint64 }

// File is a file of a session that is being read, until Close.
type File struct {
	*Act
	io.Reader
	Size int64 // of the whole file, in bytes
}

const (
	// stall is how long a transfer may make no progress.
	stall      = time.Minute
	copyBuffer = 256 << 10
)

// ReadFile begins to read a file of a session.
func (h *Hub) ReadFile(ctx context.Context, p auth.Principal, at Place, part Span) (*File, error) {
	return begin(h, h.onSession(policy.FileRead, p, at.SessionID), func(a *Act) (*File, error) {
		l, err := a.open(ctx, Ask{ID: string(at.SessionID)})
		if err != nil {
			return nil, err
		}
		stream, size, err := l.Agent().Download(ctx, at.Path, int64(part.Offset), int64(part.Limit))
		if err != nil {
			return nil, l.Fault(ctx, err, fault.FileAccess)
		}
		a.release = append(a.release, func() { stream.Close() })
		return &File{a, &moving{stream}, size}, nil
	})
}

// moving gives each read and write the time stall.
type moving struct{ net.Conn }

func (m *moving) Read(b []byte) (int, error) {
	m.Conn.SetReadDeadline(time.Now().Add(stall))
	return m.Conn.Read(b)
}

func (m *moving) Write(b []byte) (int, error) {
	m.Conn.SetWriteDeadline(time.Now().Add(stall))
	return m.Conn.Write(b)
}

// reader records why it could not be read to its end.
type reader struct {
	io.Reader
	broken error
}

func (s *reader) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err != nil && err != io.EOF {
		s.broken = err
	}
	return n, err
}

// upload is a file of a session that is written.
type upload struct {
	act    *Act
	lease  *session.Lease
	stream *agent.Upload
}

// WriteFile replaces a file of a session by content, which has size bytes. It returns
// the file's size. When content breaks off, the file stays as it was.
func (h *Hub) WriteFile(ctx context.Context, p auth.Principal, at Place, content io.Reader, size int64) (int64, error) {
	u, err := begin(h, h.onSession(policy.FileWrite, p, at.SessionID), func(a *Act) (*upload, error) {
		l, err := a.open(ctx, Ask{ID: string(at.SessionID)})
		if err != nil {
			return nil, err
		}
		stream, err := l.Agent().Upload(ctx, at.Path, size)
		if err != nil {
			return nil, l.Fault(ctx, err, fault.FileAccess)
		}
		return &upload{a, l, stream}, nil
	})
	if err != nil {
		return 0, err
	}
	defer u.act.Close()
	defer u.stream.Close()
	size, err = u.copy(ctx, content)
	return size, u.act.Fail(err)
}

func (u *upload) copy(ctx context.Context, content io.Reader) (int64, error) {
	body := &reader{Reader: content}
	_, copied := io.CopyBuffer(struct{ io.Writer }{&moving{u.stream}}, body, make([]byte, copyBuffer))
	if body.broken != nil { // closing the stream tells the agent to discard what arrived
		return 0, fault.Wrap(fault.InvalidParameters, body.broken, "the transfer broke, and nothing was changed")
	}
	size, err := u.stream.Commit(time.Now().Add(stall))
	if err != nil {
		if copied != nil && !errors.As(err, new(*agent.Refusal)) {
			err = copied
		}
		return 0, u.lease.Fault(ctx, err, fault.FileAccess)
	}
	return size, nil
}

// Removal is a file that is to be removed, or, with Recursive, a folder with all that is
// in it.
type Removal struct {
	Place
	Recursive bool
}

// Removed is the output of RemoveFile, for the event alone. It implements located.
type Removed struct{ sessionID string }

func (r Removed) session() string { return r.sessionID }

func (h *Hub) removeFile(ctx context.Context, p auth.Principal, r Removal) (Removed, error) {
	l, err := h.Sessions.Open(ctx, p, session.Ask{ID: string(r.SessionID)})
	if err != nil {
		return Removed{}, err
	}
	defer l.Release()
	if err := l.Agent().RemoveFile(ctx, r.Path, r.Recursive); err != nil {
		return Removed{l.ID()}, l.Fault(ctx, err, fault.FileAccess)
	}
	return Removed{l.ID()}, nil
}
