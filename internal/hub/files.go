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
)

// Place is a file of a session, by its absolute path.
type Place struct{ Session, Path string }

// Span is a part of a file, in bytes. Limit 0 is all behind Offset.
type Span struct{ Offset, Limit uint64 }

// File is a file of a session that is read. Close ends it.
type File struct {
	*Act
	io.Reader
	Size int64 // of the whole file, in bytes
}

const (
	// stall is how long a transfer of a file may stand still.
	stall      = time.Minute
	copyBuffer = 256 << 10
)

// ReadFile begins to read a file of a session.
func (h *Hub) ReadFile(ctx context.Context, p auth.Principal, at Place, part Span) (*File, error) {
	act, l, err := h.openSession(ctx, policy.FileRead, p, Ask{ID: at.Session})
	if err != nil {
		return nil, err
	}
	stream, size, err := l.Agent().Download(ctx, at.Path, int64(part.Offset), int64(part.Limit))
	if err != nil {
		err = act.Fail(l.Fault(ctx, err, fault.FileAccess))
		act.Close()
		return nil, err
	}
	act.release = append(act.release, func() { stream.Close() })
	act.started()
	return &File{act, &moving{stream}, size}, nil
}

// moving gives each read and write a minute.
type moving struct{ net.Conn }

func (m *moving) Read(b []byte) (int, error) {
	m.Conn.SetReadDeadline(time.Now().Add(stall))
	return m.Conn.Read(b)
}

func (m *moving) Write(b []byte) (int, error) {
	m.Conn.SetWriteDeadline(time.Now().Add(stall))
	return m.Conn.Write(b)
}

// reader remembers why it could not be read to its end.
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

// WriteFile makes a file of a session what content is, which has size bytes. It
// returns the file's size. When content breaks off, nothing is changed.
func (h *Hub) WriteFile(ctx context.Context, p auth.Principal, at Place, content io.Reader, size int64) (int64, error) {
	act, l, err := h.openSession(ctx, policy.FileWrite, p, Ask{ID: at.Session})
	if err != nil {
		return 0, err
	}
	defer act.Close()
	stream, err := l.Agent().Upload(ctx, at.Path, size)
	if err != nil {
		return 0, act.Fail(l.Fault(ctx, err, fault.FileAccess))
	}
	defer stream.Close()
	act.started()
	body := &reader{Reader: content}
	_, copied := io.CopyBuffer(struct{ io.Writer }{&moving{stream}}, body, make([]byte, copyBuffer))
	if body.broken != nil { // closing the stream tells the agent to throw away what came
		return 0, act.Fail(fault.Wrap(fault.InvalidParameters, body.broken, "the transfer broke, and nothing was changed"))
	}
	size, err = stream.Commit(time.Now().Add(stall))
	if err != nil {
		if copied != nil && !errors.As(err, new(*agent.Refusal)) {
			err = copied
		}
		return 0, act.Fail(l.Fault(ctx, err, fault.FileAccess))
	}
	return size, nil
}

// RemoveFile removes a file of a session, or, with recursive, a folder with all
// that is in it.
func (h *Hub) RemoveFile(ctx context.Context, p auth.Principal, at Place, recursive bool) error {
	act, l, err := h.openSession(ctx, policy.FileRemove, p, Ask{ID: at.Session})
	if err != nil {
		return err
	}
	defer act.Close()
	if err := l.Agent().RemoveFile(ctx, at.Path, recursive); err != nil {
		return act.Fail(l.Fault(ctx, err, fault.FileAccess))
	}
	return nil
}
