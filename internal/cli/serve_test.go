package cli

import (
	"errors"
	"net"
	"strings"
	"testing"

	"sandlot/internal/config"
	"sandlot/internal/sandbox"
	"sandlot/internal/sandbox/sandboxtest"
)

// shooter is a runtime that may make snapshots.
type shooter struct {
	sandbox.Snapshotter
	sandboxtest.Fake
	why error
}

func (s *shooter) CanSnapshot() error { return s.why }

// The doctor says whether there are snapshots, or else why not.
func TestDoctorOnSnapshots(t *testing.T) {
	for want, rt := range map[string]sandbox.Runtime{
		"new sandboxes start from one that has booted, some seconds after the server's start":   &shooter{},
		"none, each sandbox boots: they are turned off":                                         &shooter{why: errors.New("they are turned off")},
		"none, each sandbox boots: the runtime " + (&sandboxtest.Fake{}).Name() + " makes none": &sandboxtest.Fake{},
	} {
		if got := snapshots(rt); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The start tells clients the address that they have for the server.
func TestWelcome(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8123}
	c := config.Default()
	plain := welcome(c, at, false)
	if n := strings.Count(plain, "http://localhost:8123/mcp"); n != 5 || strings.Contains(plain, "public_url") || strings.Contains(plain, "TOKEN") {
		t.Errorf("%d times:\n%s", n, plain)
	}
	c.Server.Host, c.Server.PublicURL = "0.0.0.0", "https://sandlot.example.com/box"
	public := welcome(c, at, true)
	says(t, public, "is at https://sandlot.example.com/box/mcp (public_url), and listens on 127.0.0.1:8123\n", "claude mcp add --transport http sandlot https://sandlot.example.com/box/mcp --header")
	if n := strings.Count(public, "https://sandlot.example.com/box/mcp"); n != 5 || strings.Contains(public, "http://") {
		t.Errorf("%d times:\n%s", n, public)
	}
}
