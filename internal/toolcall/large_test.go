package toolcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// A program that does not read a large result in time loses its connection; one that has read it keeps it. A result
// whose memory is lost before is not sent.
func TestLargeResultIsLost(t *testing.T) {
	raw := json.RawMessage(`{"x":"` + string(bytes.Repeat([]byte("x"), 1<<20)) + `"}`)
	program, host := net.Pipe()
	defer program.Close()
	c := &conn{net: host}
	lost, lose := context.WithCancelCause(t.Context())
	done := make(chan bool, 1)
	go func() { done <- c.writeLarge(t.Context(), raw, lost) }()
	got := make([]byte, len(raw)+len(`{"result":}`)+1)
	if _, err := io.ReadFull(program, got); err != nil || !<-done {
		t.Fatalf("%.20s, %v", got, err)
	}
	go func() { done <- c.writeLarge(t.Context(), raw, lost) }()
	if _, err := io.ReadFull(program, got[:100_000]); err != nil {
		t.Fatal(err)
	}
	lose(errors.New("others wait"))
	if <-done {
		t.Error("the connection can have another request")
	}
	program.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, program); err != nil { // its end
		t.Error(err)
	}
	program, host = net.Pipe()
	defer program.Close()
	c = &conn{net: host}
	go func() { done <- c.writeLarge(t.Context(), raw, lost) }()
	n, err := program.Read(got)
	if err != nil || !bytes.Contains(got[:n], []byte(`"code":"too_large"`)) ||
		!bytes.Contains(got[:n], []byte("others wait")) || !<-done {
		t.Errorf("%s, %v", got[:n], err)
	}
}
