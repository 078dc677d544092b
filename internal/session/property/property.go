// Package property owns what the user of a session may set of it, and the rules for that: its name, its labels, and the
// end of its life.
package property

import (
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sandlot/internal/fault"
	"sandlot/internal/secret"
	"sandlot/internal/session/record"
)

// Change is what is to change of a session. What is nil stays.
type Change struct {
	Name   *string            `json:"name,omitempty" jsonschema:"A name of your own for it, which stands for its id. Empty: none."`
	Labels map[string]*string `json:"labels,omitempty" jsonschema:"Labels by their keys. Null removes one, and the others stay."`
	EndsAt *string            `json:"ends_at,omitempty" jsonschema:"When its life ends: a time (RFC 3339), or never."`
	EndsIn *string            `json:"ends_in,omitempty" jsonschema:"When its life ends, from now: 90s, 30m, 12h or 7d."`
	OnEnd  *string            `json:"on_end,omitempty" jsonschema:"What happens then: stop, which is the default, or pause."`
}

// New is what the user of a new session sets of it. What is empty is not set.
type New struct {
	Name   string            `json:"name,omitempty" jsonschema:"A name of your own for the session, which stands for its id."`
	Labels map[string]string `json:"labels,omitempty" jsonschema:"Labels by their keys."`
	EndsAt string            `json:"ends_at,omitempty" jsonschema:"When its life ends: a time (RFC 3339)."`
	EndsIn string            `json:"ends_in,omitempty" jsonschema:"When its life ends, from now: 90s, 30m, 12h or 7d."`
	OnEnd  string            `json:"on_end,omitempty" jsonschema:"What happens then: stop, which is the default, or pause."`
}

// Change returns the change of a session that has nothing yet.
func (n New) Change() (c Change) {
	set := func(text string) *string {
		if text == "" {
			return nil
		}
		return &text
	}
	c = Change{Name: set(n.Name), EndsAt: set(n.EndsAt), EndsIn: set(n.EndsIn), OnEnd: set(n.OnEnd)}
	for key, value := range n.Labels {
		if c.Labels == nil {
			c.Labels = map[string]*string{}
		}
		c.Labels[key] = &value
	}
	return c
}

// Empty reports whether nothing is to change.
func (c Change) Empty() bool {
	return c.Name == nil && c.Labels == nil && c.EndsAt == nil && c.EndsIn == nil && c.OnEnd == nil
}

// Bounds.
const (
	MaxLabels     = 32
	maxLabelBytes = 63
	maxValueBytes = 255
	// maxLife is for how long the life of a session may last: longer is a mistake.
	maxLife = 10 * 366 * 24 * time.Hour
)

var (
	validName = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	validKey  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`)
)

// CheckName returns a fault for a text that cannot be the name of a session. No name has the form of an id, or is a word
// that stands for a session: so no name shadows an id.
func CheckName(name string) error {
	switch {
	case !validName.MatchString(name):
		return fault.Argument("name", "%q cannot be the name of a session: a name has 1 to 63 lower-case letters, digits "+
			"and -, begins with a letter, and does not end with -", fault.Printable(name, 80))
	case name == "home", name == "new":
		return fault.Argument("name", "%q cannot be the name of a session: it stands for another one wherever a "+
			"session is named", name)
	case secret.IsID(name):
		return fault.Argument("name", "%q cannot be the name of a session: it has the form of an id (26 letters and "+
			"digits 2 to 7)", name)
	}
	return nil
}

// Apply changes a record. It returns a fault, and has changed nothing, if the record cannot have that.
func (c Change) Apply(r *record.Record, now time.Time) error {
	changed := *r
	if c.Name != nil {
		if *c.Name != "" {
			if err := CheckName(*c.Name); err != nil {
				return err
			}
		}
		changed.Name = *c.Name
	}
	if err := c.applyLabels(&changed); err != nil {
		return err
	}
	if err := c.applyEnd(&changed, now); err != nil {
		return err
	}
	*r = changed
	return nil
}

func (c Change) applyLabels(r *record.Record) error {
	if c.Labels == nil {
		return nil
	}
	all := maps.Clone(r.Labels)
	if all == nil {
		all = map[string]string{}
	}
	for key, value := range c.Labels {
		if value == nil {
			delete(all, key)
			continue
		}
		if err := checkLabel(key, *value); err != nil {
			return err
		}
		all[key] = *value
	}
	if len(all) > MaxLabels {
		return fault.Argument("labels", "a session has at most %d labels, and would have %d", MaxLabels, len(all))
	}
	if r.Labels = all; len(all) == 0 {
		r.Labels = nil
	}
	return nil
}

func checkLabel(key, value string) error {
	switch {
	case len(key) > maxLabelBytes || !validKey.MatchString(key):
		return fault.Argument("labels", "%q cannot be the key of a label: it has 1 to %d letters, digits and . _ / -, and "+
			"begins and ends with a letter or digit", fault.Printable(key, 80), maxLabelBytes)
	case len(value) > maxValueBytes || !utf8.ValidString(value) || strings.ContainsFunc(value, fault.Invisible):
		return fault.Argument("labels", "the value of the label %s has to be text (UTF-8) of at most %d bytes without "+
			"control characters", key, maxValueBytes)
	}
	return nil
}

// applyEnd changes the end of the record's life.
func (c Change) applyEnd(r *record.Record, now time.Time) error {
	switch {
	case c.EndsAt != nil && c.EndsIn != nil:
		return fault.Argument("ends_in", "ends_at and ends_in say the same: give one of them")
	case c.EndsAt != nil && *c.EndsAt == "never":
		r.EndsAt, r.OnEnd = time.Time{}, ""
		if c.OnEnd != nil {
			return fault.Argument("on_end", "on_end says what happens at the end, and the session has none (ends_at: never)")
		}
		return nil
	case c.EndsAt != nil:
		at, err := time.Parse(time.RFC3339, *c.EndsAt)
		if err != nil {
			return fault.Argument("ends_at", "ends_at is %q: it has to be a time such as 2026-01-31T12:00:00Z (RFC 3339), "+
				"or never", fault.Printable(*c.EndsAt, 80))
		}
		r.EndsAt = at.UTC().Truncate(time.Millisecond)
	case c.EndsIn != nil:
		in, ok := Duration(*c.EndsIn)
		if !ok {
			return fault.Argument("ends_in", "ends_in is %q: it has to be a duration such as 90s, 30m, 12h or 7d",
				fault.Printable(*c.EndsIn, 80))
		}
		r.EndsAt = now.Add(in).UTC().Truncate(time.Millisecond)
	}
	if (c.EndsAt != nil || c.EndsIn != nil) && (!r.EndsAt.After(now) || r.EndsAt.Sub(now) > maxLife) {
		return fault.Argument("ends_at", "the end of a session has to be in the future, and within ten years; it would "+
			"be %s", r.EndsAt.Format(time.RFC3339))
	}
	return c.applyOnEnd(r)
}

func (c Change) applyOnEnd(r *record.Record) error {
	if c.OnEnd != nil {
		switch on := record.OnEnd(*c.OnEnd); on {
		case record.StopOnEnd, record.PauseOnEnd:
			r.OnEnd = on
		default:
			return fault.Argument("on_end", "on_end is %q: it has to be stop or pause", fault.Printable(*c.OnEnd, 80))
		}
		if r.EndsAt.IsZero() {
			return fault.Argument("on_end", "on_end says what happens at the end: give ends_at or ends_in, too")
		}
	}
	if !r.EndsAt.IsZero() && r.OnEnd == "" {
		r.OnEnd = record.StopOnEnd
	}
	return nil
}

// Duration parses a duration such as 90s, 30m, 12h, 1h30m or 7d.
func Duration(text string) (d time.Duration, ok bool) {
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		n, err := strconv.ParseFloat(days, 64)
		return time.Duration(n * 24 * float64(time.Hour)), err == nil && n >= 0 && n <= 1e5
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// Matches reports whether a session has all wanted labels, each as Label parses it.
func Matches(labels map[string]string, wanted []string) bool {
	for _, label := range wanted {
		key, value := Label(label)
		has, ok := labels[key]
		if !ok || value != nil && has != *value {
			return false
		}
	}
	return true
}

// Label parses a label of a filter: KEY=VALUE, or KEY for any value, which is nil then.
func Label(text string) (key string, value *string) {
	key, after, ok := strings.Cut(text, "=")
	if ok {
		value = &after
	}
	return key, value
}
