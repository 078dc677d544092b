package api

import (
	"cmp"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
	"sandlot/internal/limit"
)

// stall is how long a transfer of a file may stand still.
const stall = time.Minute

const copyBuffer = 256 << 10

// place is the file that a request is about.
func place(r *http.Request) hub.Place {
	return hub.Place{SessionID: hub.SessionID(r.PathValue("id")), Path: path.Clean("/" + r.PathValue("path"))}
}

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
	p, _ := auth.From(r.Context())
	offset, limit, ranged := span(r.Header.Get("Range"))
	f, err := s.Hub.ReadFile(r.Context(), p, place(r), hub.Span{Offset: offset, Limit: limit})
	if err != nil {
		problem(w, r, err)
		return
	}
	defer f.Close()
	size := f.Size
	if ranged && offset > uint64(size) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		problem(w, r, f.Fail(fault.New(fault.InvalidParameters, "the range begins after the end of the file, which has %d bytes", size)))
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
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(place(r).Path)}))
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
	n, err := io.CopyBuffer(plainWriter{w}, io.LimitReader(f, int64(length)), make([]byte, copyBuffer))
	if err != nil || uint64(n) != length {
		f.Fail(cmp.Or(err, io.ErrUnexpectedEOF))
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// plainWriter hides ReadFrom, which would read in small pieces.
type plainWriter struct{ io.Writer }

// Uploaded is the answer to a file that was written.
type Uploaded struct {
	Path string `json:"path"`
	Size int64  `json:"size"` // bytes
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
	p, _ := auth.From(r.Context())
	at := place(r)
	size, err := s.Hub.WriteFile(r.Context(), p, at, r.Body, r.ContentLength)
	respond(w, r, http.StatusCreated, Uploaded{at.Path, size}, err)
}

func (s *Server) removeFile(w http.ResponseWriter, r *http.Request) {
	p, _ := auth.From(r.Context())
	_, err := hub.RemoveFile.Do(r.Context(), s.Hub, p, hub.Removal{Place: place(r),
		Recursive: r.URL.Query().Get("recursive") == "true"})
	respondDone(w, r, err)
}
