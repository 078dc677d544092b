package property

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
	"sandlot/internal/session/record"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func text(s string) *string { return &s }

// TestNames: a name is fit for every place where a session is named, and never looks like an id or stands for another
// session.
func TestNames(t *testing.T) {
	for _, name := range []string{"a", "build-2", "x" + strings.Repeat("y", 62), "homes", "new-one", "a2"} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "home", "new", secret.ID(), "a" + strings.Repeat("b", 25), "A", "2a", "a-", "-a",
		"a.b", "a/b", "a b", "..", "a\n", "a\x00", "ä", "a\u202eb", "x" + strings.Repeat("y", 63), "user:ann", "a%2f",
		"a?x", "home "} {
		err := CheckName(name)
		if !fault.Is(err, fault.InvalidParameters) || !strings.Contains(err.Error(), "cannot be the name") ||
			strings.ContainsAny(err.Error(), "\x00\u202e") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestLabels: labels are merged, removed and bounded, and a change that is refused changes nothing.
func TestLabels(t *testing.T) {
	r := record.Record{Labels: map[string]string{"team": "web", "old": "1"}}
	before := r.Labels
	if err := (Change{Labels: map[string]*string{"old": nil, "none": nil, "a/b.c-d_e": text("x y")}}).Apply(&r,
		now); err != nil || !maps.Equal(r.Labels, map[string]string{"team": "web", "a/b.c-d_e": "x y"}) ||
		len(before) != 2 {
		t.Errorf("%v, before %v: %v", r.Labels, before, err)
	}
	many := map[string]*string{}
	for i := range MaxLabels {
		many[fmt.Sprint("k", i)] = text("")
	}
	for what, labels := range map[string]map[string]*string{"too many": many, "no key": {"": text("x")},
		"a long key": {strings.Repeat("k", 64): text("x")}, "a sign": {"a=b": text("x")}, "an end": {"a-": text("x")},
		"a long value": {"k": text(strings.Repeat("v", 256))}, "a line": {"k": text("a\nb")},
		"an escape": {"k": text("\x1b[0m")}, "no text": {"k": text("\xff")}} {
		if err := (Change{Labels: labels, Name: text("x")}).Apply(&r, now); !fault.Is(err, fault.InvalidParameters) ||
			r.Name != "" || len(r.Labels) != 2 {
			t.Errorf("%s: %v, %+v", what, err, r)
		}
	}
	if err := (Change{Labels: map[string]*string{"team": nil, "a/b.c-d_e": nil}}).Apply(&r, now); err != nil ||
		r.Labels != nil {
		t.Errorf("without any: %v, %v", r.Labels, err)
	}
	for query, want := range map[string]bool{"team": true, "team=web": true, "team=": false, "team=we": false,
		"other": false} {
		if got := Matches(map[string]string{"team": "web"}, []string{query}); got != want {
			t.Errorf("%s: %v", query, got)
		}
	}
	if Matches(map[string]string{"team": "web"}, []string{"team=app", "team"}) {
		t.Error("of two labels of one key the last one counts alone")
	}
}

// TestEnds: an end is a time in the future or a duration, and says what happens then.
func TestEnds(t *testing.T) {
	for _, c := range []struct {
		change Change
		want   time.Time
		on     record.OnEnd
	}{
		{Change{EndsAt: text("2026-03-04T06:06:07+01:00")}, time.Time{}, ""}, // now
		{Change{EndsAt: text("2026-03-04T07:06:07+01:00")}, now.Add(time.Hour), "stop"},
		{Change{EndsIn: text("90s"), OnEnd: text("pause")}, now.Add(90 * time.Second), "pause"},
		{Change{EndsIn: text("1h30m")}, now.Add(90 * time.Minute), "stop"},
		{Change{EndsIn: text("7d")}, now.Add(7 * 24 * time.Hour), "stop"},
		{Change{EndsIn: text("5000d")}, time.Time{}, ""}, {Change{EndsIn: text("0s")}, time.Time{}, ""},
		{Change{EndsIn: text("-1h")}, time.Time{}, ""}, {Change{EndsIn: text("1e300d")}, time.Time{}, ""},
		{Change{EndsIn: text("NaNd")}, time.Time{}, ""}, {Change{EndsIn: text("soon")}, time.Time{}, ""},
		{Change{EndsIn: text("")}, time.Time{}, ""}, {Change{EndsAt: text("tomorrow")}, time.Time{}, ""},
		{Change{EndsAt: text("9999-01-01T00:00:00Z")}, time.Time{}, ""},
		{Change{EndsIn: text("1h"), EndsAt: text("2026-03-05T00:00:00Z")}, time.Time{}, ""},
		{Change{OnEnd: text("pause")}, time.Time{}, ""}, {Change{EndsIn: text("1h"), OnEnd: text("burn")}, time.Time{}, ""},
		{Change{EndsAt: text("never"), OnEnd: text("stop")}, time.Time{}, ""},
	} {
		var r record.Record
		err := c.change.Apply(&r, now)
		if refused := c.want.IsZero(); refused != fault.Is(err, fault.InvalidParameters) || !r.EndsAt.Equal(c.want) ||
			r.OnEnd != c.on {
			t.Errorf("%+v: %s %s: %v", c, r.EndsAt, r.OnEnd, err)
		}
	}
	r := record.Record{EndsAt: now.Add(time.Hour), OnEnd: record.PauseOnEnd}
	if err := (Change{EndsIn: text("2h")}).Apply(&r, now); err != nil || r.OnEnd != record.PauseOnEnd {
		t.Errorf("another end: %+v, %v", r, err)
	}
	if err := (Change{OnEnd: text("stop")}).Apply(&r, now); err != nil || r.OnEnd != record.StopOnEnd ||
		!r.EndsAt.Equal(now.Add(2*time.Hour)) {
		t.Errorf("another act: %+v, %v", r, err)
	}
	if err := (Change{EndsAt: text("never")}).Apply(&r, now); err != nil || !r.EndsAt.IsZero() || r.OnEnd != "" {
		t.Errorf("no end: %+v, %v", r, err)
	}
}
