package guest

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"sandlot/internal/agent/wire"
	"sandlot/proto/agentv1"
)

// TestOrphan: an agent without a host ends after its time, which counts from its
// last link, and anew in a copy.
func TestOrphan(t *testing.T) {
	const orphan = time.Second
	dir := t.TempDir()
	secret := make([]byte, wire.SecretLen)
	socket := filepath.Join(dir, "s")
	a := New(Config{Socket: socket, Secret: secret, Boot: new(agentv1.Boot), Env: os.Environ(), Orphan: orphan})
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(context.Background()) }()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wire.Admit(c, secret, nil); err != nil {
		t.Fatal(err)
	}
	mux, err := yamux.Client(c, wire.Mux())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Fatalf("it ended while it had a host: %v", err)
	case <-time.After(2 * orphan):
	}
	l.Close()
	mux.Close()
	// In the copy that this becomes the clock begins anew.
	time.Sleep(orphan / 2)
	again := time.Now()
	if err := os.WriteFile(filepath.Join(dir, wire.SecretFile), []byte(hex.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))), 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, ErrOrphaned) || time.Since(began) < 3*orphan || time.Since(again) < orphan {
			t.Errorf("%v after %s, %s as a copy", err, time.Since(began), time.Since(again))
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it lives on")
	}
}

// TestPause: agents without a host do not dial all the time, and are never far
// from the next attempt.
func TestPause(t *testing.T) {
	dials := 0
	for alone := time.Duration(0); alone < time.Minute; dials++ {
		p := pause(alone)
		if p < 100*time.Millisecond || p > 5*time.Second {
			t.Fatalf("a pause of %s after %s", p, alone)
		}
		alone += p
	}
	if dials > 40 {
		t.Errorf("%d dials in the first minute", dials)
	}
}
