// Package console serves the web console: its page and what that loads, and the log-ins of browsers. What the console
// shows and does goes through the HTTP API, as for any other client.
package console

import (
	"compress/gzip"
	"embed"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// Path is the path of the console's page.
const Path = "/console/"

// LocalHost is a host name for the console on this machine. The cookie of a log-in there does not reach the other servers of
// the machine, as one for localhost does: cookies ignore ports.
const LocalHost = "console.localhost"

// Policy is the Content-Security-Policy of the console's page: nothing but the server's own scripts run, and no text
// becomes HTML.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; " +
	"font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// dist is what the program in internal/console/build makes of internal/console/web. Its page is index.html. All else is
// compressed, and its names contain hashes of the content.
//
//go:embed dist
var dist embed.FS

// page is the name of the page in dist, and compressed the end of the names of compressed files.
const page, compressed = "index.html", ".gz"

// types are the types of the compressed files. The table of the machine may have others, with which no browser runs a
// script.
var types = map[string]string{".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	".txt": "text/plain; charset=utf-8"}

// ServeFile serves a file of the console; the name is its path below Path, and empty for the page. It returns false,
// and sends nothing, when there is none.
func ServeFile(w http.ResponseWriter, r *http.Request, name string) bool {
	if name == "" {
		name = page
	}
	if path.Clean(name) != name || strings.Contains(name, "/") {
		return false
	}
	h := w.Header()
	if name == page {
		text, err := dist.ReadFile("dist/" + page)
		if err != nil {
			return false
		}
		setHeaders(h)
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(text) // fails when the browser is gone
		return true
	}
	kind := types[path.Ext(name)]
	f, err := dist.Open("dist/" + name + compressed)
	if err != nil || kind == "" {
		return false
	}
	defer f.Close()
	setHeaders(h)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Content-Type", kind)
	h.Set("Vary", "Accept-Encoding")
	sendCompressed(w, r, f)
	return true
}

// sendCompressed sends a compressed file as it is, or unpacked to a client that does not take it so.
func sendCompressed(w http.ResponseWriter, r *http.Request, f fs.File) {
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.Copy(w, f) // fails when the browser is gone
		return
	}
	plain, err := gzip.NewReader(f)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = io.Copy(w, plain)
}

// setHeaders sets the headers of all that the console's page consists of.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}
