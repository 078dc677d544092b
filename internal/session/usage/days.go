package usage

import (
	"maps"
	"sync"

	"sandlot/internal/egress"
)

// Days count what the sandboxes of each principal move over the network on one day.
type Days struct {
	limit func(owner string) int64 // bytes of a day; 0: no limit

	mu     sync.Mutex
	meters map[string]*egress.DayMeter // by owner
	stored map[string]egress.Day       // in the store, by owner
}

// newDays returns Days without counts. The limit of an owner is asked for again and again, and must be quick.
func newDays(limit func(owner string) int64) *Days {
	return &Days{limit: limit, meters: map[string]*egress.DayMeter{}, stored: map[string]egress.Day{}}
}

// Meter returns the meter of a principal.
func (d *Days) Meter(owner string) *egress.DayMeter {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.meters[owner]
	if m == nil {
		m = d.newMeter(owner, egress.Day{})
	}
	return m
}

// newMeter makes a principal's meter. The caller holds mu.
func (d *Days) newMeter(owner string, from egress.Day) *egress.DayMeter {
	m := egress.NewDayMeter(from, func() int64 { return d.limit(owner) })
	d.meters[owner] = m
	return m
}

// Traffic returns how many bytes a principal's sandboxes have moved on this day.
func (d *Days) Traffic(owner string) int64 {
	d.mu.Lock()
	m := d.meters[owner]
	d.mu.Unlock()
	if m == nil {
		return 0
	}
	day := m.Day()
	return int64(day.Up + day.Down)
}

// Recover makes the meters go on with what is stored of this day.
func (d *Days) Recover(stored map[string]egress.Day) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(d.stored, stored)
	for owner, day := range stored {
		d.newMeter(owner, day)
	}
}

// Changed returns the counts of this day that are others than in the store.
func (d *Days) Changed() map[string]egress.Day {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := map[string]egress.Day{}
	for owner, m := range d.meters {
		if day := m.Day(); day != d.stored[owner] && day.Traffic != (egress.Traffic{}) {
			changed[owner] = day
		}
	}
	return changed
}

// Stored says that what Changed returned is in the store now.
func (d *Days) Stored(changed map[string]egress.Day) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(d.stored, changed)
}
