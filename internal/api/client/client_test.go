package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"sandlot/internal/api/protocol"
	"sandlot/internal/fault"
)

func TestClient(t *testing.T) {
	var got *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		if strings.HasSuffix(r.URL.Path, "/bad") {
			w.WriteHeader(http.StatusNotFound)
			json.NewEncoder(w).Encode(protocol.NewProblem(fault.New(fault.SessionNotFound, "abc")))
			return
		}
		if strings.HasSuffix(r.URL.Path, "/page") {
			w.WriteHeader(502)
			io.WriteString(w, "<h1>\x1b[31mproxy"+strings.Repeat("x", 10_000))
			return
		}
		io.WriteString(w, `{"x":"y"}`)
	}))
	defer s.Close()
	c, err := New("", s.URL+"/mcp", "slt_x")
	if err != nil {
		t.Fatal(err)
	}
	if !c.Alive(t.Context()) {
		t.Error("the server is not alive")
	}
	var out struct{ X string }
	err = c.JSON(t.Context(), "POST", "/v1/a", map[string]int{"b": 1}, &out)
	if err != nil || out.X != "y" || got.URL.Path != "/v1/a" || got.Header.Get("Authorization") != "Bearer slt_x" {
		t.Errorf("%v, %v, %v", err, out, got)
	}
	err = c.JSON(t.Context(), "GET", "/v1/bad", nil, nil)
	var p *protocol.Problem
	if !errors.As(err, &p) || p.ErrorCode != "SESSION_NOT_FOUND" || !strings.Contains(err.Error(), "abc") ||
		!strings.Contains(err.Error(), "\n  - ") {
		t.Errorf("a problem: %v", err)
	}
	err = c.JSON(t.Context(), "GET", "/v1/page", nil, nil)
	if err == nil || len(err.Error()) > 700 || strings.ContainsRune(err.Error(), 0x1b) ||
		!strings.Contains(err.Error(), "502") {
		t.Errorf("an answer that is none: %v", err)
	}
	var b bytes.Buffer
	_, err = c.Download(t.Context(), "a/b", "dir/ä %?#.txt", &b)
	const escaped = "/a%2Fb/files/dir/%C3%A4%20%25%3F%23.txt"
	if err != nil || got.URL.Path != "/v1/sessions/a/b/files/dir/ä %?#.txt" ||
		got.URL.RawPath != "/v1/sessions"+escaped && !strings.Contains(got.RequestURI, escaped) {
		t.Errorf("download: %v, %q", err, got.RequestURI)
	}
	err = c.Upload(t.Context(), "s", "/f", strings.NewReader("abc"), 3)
	if err != nil || got.ContentLength != 3 || got.Method != "PUT" {
		t.Errorf("upload: %v, %v", err, got)
	}
	if err := c.Upload(t.Context(), "s", "/f", strings.NewReader(""), 0); err != nil || got.ContentLength != 0 {
		t.Errorf("upload of nothing: %v, %d", err, got.ContentLength)
	}
	s.Close()
	if c.Alive(t.Context()) {
		t.Error("a closed server is alive")
	}
	if err := c.JSON(t.Context(), "GET", "/", nil, nil); err == nil || !strings.Contains(err.Error(), "sandlot serve") {
		t.Errorf("no server: %v", err)
	}
	for _, bad := range []string{"localhost:8000", "ftp://x", "http://", "://", "x"} {
		if _, err := New("", bad, ""); err == nil {
			t.Errorf("server %q was taken", bad)
		}
	}
	if c, err := New(os.DevNull, "", ""); err != nil || c.Alive(t.Context()) {
		t.Errorf("a socket that is none: %v", err)
	}
}
