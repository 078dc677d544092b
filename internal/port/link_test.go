package port

import (
	"strings"
	"testing"
)

const id = "abcdefghijklmnopqrstuvwx27"

func links(t *testing.T, host string, port int, domain string) Links {
	t.Helper()
	l, err := NewLinks("http", host, port, domain)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLinks(t *testing.T) {
	for _, tt := range []struct {
		host         string
		port         int
		domain       string
		url, pathURL string
	}{
		{"localhost", 8000, "", "http://80-" + id + ".localhost:8000/", "http://localhost:8000/ports/" + id + "/80/"},
		{"127.0.0.1", 9000, "", "http://80-" + id + ".localhost:9000/", "http://127.0.0.1:9000/ports/" + id + "/80/"},
		{"::1", 9000, "", "http://80-" + id + ".localhost:9000/", "http://[::1]:9000/ports/" + id + "/80/"},
		{"10.0.0.5", 8000, "", "http://10.0.0.5:8000/ports/" + id + "/80/", "http://10.0.0.5:8000/ports/" + id +
			"/80/"},
		{"10.0.0.5", 8000, "ports.example.com", "http://80-" + id + ".ports.example.com:8000/",
			"http://10.0.0.5:8000/ports/" + id + "/80/"},
		{"localhost", 8000, "Ports.Example.com:81", "http://80-" + id + ".ports.example.com:81/",
			"http://localhost:8000/ports/" + id + "/80/"},
		{"localhost", 8000, "https://ports.example.com/", "https://80-" + id + ".ports.example.com/",
			"http://localhost:8000/ports/" + id + "/80/"},
		{"localhost", 8000, "https://ports.example.com:8443", "https://80-" + id + ".ports.example.com:8443/",
			"http://localhost:8000/ports/" + id + "/80/"},
	} {
		l := links(t, tt.host, tt.port, tt.domain)
		if got := l.URL(id, 80, ""); got != tt.url {
			t.Errorf("%s %q: %s, want %s", tt.host, tt.domain, got, tt.url)
		}
		if got := l.PathURL(id, 80, "tok"); got != tt.pathURL+"?sandlot_token=tok" {
			t.Errorf("%s %q: %s, want %s", tt.host, tt.domain, got, tt.pathURL)
		}
	}
	if got := links(t, "0.0.0.0", 8000, "").URL(id, 80, "t"); strings.Contains(got, "0.0.0.0") ||
		!strings.HasSuffix(got, "/80/?sandlot_token=t") {
		t.Errorf("any address: %s", got)
	}
	for _, bad := range []string{"a b", "ftp://x.y", "https://u@x.y", "x.y/path", "x.y?q", "x..y", "-x.y", "10.0.0.1",
		"x.y:0", "x.y:99999", "*.x.y", "https://"} {
		if _, err := NewLinks("http", "localhost", 8000, bad); err == nil {
			t.Errorf("%q is a domain", bad)
		}
	}
}

func TestHosts(t *testing.T) {
	plain, named := links(t, "localhost", 8000, ""), links(t, "localhost", 8000, "https://ports.example.com")
	for _, tt := range []struct {
		l       Links
		host    string
		claimed bool
		port    int // 0: means none
	}{
		{plain, "80-" + id + ".localhost:8000", true, 80},
		{plain, "80-" + id + ".localhost", true, 80},
		{plain, "80-" + id + ".localhost.", true, 80},
		{plain, "80-" + id + ".localhost.:8000", true, 80},
		{plain, "65535-" + strings.ToUpper(id) + ".LocalHost:1", true, 65535},
		{plain, "0-" + id + ".localhost", true, 0},
		{plain, "65536-" + id + ".localhost", true, 0},
		{plain, "080-" + id + ".localhost", true, 0},
		{plain, "+80-" + id + ".localhost", false, 0},
		{plain, "80-" + id[1:] + ".localhost", true, 0},
		{plain, "80-" + id + "a.localhost", true, 0},
		{plain, "80-home.localhost", true, 0},
		{plain, "80-" + id + ".x.localhost", true, 0},
		{plain, "a.80-" + id + ".localhost", false, 0}, // no page is ever there
		{plain, "sandlot.localhost", false, 0},         // may be the server itself, or an application of the user's
		{plain, "localhost:8000", false, 0},
		{plain, ".localhost", false, 0},
		{plain, "127.0.0.1:8000", false, 0},
		{plain, "[::1]:8000", false, 0},
		{plain, "", false, 0},
		{plain, "80-" + id + ".localhost.evil.example", false, 0},
		{plain, "80-" + id + ".ports.example.com", false, 0},
		{named, "80-" + id + ".ports.example.com", true, 80},
		{named, "80-" + id + ".PORTS.example.com.:443", true, 80},
		{named, "80-" + id + ".localhost", true, 80},
		{named, "80-x.ports.example.com", true, 0},
		{named, "sandlot.ports.example.com", false, 0},
		{named, "ports.example.com", false, 0},
		{named, "80-" + id + ".example.com", false, 0},
	} {
		if got := tt.l.IsPortHost(tt.host); got != tt.claimed {
			t.Errorf("%q is claimed: %v", tt.host, got)
		}
		session, port, ok := tt.l.ParseHost(tt.host)
		if ok != (tt.port != 0) || port != tt.port || ok && session != id {
			t.Errorf("%q means %q %d %v", tt.host, session, port, ok)
		}
	}
}

func TestPaths(t *testing.T) {
	for path, want := range map[string]struct {
		port int
		rest string
	}{
		"/ports/" + id + "/80/":            {80, "/"},
		"/ports/" + id + "/80":             {80, ""},
		"/ports/" + id + "/80/a%2Fb//c/..": {80, "/a%2Fb//c/.."},
		"/ports/" + id + "/80//x":          {80, "//x"},
		"/ports/" + id + "/080/":           {},
		"/ports/" + id + "/99999/":         {},
		"/ports/home/80/":                  {},
		"/ports/../mcp":                    {},
		"/ports/":                          {},
		"/ports":                           {},
		"/other/" + id + "/80/":            {},
	} {
		session, port, rest, ok := ParsePath(path)
		if ok != (want.port != 0) || ok && (session != id || port != want.port || rest != want.rest) {
			t.Errorf("%s means %q %d %q %v", path, session, port, rest, ok)
		}
	}
}
