package docker

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestExecStream: the standard output of a process is read without its standard error, which is told when it ends.
func TestExecStream(t *testing.T) {
	frame := func(kind byte, text string) string {
		return string([]byte{kind, 0, 0, 0, 0, 0, 0, byte(len(text))}) + text
	}
	for name, tt := range map[string]struct{ sent, read, told string }{
		"output":          {frame(1, "one ") + frame(1, "") + frame(1, "two"), "one two", ""},
		"with complaints": {frame(2, "no ") + frame(1, "one") + frame(2, "socket\n"), "one", `the process says: "no socket"`},
		"an unknown kind": {frame(2, "why") + frame(1, "one") + frame(7, "x"), "one", "kind 7\nthe process says: \"why\""},
		"in the middle":   {frame(1, "one")[:10], "on", ""},
	} {
		s := &execStream{reader: bufio.NewReader(strings.NewReader(tt.sent))}
		var got []byte
		var err error
		for buffer := make([]byte, 2); err == nil; {
			var n int
			n, err = s.Read(buffer)
			got = append(got, buffer[:n]...)
		}
		if string(got) != tt.read || !strings.HasSuffix(err.Error(), tt.told) || tt.told == "" && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
