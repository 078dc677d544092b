package socket

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// TestFolder: the secret's file is there until it was said, a later server takes over the folder, and
// closing ends whoever waits.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // too long for the address of a socket
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("0123456789")
	if err := f.WriteSecret(secret, 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, wire.SecretFile)
	if text, err := os.ReadFile(file); err != nil || string(text) != hex.EncodeToString(secret) {
		t.Errorf("the secret's file: %q, %v", text, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := f.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited in vain: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("removed before the agent dialed:", err)
	}
	for range 2 {
		t.Chdir(dir)
		go func() {
			if c, err := net.Dial("unix", wire.Socket); err == nil {
				defer c.Close()
				c.Read(make([]byte, 1))
			}
		}()
		c, err := f.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := f.RemoveSecret(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Error("the secret's file is still there:", err)
		}
		f.Close()
		f.Close()
		if _, err := f.Accept(t.Context()); !errors.Is(err, sandbox.ErrGone) {
			t.Errorf("closed: %v", err)
		}
		if f, err = Listen(dir); err != nil {
			t.Fatal(err)
		}
	}
	defer f.Close()
	waiting := make(chan error)
	go func() {
		_, err := f.Accept(t.Context())
		waiting <- err
	}()
	f.Close()
	if err := <-waiting; !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("closed while it waits: %v", err)
	}
}

// TestLateDeadline: the deadline of an earlier call, which may be set after that call has returned, ends no later one.
func TestLateDeadline(t *testing.T) {
	dir := t.TempDir()
	f, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	accepted := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	accept := func() {
		c, err := f.Accept(ctx)
		if err == nil {
			c.Close()
		}
		accepted <- err
	}
	go accept()
	for range 10 {
		time.Sleep(5 * time.Millisecond)
		f.listener.SetDeadline(time.Unix(1, 0))
	}
	c, err := net.Dial("unix", filepath.Join(dir, wire.Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := <-accepted; err != nil {
		t.Errorf("accepting: %v", err)
	}
	go accept()
	time.Sleep(5 * time.Millisecond)
	cancel()
	if err := <-accepted; !errors.Is(err, context.Canceled) {
		t.Errorf("its own end: %v", err)
	}
}
