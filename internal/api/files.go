package api

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/session"
)

// stall is how long a transfer of a file may stand still.
const stall = time.Minute

const copyBuffer = 256 << 10

func filePath(r *http.Request) string { return path.Clean("/" + r.PathValue("path")) }

// span reads a Range header with one range. limit is 0 for "to the end".
func span(h string) (offset, limit uint64, ok bool) {
	rest, found := strings.CutPrefix(h, "bytes=")
	from, to, dash := strings.Cut(rest, "-")
	if !found || !dash || strings.Contains(rest, ",") {
		return 0, 0, false
	}
	offset, err := strconv.ParseUint(from, 10, 62)
	if err != nil {
		return 0, 0, false
	}
	if to == "" {
		return offset, 0, true
	}
	end, err := strconv.ParseUint(to, 10, 62)
	if err != nil || end < offset {
		return 0, 0, false
	}
	return offset, end - offset + 1, true
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	done, err := s.hold(r.Context(), limit.Streams)
	if err != nil {
		busy(w, r, err)
		return
	}
	defer done()
	l, err := s.open(r, session.Ask{ID: r.PathValue("id")})
	if err != nil {
		problem(w, r, err)
		return
	}
	defer l.Release()
	offset, limit, ranged := span(r.Header.Get("Range"))
	stream, size, err := l.Agent().Download(r.Context(), filePath(r), int64(offset), int64(limit))
	if err != nil {
		problem(w, r, l.Fault(r.Context(), err, fault.FileAccess))
		return
	}
	defer stream.Close()
	if ranged && offset > uint64(size) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		problem(w, r, fault.New(fault.InvalidParameters, "the range begins after the end of the file, which has %d bytes", size))
		return
	}
	length := uint64(size) - offset
	if limit > 0 {
		length = min(length, limit)
	}
	h := w.Header()
	// What a sandbox wrote must never be a page of this origin.
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(filePath(r))}))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", strconv.FormatUint(length, 10))
	status := http.StatusOK
	if ranged {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, offset+max(length, 1)-1, size))
		status = http.StatusPartialContent
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	n, err := io.CopyBuffer(plainWriter{w}, io.LimitReader(&moving{stream}, int64(length)), make([]byte, copyBuffer))
	if err != nil || uint64(n) != length {
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// plainWriter hides ReadFrom, which would read in small pieces.
type plainWriter struct{ io.Writer }

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

// source remembers why it could not be read to its end.
type source struct {
	io.Reader
	broken error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err != nil && err != io.EOF {
		s.broken = err
	}
	return n, err
}

func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength < 0 {
		w.Header().Set("Connection", "close")
		writeProblem(w, Problem{Title: "LENGTH_REQUIRED", Status: 411, Detail: "send a Content-Length, so that a broken transfer is noticed",
			Data: fault.New(fault.InvalidParameters, "").Data()})
		return
	}
	done, err := s.hold(r.Context(), limit.Streams)
	if err != nil {
		busy(w, r, err)
		return
	}
	defer done()
	streamed(r)
	l, err := s.open(r, session.Ask{ID: r.PathValue("id")})
	if err != nil {
		problem(w, r, err)
		return
	}
	defer l.Release()
	stream, err := l.Agent().Upload(r.Context(), filePath(r), r.ContentLength)
	if err != nil {
		problem(w, r, l.Fault(r.Context(), err, fault.FileAccess))
		return
	}
	defer stream.Close()
	body := &source{Reader: r.Body}
	_, copied := io.CopyBuffer(plainWriter{&moving{stream}}, body, make([]byte, copyBuffer))
	if body.broken != nil { // closing the stream tells the agent to throw away what came
		problem(w, r, fault.Wrap(fault.InvalidParameters, body.broken, "the transfer broke, and nothing was changed"))
		return
	}
	size, err := stream.Commit(time.Now().Add(stall))
	if err != nil {
		if copied != nil && !errors.As(err, new(*agent.Refusal)) {
			err = copied
		}
		problem(w, r, l.Fault(r.Context(), err, fault.FileAccess))
		return
	}
	writeJSON(w, http.StatusCreated, map[string]any{"path": filePath(r), "size": size})
}

func (s *Server) removeFile(w http.ResponseWriter, r *http.Request) {
	l, err := s.open(r, session.Ask{ID: r.PathValue("id")})
	if err != nil {
		problem(w, r, err)
		return
	}
	defer l.Release()
	if err := l.Agent().RemoveFile(r.Context(), filePath(r), r.URL.Query().Get("recursive") == "true"); err != nil {
		problem(w, r, l.Fault(r.Context(), err, fault.FileAccess))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
