// Package socket is the host's end of a sandbox's socket folder: the socket that the agent dials, the file with the
// agent's secret, which is there only until the agent has said it, and the folder of the tool tree.
package socket

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// Folder is a socket folder with a listening socket. A nil *Folder is one that is closed.
type Folder struct {
	dir      string
	listener *net.UnixListener
	closed   chan struct{}

	mu            sync.Mutex
	secretRemoved bool
	isClosed      bool
}

// Listen opens the socket in an existing folder, in place of one that an earlier server has left. Every user may
// connect to the socket: the users in a sandbox may differ from the host's. Only the sandbox and the
// server's user may reach the folder, and the secret protects the socket.
func Listen(dir string) (*Folder, error) {
	path := filepath.Join(dir, wire.Socket)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	name, done, err := address(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the agent's socket folder: %w", err)
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	if err != nil {
		return nil, fmt.Errorf("opening the agent's socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	return &Folder{dir: dir, listener: l, closed: make(chan struct{})}, nil
}

// WriteSecret writes the file with the agent's secret, with that mode whatever the umask is. It stays until
// RemoveSecret. In a sandbox that boots no program of a user runs until then; in one that wakes they do, and who reads
// the secret can be the agent of this one sandbox.
func (f *Folder) WriteSecret(secret []byte, mode os.FileMode) error {
	path := filepath.Join(f.dir, wire.SecretFile)
	if err := os.WriteFile(path, []byte(hex.EncodeToString(secret)), 0o600); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// Accept waits for the agent's next connection. It is never called twice at a time. It
// returns sandbox.ErrGone once the folder is closed, or the socket is of no use any more.
func (f *Folder) Accept(ctx context.Context) (net.Conn, error) {
	if f == nil {
		return nil, sandbox.ErrGone
	}
	stop := context.AfterFunc(ctx, func() { f.listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		// An earlier call's function may still set the deadline. It says nothing of this call, whose own one runs
		// after ctx has ended, so that it cannot be undone here unseen.
		f.listener.SetDeadline(time.Time{})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c, err := f.listener.AcceptUnix()
		if err == nil {
			return c, nil
		}
		select {
		case <-f.closed:
			return nil, sandbox.ErrGone
		default:
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case IsTemporary(err):
			select { // the server is out of descriptors or memory
			case <-time.After(20 * time.Millisecond):
			case <-f.closed:
			case <-ctx.Done():
			}
		default:
			return nil, fmt.Errorf("%w: %w", sandbox.ErrGone, err)
		}
	}
}

// RemoveSecret removes the secret's file when a connection has said the secret. An agent that wakes may dial with the
// secret of before, and reads the file when that was refused.
func (f *Folder) RemoveSecret() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.secretRemoved {
		return nil
	}
	if err := os.Remove(filepath.Join(f.dir, wire.SecretFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the agent's secret: %w", err)
	}
	f.secretRemoved = true
	return nil
}

// Close closes the socket. Its file stays.
func (f *Folder) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isClosed {
		f.isClosed = true
		close(f.closed)
		f.listener.Close()
	}
}

// IsTemporary reports whether an error is that of a server that lacks descriptors or memory, or of an interrupted
// call. It says nothing of the sandbox.
func IsTemporary(err error) bool {
	for _, e := range temporary {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
