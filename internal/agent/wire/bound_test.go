package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"sandlot/proto/agentv1"
)

func TestUnmarshalBounds(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty processes": bytes.Repeat([]byte{0x0a, 0}, 1<<20),
		"unknown fields":  bytes.Repeat([]byte{0x78, 0}, 1<<20),
	} {
		if err := Unmarshal(b, new(agentv1.ListProcessesResponse)); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Many parts deep inside: values of a result.
	rich := bytes.Repeat([]byte{0x2a, 0}, 1<<20)
	deep := append([]byte{0x22, 0x80, 0x80, 0x80, 0x01}, rich...)
	if err := Unmarshal(deep, new(agentv1.RunEvent)); !errors.Is(err, ErrMessage) {
		t.Errorf("deep: %v", err)
	}
	// Output that looks like a message is output.
	done := &agentv1.ExecDone{Stdout: &agentv1.Captured{Head: bytes.Repeat([]byte{0x0a, 0}, 1<<20)}}
	e := &agentv1.RunEvent{Event: &agentv1.RunEvent_Executed{Executed: done}}
	var buf bytes.Buffer
	if err := WriteMessage(&buf, e); err != nil {
		t.Fatal(err)
	}
	got := new(agentv1.RunEvent)
	if err := ReadMessage(&buf, got); err != nil || len(got.GetExecuted().GetStdout().GetHead()) != 2<<20 {
		t.Errorf("output: %v", err)
	}
	many := &agentv1.ListFilesResponse{}
	for range 5000 {
		many.Files = append(many.Files, &agentv1.FileInfo{Path: strings.Repeat("x", 50), Type: "file", Size: 5,
			Mode: 0o644, ModifiedUnixMillis: 5})
	}
	b, err := Codec{}.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Codec{}).Unmarshal(b, new(agentv1.ListFilesResponse)); err != nil {
		t.Errorf("a valid list: %v", err)
	}
}
