package egress

import (
	"fmt"
	"sync"
	"time"
)

// Day is the traffic of one day.
type Day struct {
	Number int64 // of the day, UTC: days since 1970-01-01
	Traffic
}

// DayMeter counts the traffic of all sandboxes of one principal on each day (UTC). Behind its limit nothing passes
// until the next day. A nil *DayMeter counts nothing.
type DayMeter struct {
	limit func() int64 // bytes of a day, both directions together; 0: no limit

	mu    sync.Mutex
	count Day
}

// NewDayMeter returns a meter that goes on from d, if that is today. The limit is asked for again and again, and
// must be quick.
func NewDayMeter(d Day, limit func() int64) *DayMeter { return &DayMeter{limit: limit, count: d} }

// Today returns the number of the present day.
func Today() int64 { return time.Now().Unix() / (24 * 60 * 60) }

// Day returns the traffic of the present day.
func (m *DayMeter) Day() Day {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beginDay()
	return m.count
}

// beginDay begins to count anew when the count is of another day. The caller holds m.mu.
func (m *DayMeter) beginDay() {
	if now := Today(); now > m.count.Number { // a clock that is set back gives nothing back
		m.count = Day{Number: now}
	}
}

func (m *DayMeter) add(n int, up bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beginDay()
	if up {
		m.count.Up += uint64(n)
	} else {
		m.count.Down += uint64(n)
	}
}

// refusal returns why nothing may pass today, or nil.
func (m *DayMeter) refusal() error {
	if m == nil {
		return nil
	}
	limit := m.limit()
	if limit == 0 {
		return nil
	}
	if d := m.Day(); d.Up+d.Down <= uint64(limit) {
		return nil
	}
	return refusalError{cause: DayUsedUp, why: fmt.Sprintf("your sessions have used all %d MB of network that your "+
		"quota allows for a day", limit>>20)}
}
