package agent

import "context"

// Slots bounds how many of the cells that have just begun run at once. Clients
// share it. A cell waits in the order of arrival, and holds its slot until it is
// over or has run for direct.SuperviseAfter: cells that last longer share the
// machine without a bound.
//
// Short cells are quick that way, however many come together. Without slots all of
// them share the processors, and each takes so long that the agent supervises it.
type Slots chan struct{}

// acquireSlot waits for one of the client's slots until ctx or the client ends.
func (c *Client) acquireSlot(ctx context.Context) error {
	if c.slots == nil {
		return nil
	}
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
}

func (c *Client) releaseSlot() {
	if c.slots != nil {
		<-c.slots
	}
}
