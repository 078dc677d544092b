package process

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// follow reads a log up to its end, from a place.
func follow(t *testing.T, l *Log, from int64) (text string, end, lost int64) {
	t.Helper()
	for {
		p := l.After(from)
		if p.Text == "" && p.Lost == 0 {
			if p.More == nil && !p.Closed {
				t.Fatalf("from %d: nothing to show, and nothing to wait for", from)
			}
			return text, from, lost
		}
		if p.End <= from || len(p.Text) > maxPart+utf8.UTFMax {
			t.Fatalf("from %d: to %d, %d bytes", from, p.End, len(p.Text))
		}
		text, from, lost = text+p.Text, p.End, lost+p.Lost
	}
}

// A log is followed by whole lines, goes on where it was, and says what is gone.
func TestFollowedLog(t *testing.T) {
	l := &Log{}
	l.Printf("one\x1b[31m")
	fmt.Fprint(l, "tw")
	text, end, lost := follow(t, l, 0)
	if text != "one[31m\n" || lost != 0 {
		t.Errorf("it says %q, lost %d", text, lost)
	}
	more := l.After(end).More
	fmt.Fprint(l, "o\nthree\n")
	<-more
	if text, end, _ = follow(t, l, end); text != "two\nthree\n" {
		t.Errorf("it goes on with %q", text)
	}
	total := end
	for i := range 20000 {
		n, _ := fmt.Fprintf(l, "line %d\n", i)
		total += int64(n)
	}
	text, at, lost := follow(t, l, end)
	if at != total || lost+int64(len(text)) != total-end || len(text) > maxLog {
		t.Errorf("at %d of %d, lost %d, %d bytes", at, total, lost, len(text))
	}
	if first, _, _ := strings.Cut(text, "\n"); !strings.HasPrefix(first, "line ") || !strings.HasSuffix(text, "line 19999\n") {
		t.Errorf("it begins with %q", first)
	}
	if p := l.After(at + 1e6); p.Text != "" || p.Lost != 0 {
		t.Errorf("after its end: %+v", p)
	}
	more = l.After(at).More
	l.Close()
	<-more
	if !l.After(at).Closed {
		t.Error("it is not closed")
	}
}

// A line without an end comes in parts, which cut no character.
func TestFollowedLongLine(t *testing.T) {
	l := &Log{}
	fmt.Fprint(l, "x"+strings.Repeat("ü", maxPart))
	text, _, _ := follow(t, l, 0)
	if !strings.HasPrefix(text, "xü") || strings.Contains(text, "\ufffd") || len(text) < maxPart {
		t.Errorf("%d bytes: %.20q…", len(text), text)
	}
	fmt.Fprint(l, strings.Repeat("\xbf", 3*maxPart)) // no character begins here
	follow(t, l, 0)
}

// What a server prints without anything to see hides nothing that comes after it.
func TestFollowedInvisible(t *testing.T) {
	l := &Log{}
	fmt.Fprint(l, "ok\n"+strings.Repeat("\x00", 2*maxPart)+"\nx\n")
	text, end, _ := follow(t, l, 0)
	if text != "ok\n\nx\n" {
		t.Errorf("it says %q", text)
	}
	fmt.Fprint(l, strings.Repeat("\x00", maxPart))
	p := l.After(end)
	if p.Text != "" || p.End <= end || p.More == nil {
		t.Errorf("without anything to see: %+v", p)
	}
	fmt.Fprint(l, "y\n")
	<-p.More
	if text, _, _ = follow(t, l, p.End); text != "y\n" {
		t.Errorf("it goes on with %q", text)
	}
}
