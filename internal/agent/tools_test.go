package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"sandlot/internal/agent/wire"
	"sandlot/internal/sandbox"
	"sandlot/proto/agentv1"
	"sandlot/proto/agentv1/agentv1connect"
)

// TestCellOf: an interpreter, and a child that the running cell has started, belong to that cell. A child that is
// older belongs to none.
func TestCellOf(t *testing.T) {
	began := time.Now()
	at := func(d time.Duration) wire.ToolConn {
		return wire.ToolConn{Languages: []string{"node", "typescript"}, Child: true, Started: began.Add(d)}
	}
	itself := wire.ToolConn{Languages: []string{"node", "typescript"}}
	c := &Client{interps: map[string]*interpreter{"node": {}, "typescript": {}, "bash": {}}}
	if got := c.cellOf(itself); got != (Caller{}) {
		t.Errorf("no cell runs: %+v", got)
	}
	c.interps["node"].cell.Store(&runningCell{began, "running"})
	c.interps["typescript"].cell.Store(&runningCell{began.Add(time.Second), "waits"})
	c.interps["bash"].cell.Store(&runningCell{began, "other"})
	running := Caller{Tag: "running", Language: "node"}
	for what, tt := range map[string]struct {
		of   wire.ToolConn
		want Caller
	}{
		"the interpreter": {itself, running},
		"a child of it":   {at(time.Millisecond), running},
		"a child that was started as the cell began": {at(-wire.StartError), running},
		"an older child":                       {at(-wire.StartError - time.Millisecond), Caller{}},
		"a much older one":                     {at(-time.Hour), Caller{}},
		"an interpreter that has no languages": {wire.ToolConn{Child: true}, Caller{}},
	} {
		if got := c.cellOf(tt.of); got != tt.want {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// toolBox is a sandbox with a folder for its tool tree, and its agent.
type toolBox struct {
	sandbox.Sandbox
	agentv1connect.AgentClient
	dir    string
	refuse error // of ChangeTools
	knows  bool  // the agent knows of such folders
	never  bool  // the agent knows of no tool tree
	asked  []*agentv1.SetToolsRequest
}

func (b *toolBox) ChangeTools(change func(dir string) error) error {
	if b.refuse != nil {
		return b.refuse
	}
	return change(b.dir)
}

func (b *toolBox) SetTools(_ context.Context, r *agentv1.SetToolsRequest) (*agentv1.SetToolsResponse, error) {
	b.asked = append(b.asked, r)
	if b.never {
		return nil, refusal(connect.CodeUnimplemented, "none")
	}
	return &agentv1.SetToolsResponse{Shared: b.knows}, nil
}

// TestShareTools: the tree is written to the folder that the runtime shares, unless there is none, or the agent is of
// a version that does not know of it: then the agent writes it.
func TestShareTools(t *testing.T) {
	for what, tt := range map[string]struct {
		refuse       error
		knows, share bool
	}{
		"shared":              {nil, true, true},
		"a daemon of its own": {errors.ErrUnsupported, true, false},
		"an older agent":      {nil, false, false},
	} {
		b := &toolBox{dir: filepath.Join(t.TempDir(), "mcp"), refuse: tt.refuse, knows: tt.knows}
		c := &Client{rpc: b, sandbox: b}
		update := func(complete bool, removed []string, files ...ToolFile) {
			t.Helper()
			if err := c.UpdateTools(t.Context(), files, removed, complete); err != nil {
				t.Fatal(err)
			}
		}
		update(true, nil)
		if _, err := os.Lstat(b.dir); err == nil {
			t.Errorf("%s: without files there is a folder", what)
		}
		b.asked = nil
		update(false, nil, ToolFile{Path: "first", Data: []byte("0")}) // no server had a tool until now
		if to, _ := os.Readlink(filepath.Join(b.dir, wire.ToolSocket)); tt.share && to != "/run/mcp.socket" {
			t.Errorf("%s: after the first change the socket is at %q", what, to)
		}
		update(true, nil, ToolFile{Path: "a/one", Data: []byte("1")}, ToolFile{Path: "two", Data: []byte("2")})
		update(false, []string{"two"}, ToolFile{Path: "three", Data: []byte("3")})
		written := slices.ContainsFunc(b.asked, func(r *agentv1.SetToolsRequest) bool { return len(r.Files) > 0 })
		found, _ := filepath.Glob(b.dir + "/*/*")
		more, _ := filepath.Glob(b.dir + "/*")
		here := len(found) == 1 && len(more) == 3 // a, socket, three
		if written == tt.share || here != tt.share {
			t.Errorf("%s: the agent was asked %v; in the folder are %q, %q", what, b.asked, found, more)
		}
		if to, _ := os.Readlink(filepath.Join(b.dir, wire.ToolSocket)); tt.share && to != "/run/mcp.socket" {
			t.Errorf("%s: the socket is at %q", what, to)
		}
		if !tt.share && len(b.asked[len(b.asked)-1].Removed) != 1 {
			t.Errorf("%s: nothing was removed", what)
		}
	}
	b := &toolBox{dir: filepath.Join(t.TempDir(), "mcp"), never: true}
	c := &Client{rpc: b, sandbox: b}
	err := c.UpdateTools(t.Context(), []ToolFile{{Path: "one", Data: []byte("1")}}, nil, true)
	if _, statErr := os.Lstat(b.dir); ReasonOf(err) != Unsupported || statErr == nil {
		t.Errorf("an agent without trees: %v, and the folder: %v", err, statErr)
	}
}
