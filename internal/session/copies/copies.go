// Package copies counts how much of the disk the copies of workspaces will have that are being made.
package copies

import (
	"sync"

	"sandlot/internal/fault"
)

// Reserve is how much of the machine's disk stays free, in bytes: as much as when a session is put to sleep.
const Reserve = 64 << 20

// Making are the copies that are being made.
type Making struct {
	mu     sync.Mutex
	total  int64
	owners map[string]int64 // by owner
}

// Of returns how many bytes a principal's copies will have.
func (m *Making) Of(owner string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owners[owner]
}

// Add makes copies of so many bytes count until done is called, unless the disk has no room for them beside all others.
// Of these, temporary ones are on the disk for a while, and not their owner's. free returns what the disk has left.
func (m *Making) Add(owner string, bytes, temporary int64, free func() (int64, error)) (done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left, err := free()
	if err != nil {
		return nil, fault.Wrap(fault.FileAccess, err, "how much room the server's disk has could not be found out")
	}
	if all := bytes + temporary; all > left-Reserve-m.total { // a part of total may be on the disk already
		return nil, fault.New(fault.ResourceLimit, "the server's disk has no room for a copy of the session's files: "+
			"%d MB are left, %d MB of them for copies that are being made, and it needs %d MB", left>>20, m.total>>20,
			(all+Reserve)>>20).
			Advise("Remove files that are not needed, or snapshots with remove_snapshot, and try again")
	}
	if m.owners == nil {
		m.owners = map[string]int64{}
	}
	m.total += bytes + temporary
	m.owners[owner] += bytes
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.total -= bytes + temporary
		if m.owners[owner] -= bytes; m.owners[owner] == 0 {
			delete(m.owners, owner)
		}
	}, nil
}
