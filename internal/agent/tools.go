package agent

import (
	"context"
	"net"
	"time"

	"sandlot/internal/agent/wire"
	"sandlot/internal/fault"
	"sandlot/proto/agentv1"
)

// ToolFile is a file of the tool tree.
type ToolFile struct {
	Path       string // in the tree
	Data       []byte
	Executable bool
	Link       string // if it is a symbolic link: to where
}

// ToolsLimit bounds a call of SetTools.
const ToolsLimit = 30 * time.Second

// UpdateTools changes the tool tree of the sandbox: it writes files, and removes those with the paths removed. With
// complete, files are all of the tree, and all others are removed.
func (c *Client) UpdateTools(ctx context.Context, files []ToolFile, removed []string, complete bool) error {
	q := &agentv1.SetToolsRequest{Removed: removed, Complete: complete}
	for _, f := range files {
		q.Files = append(q.Files, &agentv1.ToolFile{Path: f.Path, Data: f.Data, Executable: f.Executable, Link: f.Link})
	}
	_, err := timedCall(ctx, ToolsLimit, c.rpc.SetTools, q)
	return err
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

// serveTools serves a connection for calls of tools. Its greeting has been checked.
func (c *Client) serveTools(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	t := c.tools.Load()
	who, err := wire.ReadToolConn(conn)
	<-c.greetingSlots
	if !stop() || err != nil || t == nil {
		return
	}
	caller := Caller{Tag: who.Tag, Process: fault.Printable(who.Process, maxProcessID)}
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
