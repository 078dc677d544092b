package copies

import (
	"errors"
	"testing"

	"sandlot/internal/fault"
)

// TestMaking: copies that are made at once have no more room together than the disk has.
func TestMaking(t *testing.T) {
	m := new(Making)
	free := func() (int64, error) { return Reserve + 100, nil }
	first, err := m.Add("ann", 40, 10, free)
	if err != nil || m.Of("ann") != 40 {
		t.Fatalf("ann has %d bytes: %v", m.Of("ann"), err)
	}
	if _, err := m.Add("bob", 51, 0, free); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("more than is left: %v", err)
	}
	second, err := m.Add("bob", 50, 0, free)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Add("eve", 1, 0, free); !fault.Is(err, fault.ResourceLimit) {
		t.Errorf("when nothing is left: %v", err)
	}
	first()
	second()
	if m.total != 0 || len(m.owners) != 0 {
		t.Errorf("%d bytes are counted when nothing is made: %v", m.total, m.owners)
	}
	if _, err := m.Add("ann", 1, 0, func() (int64, error) { return 0, errors.New("no disk") }); err == nil {
		t.Error("a disk that cannot be looked at has room")
	}
}
