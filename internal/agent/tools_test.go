package agent

import (
	"testing"
	"time"

	"sandlot/internal/agent/wire"
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
