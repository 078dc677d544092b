package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestDraw draws lines of each kind, with text that XML has to escape, and reads the file as a browser does.
func TestDraw(t *testing.T) {
	long := strings.Repeat("word ", 40)
	lines := []line{called("execute_code", "session_id: <a>"), code(`    x = "a" < 1  # & more`)}
	lines = append(append(lines, answers(long)...), line{}, typed("sandlot sessions"))
	text := texts(t, draw(lines))
	for _, want := range []string{"execute_code", "session_id: <a>", `x = "a" < 1`, "# & more", "sandlot sessions"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the picture has no text %q", want)
		}
	}
	for _, l := range answers(long) {
		if n := len(l.spans[0].text); n > columns-4 {
			t.Errorf("a line of a result has %d characters", n)
		}
	}
}

// TestPictureOfREADME holds the picture to the story: it has every call and every line of code.
func TestPictureOfREADME(t *testing.T) {
	file, err := os.ReadFile("../../docs/pictures/first.svg")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(readme, []byte("(docs/pictures/first.svg)")) {
		t.Error("README.md does not show docs/pictures/first.svg")
	}
	text := texts(t, file)
	for _, s := range steps {
		if !strings.Contains(text, s.tool+"\n") {
			t.Errorf("the picture has no call of %s: make it again with go run ./test/picture", s.tool)
		}
		for _, l := range s.code {
			for _, part := range code(l).spans {
				if !strings.Contains(text, part.text+"\n") {
					t.Errorf("the picture has no text %q: make it again with go run ./test/picture", part.text)
				}
			}
		}
	}
}

// texts returns the texts of an SVG file, each on a line.
func texts(t *testing.T, svg []byte) string {
	t.Helper()
	var all strings.Builder
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := token.(xml.CharData); ok {
			all.Write(data)
			all.WriteByte('\n')
		}
	}
}
