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
	a := New(Config{Socket: socket, Secret: secret, Boot: new(agentv1.Boot), Env: os.Environ(), OrphanTimeout: orphan})
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
	mux, err := yamux.Client(c, wire.HostMuxConfig())
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
	if err := os.WriteFile(filepath.Join(dir, wire.SecretFile),
		[]byte(hex.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))), 0o600); err != nil {
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

// TestRedial: an agent whose link broke is back soon where a server is there, and
// agents without one do not dial all the time.
func TestRedial(t *testing.T) {
	tests := []struct {
		name  string
		end   linkResult // of each attempt but the first, which had held a link
		first [2]time.Duration
		dials [2]int // in the first minute
	}{
		{"a server that takes it", linkBroken, [2]time.Duration{10 * time.Millisecond, 100 * time.Millisecond},
			[2]int{25, 60}},
		{"a server that refuses it", linkFailed, [2]time.Duration{10 * time.Millisecond, 200 * time.Millisecond},
			[2]int{25, 60}},
		{"nobody", noServer, [2]time.Duration{time.Second, 3 * time.Second}, [2]int{12, 25}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r redialBackoff
			alone := r.pause(linkBroken, time.Hour, 0)
			if alone < minPause || alone > 10*minPause {
				t.Fatalf("the first attempt after a break comes after %s", alone)
			}
			dials := 1
			for ; alone < time.Minute; dials++ {
				p := r.pause(tt.end, time.Millisecond, alone)
				if dials == 1 && (p < tt.first[0] || p > 2*tt.first[1]) {
					t.Errorf("the second attempt comes after %s", p)
				}
				if p > 5*time.Second {
					t.Errorf("a pause of %s after %s", p, alone)
				}
				alone += p
			}
			if dials < tt.dials[0] || dials > tt.dials[1] {
				t.Errorf("%d dials in the first minute", dials)
			}
		})
	}
	// Where nobody is, each of many agents dials once at the loss, not at the same
	// moment, and then seldom.
	perTenth := map[time.Duration]int{}
	for range 200 {
		var r redialBackoff
		for at := r.pause(linkBroken, time.Hour, 0); at < 4*time.Second; at += r.pause(noServer, 0, at) {
			perTenth[at.Truncate(100*time.Millisecond)]++
		}
	}
	for at, n := range perTenth {
		if at > 0 && n > 60 {
			t.Errorf("%d of 200 agents dial within a tenth of a second, %s after the loss", n, at)
		}
	}
}
