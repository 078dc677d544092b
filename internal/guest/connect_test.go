package guest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
)

// An agent whose socket is that of connect reaches the host over one stream of bytes, and a new
// connect takes the place of one that ended.
func TestConnect(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	a := New(Config{Socket: socket, Secret: make([]byte, wire.SecretLen), Env: []string{"PATH=/usr/bin:/bin"}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for range 2 {
		outside, inside := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- carry(t.Context(), socket, inside) }()
		bridge, err := wire.NewBridge(outside, true)
		if err != nil {
			t.Fatal(err)
		}
		linked := make(chan struct{})
		go func() {
			defer close(linked)
			for {
				c, err := bridge.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				purpose, err := wire.Admit(c, make([]byte, wire.SecretLen), nil)
				if err == nil && purpose == wire.ForLink {
					return
				}
				t.Errorf("%v, %v", purpose, err)
				c.Close()
			}
		}()
		select {
		case <-linked:
		case <-time.After(20 * time.Second):
			t.Fatal("the agent has made no link")
		}
		if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o666 {
			t.Errorf("the socket: %v, %v", st, err)
		}
		bridge.Close()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("connect does not end with its stream")
		}
		if left, err := os.ReadDir(filepath.Dir(socket)); err != nil || len(left) != 1 {
			t.Errorf("in the folder of the socket: %v, %v", left, err)
		}
	}
}
