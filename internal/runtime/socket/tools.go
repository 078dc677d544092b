package socket

import (
	"os"
	"path/filepath"
	"sync"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
)

// Tools guards the tool tree in the socket folder of a sandbox: while it changes, the sandbox is neither frozen nor
// removed.
type Tools struct {
	mu   sync.Mutex
	gone bool
}

// ToolsDir is the folder of the tool tree in a socket folder.
func ToolsDir(dir string) string { return filepath.Join(dir, wire.SharedName) }

// Change does what sandbox.Sandbox says, in a socket folder.
func (t *Tools) Change(dir string, change func(dir string) error) error {
	defer t.Hold()()
	if t.gone {
		return sandbox.ErrGone
	}
	return change(ToolsDir(dir))
}

// Hold keeps the tree as it is until release is called.
func (t *Tools) Hold() (release func()) {
	t.mu.Lock()
	return t.mu.Unlock
}

// Remove removes the folder of a sandbox, which has its socket folder.
func (t *Tools) Remove(dir string) error {
	defer t.Hold()()
	t.gone = true
	return os.RemoveAll(dir)
}
