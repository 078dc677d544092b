package api

import (
	"cmp"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"sandlot/internal/api/conn"
	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/fault"
	"sandlot/internal/hub"
)

// requestedFile returns the session and path of a request.
func requestedFile(r *http.Request) hub.FilePath {
	return hub.FilePath{SessionID: hub.SessionID(r.PathValue("id")), Path: path.Clean("/" + r.PathValue("path"))}
}

// parseRange reads a Range header with one range. limit is in bytes; 0: to the end of the file.
func parseRange(h string) (offset, limit uint64, ok bool) {
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

func (s *Server) download(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
	offset, limit, ranged := parseRange(r.Header.Get("Range"))
	f, err := s.Hub.ReadFile(r.Context(), p, requestedFile(r), hub.ByteRange{Offset: offset, Limit: limit})
	if err != nil {
		return err
	}
	defer f.Close()
	size := uint64(f.Size)
	h := w.Header()
	if f.ETag != "" {
		h.Set("ETag", f.ETag)
		if slices.Contains(splitTags(r.Header.Values("If-None-Match")), f.ETag) {
			w.WriteHeader(http.StatusNotModified)
			return nil
		}
	}
	if ranged && offset > size {
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		return f.Fail(fault.New(fault.InvalidParameters,
			"the range begins after the end of the file, which has %d bytes", size))
	}
	length := size - offset
	if limit > 0 {
		length = min(length, limit)
	}
	// A browser must never show a file of a sandbox as a page of this origin.
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Content-Disposition",
		mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(requestedFile(r).Path)}))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Length", strconv.FormatUint(length, 10))
	status := http.StatusOK
	if ranged {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, offset+max(length, 1)-1, size))
		status = http.StatusPartialContent
	}
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	n, err := conn.Copy(w, io.LimitReader(f, int64(length)), 256<<10)
	if err != nil || uint64(n) != length {
		f.Fail(cmp.Or(err, io.ErrUnexpectedEOF)) // for the event
		panic(http.ErrAbortHandler)              // the client must notice that the file is incomplete
	}
	return nil
}

// upload writes a file. It requires a Content-Length, so that a broken transfer is noticed.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	s.withLength(w, r, func(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
		at := requestedFile(r)
		holds, err := condition(r)
		if err != nil {
			return err
		}
		size, etag, err := s.Hub.WriteFile(r.Context(), p, hub.FileContent{FilePath: at, Content: r.Body,
			Size: r.ContentLength, Holds: holds})
		if err != nil {
			return err
		}
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
		writeJSON(w, http.StatusCreated, protocol.Uploaded{Path: at.Path, Size: size})
		return nil
	})
}

// restore replaces the content of the database by that of a backup, after the answer.
func (s *Server) restore(w http.ResponseWriter, r *http.Request) {
	s.withLength(w, r, func(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
		pending, err := s.Hub.RestoreDatabase(r.Context(), p, r.Body, r.ContentLength)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusAccepted, pending)
		return nil
	})
}

// withLength serves a request whose body is not read into memory, and has a Content-Length.
func (s *Server) withLength(w http.ResponseWriter, r *http.Request, serve streamer) {
	if r.ContentLength < 0 {
		w.Header().Set("Connection", "close")
		s.problem(w, r, wrongRequest(http.StatusLengthRequired, "LENGTH_REQUIRED",
			"send a Content-Length, so that a broken transfer is noticed"))
		return
	}
	s.stream(func(w http.ResponseWriter, r *http.Request, p auth.Principal) error {
		markUnbuffered(r)
		return serve(w, r, p)
	})(w, r)
}

func fileRemoval(_ http.ResponseWriter, r *http.Request) (hub.Removal, error) {
	holds, err := condition(r)
	return hub.Removal{FilePath: requestedFile(r), Recursive: r.URL.Query().Get("recursive") == "true", Holds: holds}, err
}

func statPath(_ http.ResponseWriter, r *http.Request) (hub.StatPath, error) {
	return hub.StatPath{FilePath: requestedFile(r)}, nil
}

func folderPath(_ http.ResponseWriter, r *http.Request) (hub.FolderPath, error) {
	return hub.FolderPath{FilePath: requestedFile(r)}, nil
}

// moveRequest is the body of a request to move a file.
type moveRequest struct {
	From    string `json:"from" jsonschema:"The absolute path of a file or folder."`
	To      string `json:"to" jsonschema:"Its new absolute path. Missing folders above it are made."`
	Replace bool   `json:"replace,omitempty" jsonschema:"Replace a file that is there. A folder is never replaced."`
}

func fileMove(w http.ResponseWriter, r *http.Request) (m hub.FileMove, err error) {
	var q moveRequest
	if err := decode(w, r, 64<<10, &q, "from, to and replace"); err != nil {
		return m, err
	}
	holds, err := condition(r)
	if holds.Absent { // about the new name
		holds.Absent, q.Replace = false, false
	}
	return hub.FileMove{FilePath: hub.FilePath{SessionID: hub.SessionID(r.PathValue("id")), Path: q.To},
		From: q.From, Replace: q.Replace, Holds: holds}, err
}

// splitTags returns the entity tags of a header, which are in quotes.
func splitTags(values []string) (tags []string) {
	for _, tag := range strings.Split(strings.Join(values, ","), ",") {
		if tag = strings.TrimSpace(tag); tag != "" {
			tags = append(tags, tag)
		}
	}
	return tags
}

// maxTags is how many entity tags a condition has.
const maxTags = 16

// condition reads the conditions of a request that changes a file.
func condition(r *http.Request) (c hub.FileCondition, err error) {
	wrong := func(name, text string) (hub.FileCondition, error) {
		return hub.FileCondition{}, fault.Argument(name, "the header %s must be %s", name, text)
	}
	match, none := splitTags(r.Header.Values("If-Match")), splitTags(r.Header.Values("If-None-Match"))
	switch {
	case len(none) > 1 || len(none) == 1 && none[0] != "*":
		return wrong("If-None-Match", "*: a file that does not exist yet")
	case len(match) > maxTags || len(match) > 1 && slices.Contains(match, "*"):
		return wrong("If-Match", fmt.Sprintf("* or up to %d ETags", maxTags))
	}
	c.Absent = len(none) == 1
	for _, tag := range match {
		strong := strings.TrimPrefix(tag, "W/")
		switch {
		case tag == "*":
			c.Exists = true
		case len(strong) < 2 || strong[0] != '"' || strong[len(strong)-1] != '"':
			return wrong("If-Match", "* or an ETag with its quotes")
		case strong != tag: // a weak one never matches (RFC 9110, 13.1.1)
			c.Versions = append(c.Versions, "weak")
		default:
			c.Versions = append(c.Versions, strings.Trim(tag, `"`))
		}
	}
	return c, nil
}

func resultsQuery(_ http.ResponseWriter, r *http.Request) (q hub.ResultsQuery, err error) {
	q.SessionID = hub.SessionID(r.PathValue("id"))
	if after := r.URL.Query().Get("after"); after != "" {
		if q.After, err = strconv.ParseInt(after, 10, 64); err != nil {
			err = fault.Argument("after", "after must be the id of a result")
		}
	}
	return q, err
}
