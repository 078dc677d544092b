package process

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"sandlot/proto/agentv1"
)

func TestTooManyInTheBackground(t *testing.T) {
	ps := Processes{table: map[string]*Process{}}
	for n := range maxLive {
		id := fmt.Sprint("fake", n)
		ps.table[id] = &Process{id: id, kind: "background", done: make(chan struct{})}
	}
	_, err := ps.StartProcess(t.Context(), &agentv1.StartProcessRequest{
		Command: &agentv1.Command{Argv: []string{"sh", "-c", "true"}}})
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "stop one first") {
		t.Errorf("error %v", err)
	}
}
