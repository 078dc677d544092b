package process

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"sandlot/proto/agentv1"
)

func TestTooManyInTheBackground(t *testing.T) {
	ps := Processes{byID: map[string]*Process{}}
	for n := range maxBackground {
		id := fmt.Sprint("fake", n)
		ps.byID[id] = &Process{id: id, kind: "background", done: make(chan struct{})}
	}
	_, err := ps.StartProcess(t.Context(), &agentv1.StartProcessRequest{
		Command: &agentv1.Command{Argv: []string{"sh", "-c", "true"}}})
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "stop one first") {
		t.Errorf("error %v", err)
	}
}
