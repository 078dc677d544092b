package cli

import (
	"net"
	"strings"
	"testing"

	"sandlot/internal/config"
)

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
