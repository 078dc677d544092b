package app

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandlot/internal/auth"
	"sandlot/internal/config"
	"sandlot/internal/fault"
	"sandlot/internal/store"
)

// listener is a server as far as it listens.
func listener(t *testing.T, port int) *App {
	t.Helper()
	c := config.Default()
	c.Server.StateDir, c.Server.Port = t.TempDir(), port
	db, err := store.Open(t.Context(), c.Server.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	a := &App{Config: c}
	if a.authenticator, err = auth.NewAuthenticator(t.Context(), auth.Mode(c.Server.Auth), c.Server.Host,
		db, nil); err != nil {
		t.Fatal(err)
	}
	return a
}

// Somebody else on ::1 would get the tokens of clients that try it first.
func TestTheOtherLoopbackIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		// No IPv6: that alone is no error.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		network, owner, err := listener(t, port).Listen(t.Context())
		if err != nil || len(network) != 1 {
			t.Fatalf("%v, %v", network, err)
		}
		network[0].Close()
		owner.Close()
		return
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	_, _, err = listener(t, port).Listen(t.Context())
	if !fault.Is(err, fault.Configuration) || !strings.Contains(err.Error(), "::1 port "+strconv.Itoa(port)) ||
		!strings.Contains(err.Error(), "--port") {
		t.Errorf("error %v", err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatalf("what was opened is not closed: %v", err)
	}
	free.Close()
}

// The owner's socket is the owner's whatever the umask is, which nobody changes.
func TestOwnerSocket(t *testing.T) {
	a := listener(t, 0)
	old := unix.Umask(0)
	defer unix.Umask(old)
	l, err := a.ListenOwner()
	if err != nil {
		t.Fatal(err)
	}
	path := SocketPath(a.Config.Server.StateDir)
	if st, err := os.Stat(path); err != nil || st.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if mask := unix.Umask(0); mask != 0 {
		t.Errorf("the umask is %o", mask)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(a.Config.Server.StateDir, "*s*")); len(left) != 3 { // the database's
		t.Errorf("%v is there", left)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
	again, err := a.ListenOwner()
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
