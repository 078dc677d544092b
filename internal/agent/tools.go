package agent

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/toolfolder"
	"sandlot/proto/agentv1"
)

// ToolFile is a file of the tool tree.
type ToolFile = toolfolder.File

// ToolsLimit bounds a call of SetTools.
const ToolsLimit = 30 * time.Second

// UpdateTools changes the tool tree of the sandbox: it writes files, and removes those with the paths removed. With
// complete, files are all of the tree, and all others are removed. Where the sandbox's runtime shares a folder for the
// tree, the files are written there, and cost the sandbox no memory.
func (c *Client) UpdateTools(ctx context.Context, files []ToolFile, removed []string, complete bool) error {
	shared, err := c.shareTools(ctx, toolfolder.Change{Files: files, Removed: removed, Complete: complete})
	if shared || err != nil {
		return err
	}
	q := &agentv1.SetToolsRequest{Removed: removed, Complete: complete}
	for _, f := range files {
		q.Files = append(q.Files, &agentv1.ToolFile{Path: f.Path, Data: f.Data, Executable: f.Executable, Link: f.Link})
	}
	_, err = timedCall(ctx, ToolsLimit, c.rpc.SetTools, q)
	return err
}

// toolSocket is the file of a shared tree that leads to the agent's socket.
var toolSocket = ToolFile{Path: wire.ToolSocket, Link: wire.ToolsDir + wire.SharedSocketSuffix}

// shareTools changes the tool tree in the folder that the sandbox's runtime shares, and reports whether the sandbox has
// it from there. If it has not, only a complete change gives it the tree.
func (c *Client) shareTools(ctx context.Context, change toolfolder.Change) (shared bool, err error) {
	if c.ownTools.Load() {
		return false, nil
	}
	none := len(change.Files) == 0
	change.Files = append(slices.Clone(change.Files), toolSocket) // the folder may be new, or have lost its files
	err = c.sandbox.ChangeTools(func(dir string) error {
		if _, err := os.Lstat(dir); err == nil {
			none = false
		}
		if none {
			return nil
		}
		return writeTools(dir, change)
	})
	if errors.Is(err, errors.ErrUnsupported) {
		c.ownTools.Store(true)
		return false, nil
	}
	if err != nil || none {
		return true, err
	}
	r, err := timedCall(ctx, ToolsLimit, c.rpc.SetTools, &agentv1.SetToolsRequest{Shared: true})
	if err != nil && ReasonOf(err) != Unsupported || err == nil && r.Shared {
		return true, err
	}
	c.ownTools.Store(true) // an older agent, which may know of no tree at all
	return false, c.sandbox.ChangeTools(os.RemoveAll)
}

// writeTools changes a tool tree in a folder, which it makes if there is none.
func writeTools(dir string, change toolfolder.Change) error {
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = os.Chmod(dir, 0o755) // whatever the umask is
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return toolfolder.Write(root, change)
}

// OnEnd calls f, in a goroutine of its own, when the client is closed, or its sandbox is gone.
func (c *Client) OnEnd(f func()) { context.AfterFunc(c.ctx, f) }

// Caller says which program of a sandbox calls a tool.
type Caller struct {
	Tag     string // of the code or command that runs; empty: of none
	Process string // the id of the background process; empty: it is none
	// Language is that of the interpreter in which the code with the tag runs; empty: it runs in none. What an earlier
	// cell has left behind in the interpreter, such as a thread, cannot be told apart from that code.
	Language string
}

// serveTools serves a connection for calls of tools. Its greeting has been checked; it calls checked when it knows
// whose the connection is.
func (c *Client) serveTools(ctx context.Context, conn net.Conn, checked func()) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	t := c.tools.Load()
	who, err := wire.ReadToolConn(conn)
	checked()
	if !stop() || err != nil || t == nil {
		return
	}
	caller := Caller{Tag: who.Tag, Process: line(who.Process, maxProcessID)}
	(*t).Serve(ctx, conn, func() Caller {
		if len(who.Languages) > 0 {
			return c.cellOf(who)
		}
		return caller
	})
}

// cellOf returns the cell to which a program of an interpreter belongs: the one that runs now, unless the program is
// older than that. If cells of several languages run, all but the first wait for the interpreter.
func (c *Client) cellOf(who wire.ToolConn) (caller Caller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first time.Time
	for _, l := range who.Languages {
		i := c.interps[l]
		if i == nil {
			continue
		}
		if cell := i.cell.Load(); cell != nil && (first.IsZero() || cell.began.Before(first)) {
			caller, first = Caller{Tag: cell.tag, Language: l}, cell.began
		}
	}
	if who.Child && who.Started.Add(wire.StartError).Before(first) {
		return Caller{}
	}
	return caller
}
