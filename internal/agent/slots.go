package agent

import "context"

// Slots bounds how many short cells run at once. All clients share the slots. Cells get them in
// the order of arrival. A cell holds its slot until it is over or has run for
// direct.SuperviseAfter: longer cells share the processors without a bound.
//
// So short cells are fast, however many begin at once. Without slots all of them would share the
// processors, and each would take so long that the agent supervises it.
//
// There is one and a half for each processor. A cell may wait for the cells before it, 15 ms at most for each
// slot; with cgroup.Groups.SetWeight, the longest waits became several times shorter (the figures are there).
type Slots chan struct{}

// acquireSlot waits for one of the client's slots until ctx or the client ends.
func (c *Client) acquireSlot(ctx context.Context) error {
	if c.cellSlots == nil {
		return nil
	}
	select {
	case c.cellSlots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

func (c *Client) releaseSlot() {
	if c.cellSlots != nil {
		<-c.cellSlots
	}
}
