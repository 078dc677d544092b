package guest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandlot/proto/agentv1"
)

// TestMerged: both streams stand in the order in which they were read, with whole lines; what arrives late stands where a
// terminal has it.
func TestMerged(t *testing.T) {
	type write struct {
		stream int
		text   string
		pause  time.Duration // before it
	}
	const moment, long = time.Millisecond, time.Second
	for name, tt := range map[string]struct {
		writes []write
		order  []int
		want   string // "-": none
	}{
		"lines in turn": {[]write{{0, "a\n", 0}, {1, "x\n", 0}, {0, "b\n", 0}, {1, "y\n", 0}}, nil, "a\nx\nb\ny\n"},
		"a line in pieces": {[]write{{0, "a\nbe", 0}, {1, "x\n", moment}, {0, "gin\nc\n", moment}, {1, "y\n", 0}}, nil,
			"a\nbegin\nx\nc\ny\n"},
		"a question, then an error":    {[]write{{0, "sure? ", 0}, {1, "no terminal\n", 0}}, nil, "sure? no terminal\n"},
		"an error in the middle":       {[]write{{0, "doing… ", 0}, {1, "failed\n", long}, {0, "done\n", long}}, nil, "doing… failed\ndone\n"},
		"both without an end":          {[]write{{1, "x", 0}, {0, "a", 0}, {1, "y", long}}, nil, "xay"},
		"one stream":                   {[]write{{0, "a\n", 0}, {0, "b", 0}}, nil, "-"},
		"nothing":                      {nil, nil, "-"},
		"what the driver knows":        {[]write{{0, "a\nb\n", 0}, {1, "x\n", 0}}, []int{2, 2, 2}, "a\nx\nb\n"},
		"what the driver cannot know":  {[]write{{0, "a\nb\n", 0}, {1, "x\n", 0}}, []int{2, 2}, "a\nb\nx\n"},
		"a character in two pieces":    {[]write{{0, "\xc3", 0}, {1, "x\n", 0}, {0, "\xa9\n", 0}}, nil, "é\nx\n"},
		"a line that never ends there": {[]write{{0, strings.Repeat("a", maxQueued+1), 0}, {1, "x\n", 0}, {0, "b\n", 0}}, nil, strings.Repeat("a", maxQueued+1) + "x\nb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMerged(nil, &agentv1.Bounds{HeadChars: maxQueued, TailChars: maxQueued})
				for _, w := range tt.writes {
					time.Sleep(w.pause)
					if _, err := m.writer(w.stream, nil).Write([]byte(w.text)); err != nil {
						t.Fatal(err)
					}
				}
				stdout, stderr, both := m.done(tt.order)
				got := "-"
				if both != nil {
					got = string(whole(both))
				}
				if got != tt.want {
					t.Errorf("%.200q, want %.200q", got, tt.want)
				}
				for i, c := range []*agentv1.Captured{stdout, stderr} {
					own := ""
					for _, w := range tt.writes {
						if w.stream == i {
							own += w.text
						}
					}
					if string(whole(c)) != own {
						t.Errorf("stream %d: %.200q", i, whole(c))
					}
				}
			})
		})
	}
}

// TestMergedBounds: both streams together have room for what each may have, and no more.
func TestMergedBounds(t *testing.T) {
	m := newMerged(testOutputFiles(t), &agentv1.Bounds{HeadChars: 40, TailChars: 60})
	for n := range 1000 {
		fmt.Fprintf(m.writer(n%2, nil), "line %d\n", n)
	}
	_, _, both := m.done(nil)
	if both == nil || both.Path != "" || len(both.Head) != 80 || len(both.Tail) != 120 || both.Total != 8890 ||
		!strings.HasPrefix(string(both.Head), "line 0\nline 1\nline 2\n") ||
		!strings.HasSuffix(string(both.Tail), "line 998\nline 999\n") {
		t.Errorf("%v", both)
	}
	m = newMerged(nil, nil)
	fmt.Fprint(m.writer(0, nil), "gone\n")
	fmt.Fprint(m.writer(1, nil), "x\n")
	m.writer(0, nil).(interface{ Reset() }).Reset()
	fmt.Fprint(m.writer(0, nil), "new\n")
	if stdout, _, both := m.done(nil); both != nil || string(stdout.Head) != "new\n" {
		t.Errorf("after a stream was cleared: %v, %q", both, stdout.Head)
	}
}
