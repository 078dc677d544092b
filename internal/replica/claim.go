package replica

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"sandlot/internal/fault"
	"sandlot/internal/store"
)

const insertOwner = `INSERT INTO sandlot_owners (principal, slot, number, epoch)
	VALUES ($1, $2, $3, nextval('sandlot_epochs')) ON CONFLICT (principal) DO NOTHING RETURNING epoch`

// isPinned is whether a unit has what only one state folder has. The end of the range is the byte after '/'.
const isPinned = `SELECT EXISTS (SELECT 1 FROM sessions WHERE owner = $1 OR owner >= $1 || '/' AND owner < $1 || '0')
	OR EXISTS (SELECT 1 FROM snapshots WHERE owner = $1 OR owner >= $1 || '/' AND owner < $1 || '0')`

// found is what a look-up says of a unit.
type found struct {
	Place
	claimed bool // by this server, with the place's epoch
	dead    bool // the owner does not hold its lock, and may be replaced, or the row changes: ask again
	pinned  bool // the owner does not hold its lock, or is not known, and cannot be replaced
}

// Find returns where what is asked for a unit is done. It claims a unit that nobody owns, or whose owner is dead, for
// this server. A unit with sessions or snapshots is not claimed: the machine of its owner has their files.
func (m *Member) Find(ctx context.Context, unit string) (Place, error) {
	m.mu.Lock()
	down, l, cached := m.down, m.owned[unit], m.cache[unit]
	m.mu.Unlock()
	switch {
	case down != nil:
		return Place{}, down
	case l != nil && l.loaded:
		return Place{Unit: unit, Epoch: l.epoch, Here: l.ctx}, nil
	case cached.Epoch != 0:
		return cached, nil
	}
	result := m.finding.DoChan(unit, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*statementTimeout)
		defer cancel()
		return m.find(ctx, unit)
	})
	select {
	case r := <-result:
		p, _ := r.Val.(Place)
		return p, r.Err
	case <-ctx.Done():
		return Place{}, ctx.Err()
	}
}

// Forget makes the next Find of a unit ask the database, unless this server is the owner.
func (m *Member) Forget(unit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.cache, unit)
}

// Owned returns the place of a unit that this server owns with an epoch.
func (m *Member) Owned(unit string, epoch int64) (Place, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.owned[unit]
	if m.down != nil || l == nil || l.epoch != epoch || !l.loaded {
		return Place{}, false
	}
	return Place{Unit: unit, Epoch: epoch, Here: l.ctx}, true
}

// find is Find without what is remembered.
func (m *Member) find(ctx context.Context, unit string) (Place, error) {
	for since := time.Now(); ; {
		f, err := m.ask(ctx, unit, time.Since(since) >= m.patience)
		switch {
		case err != nil:
			return Place{}, err
		case f.claimed:
			return m.load(ctx, f.Place)
		case f.pinned:
			return Place{}, away(f.Peer)
		case !f.dead:
			return f.Place, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return Place{}, ctx.Err()
		}
	}
}

// ask looks up a unit on the connection with the lock, and notes the answer. replace: a dead owner is replaced.
func (m *Member) ask(ctx context.Context, unit string, replace bool) (found, error) {
	answers := make(chan found, 1)
	err := m.onConn(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var f found
		err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) (err error) {
			f, err = m.lookUp(ctx, tx, unit, replace)
			return err
		})
		if err == nil {
			m.note(f)
			answers <- f
		}
		return err
	})
	var f *fault.Error
	if err != nil && ctx.Err() == nil && !errors.As(err, &f) { // such as a lock that takes too long
		err = store.Unusable(err)
	}
	if err != nil {
		return found{}, err
	}
	return <-answers, nil
}

// lookUp is the transaction of ask. It waits for no change of the owner's rows, unless the owner is dead.
func (m *Member) lookUp(ctx context.Context, tx pgx.Tx, unit string, replace bool) (f found, err error) {
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '2s'`); err != nil { // less than what breaks the connection
		return f, err
	}
	err = m.owner(ctx, tx, unit, "", &f)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return m.claimFree(ctx, tx, unit)
	case err != nil || f.claimed:
		return f, err
	}
	// The lock stays with this transaction: an owner that comes back waits, and sees what it has decided.
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock_shared($1, $2)`, lockClass, f.Peer.Slot).
		Scan(&f.dead); err != nil || !f.dead {
		return f, err
	}
	if !replace {
		err := tx.QueryRow(ctx, isPinned, unit).Scan(&f.pinned)
		return f, err
	}
	slot := f.Peer.Slot
	f = found{}
	// Changes that the owner has begun end before; what it begins later is refused.
	if err := m.owner(ctx, tx, unit, ` FOR UPDATE OF o`, &f); err != nil || f.claimed || f.Peer.Slot != slot {
		f.dead = err != nil || !f.claimed
		return f, orNone(err)
	}
	if err := tx.QueryRow(ctx, isPinned, unit).Scan(&f.pinned); err != nil || f.pinned {
		return f, err
	}
	f.claimed = true
	if err := tx.QueryRow(ctx, `UPDATE sandlot_owners SET slot = $2, number = $3, epoch = nextval('sandlot_epochs')
		WHERE principal = $1 RETURNING epoch`, unit, m.slot, m.number).Scan(&f.Epoch); err != nil {
		return f, err
	}
	_, err = tx.Exec(ctx, `SELECT pg_notify($1, $2)`, channel, unit)
	return f, err
}

// owner reads the owner of a unit.
func (m *Member) owner(ctx context.Context, tx pgx.Tx, unit, lock string, f *found) error {
	f.Unit = unit
	p := &f.Peer
	err := tx.QueryRow(ctx, `SELECT o.epoch, o.number, o.slot, r.address, r.fingerprint
		FROM sandlot_owners o JOIN sandlot_replicas r USING (slot) WHERE o.principal = $1`+lock, unit).
		Scan(&f.Epoch, &p.Number, &p.Slot, &p.Address, &p.Fingerprint)
	f.claimed = err == nil && p.Number == m.number
	return err
}

// claimFree claims a unit that nobody owns.
func (m *Member) claimFree(ctx context.Context, tx pgx.Tx, unit string) (f found, err error) {
	f.Unit = unit
	err = tx.QueryRow(ctx, insertOwner, unit, m.slot, m.number).Scan(&f.Epoch)
	if errors.Is(err, pgx.ErrNoRows) { // another server was faster: ask again
		f.dead = true
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if err := tx.QueryRow(ctx, isPinned, unit).Scan(&f.pinned); err != nil {
		return f, err
	}
	if f.pinned { // nobody knows on which machine its files are
		_, err = tx.Exec(ctx, `DELETE FROM sandlot_owners WHERE principal = $1`, unit)
		return f, err
	}
	f.claimed = true
	return f, nil
}

// orNone returns nil for the error that there is no row.
func orNone(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// note remembers the answer of a look-up that was committed. It runs on the goroutine that also notes changes, so that it
// never overwrites a later one.
func (m *Member) note(f found) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case f.claimed:
		if l := m.owned[f.Unit]; l == nil || l.epoch != f.Epoch {
			m.owned[f.Unit] = newLease(f.Epoch)
		}
		delete(m.cache, f.Unit)
	case !f.dead && !f.pinned:
		if len(m.cache) >= maxCached {
			clear(m.cache)
		}
		m.cache[f.Unit] = f.Place
	}
}

// load loads what is stored of a unit that this server owns. Find calls it for one caller at a time.
func (m *Member) load(ctx context.Context, p Place) (Place, error) {
	m.mu.Lock()
	l := m.owned[p.Unit]
	m.mu.Unlock()
	if l == nil || l.epoch != p.Epoch {
		return Place{}, fault.New(fault.Connection, "the owner has changed; try again")
	}
	if !l.loaded && m.Claimed != nil {
		if err := m.Claimed(ctx, p.Unit); err != nil {
			return Place{}, err
		}
	}
	m.mu.Lock()
	l.loaded = true
	m.mu.Unlock()
	p.Here, p.Peer = l.ctx, Peer{}
	return p, nil
}

// away is the fault of what is asked for a unit while the machine with its files is away.
func away(p Peer) error {
	what, command := "the server with your sessions is not known here", "sandlot replicas remove "+Unknown
	if p.Address != "" {
		command = "sandlot replicas remove " + p.Address
		what = "the server with your sessions, at " + p.Address + ", is away"
	}
	return fault.New(fault.Connection, "%s; nothing was done. Your sessions and files are on its machine", what).
		Advise("Try again later: they are there again as soon as it is",
			"Ask the operator to start that server; `sandlot replicas` lists all of them. If it is gone for good, `"+
				command+"` gives its sessions and snapshots up")
}

// Known returns the server whose certificate has a fingerprint. Callers at the same moment wait for one reading of the
// servers. While the database does not answer, the last reading counts.
func (m *Member) Known(ctx context.Context, fingerprint string) (Peer, bool) {
	for tried := false; ; tried = true {
		m.mu.Lock()
		p, ok := m.peers[fingerprint]
		changed, lately := m.reloaded.IsZero(), time.Since(m.reloaded) < reloadPause
		m.mu.Unlock()
		if ok && !changed || !ok && lately || tried && !changed {
			return p, ok
		}
		result := m.reloading.DoChan("", func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*statementTimeout)
			defer cancel()
			return nil, m.onConn(ctx, m.reload)
		})
		select {
		case r := <-result:
			if r.Err != nil {
				return p, ok
			}
		case <-ctx.Done():
			return p, ok
		}
	}
}

// reload reads the servers.
func (m *Member) reload(ctx context.Context, c *pgx.Conn) error {
	rows, err := c.Query(ctx, `SELECT slot, number, address, fingerprint FROM sandlot_replicas WHERE number > 0`)
	if err != nil {
		return err
	}
	all := map[string]Peer{}
	var p Peer
	if _, err := pgx.ForEachRow(rows, []any{&p.Slot, &p.Number, &p.Address, &p.Fingerprint}, func() error {
		all[p.Fingerprint] = p
		return nil
	}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers, m.reloaded = all, time.Now()
	return nil
}
