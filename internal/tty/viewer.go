package tty

import (
	"context"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/terminal"
)

// Viewer is somebody who looks at a terminal, until Close. Only one goroutine may call Next at a time.
type Viewer struct {
	*Terminal
	wake chan struct{}

	// The following are guarded by mu of the terminal.
	wants   agent.Size // of their own terminal; zero: any
	told    agent.Size // the size that they know
	redraw  bool       // they get the screen, and not what was printed
	pending []byte     // output that they have not got
}

// View begins to look at a terminal. The screen has the smallest size of those of its viewers, so that everyone sees all
// of it.
func (t *Terminal) View(size agent.Size) (v *Viewer, err error) {
	if err := t.registry.enter(t.of); err != nil {
		return nil, err
	}
	defer func() {
		if v == nil {
			t.registry.leave(t.Owner, t.of)
		}
	}()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended != nil:
		return nil, fault.New(fault.NotFound, "the terminal has just ended: open a new one")
	case len(t.viewers) >= maxViewers:
		return nil, fault.Limit("viewers", int64(len(t.viewers)), maxViewers,
			"%d viewers look at this terminal, which is the limit", maxViewers)
	}
	look := &Viewer{Terminal: t, wake: make(chan struct{}, 1), wants: size, redraw: true}
	t.viewers[look] = true
	t.rest(false)
	t.fit()
	look.signal()
	return look, nil
}

// fit gives the screen the size that all viewers can show. The caller holds mu.
func (t *Terminal) fit() {
	rows, cols := 0, 0
	for v := range t.viewers {
		if v.wants.Rows > 0 && (rows == 0 || v.wants.Rows < rows) {
			rows = v.wants.Rows
		}
		if v.wants.Cols > 0 && (cols == 0 || v.wants.Cols < cols) {
			cols = v.wants.Cols
		}
	}
	hasRows, hasCols := t.screen.Size()
	if rows == 0 {
		rows = hasRows
	}
	if cols == 0 {
		cols = hasCols
	}
	if rows, cols = terminal.Bounded(rows, cols); rows == hasRows && cols == hasCols {
		return
	}
	t.screen.Resize(rows, cols)
	for v := range t.viewers {
		v.late()
	}
}

// Resize says that the viewer's own terminal has another size.
func (v *Viewer) Resize(ctx context.Context, size agent.Size) {
	v.wish(size)
	p, err := v.registry.Programs(v.Owner, v.Session)
	if err == nil && p.Machine != nil && p.Life == v.Life {
		v.applySize(ctx, p.Machine) // else when the session wakes
	}
}

func (v *Viewer) wish(size agent.Size) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wants = size
	v.fit()
}

// Close ends the viewer's look. It can be called twice.
func (v *Viewer) Close() {
	v.mu.Lock()
	looks := v.viewers[v]
	defer func() {
		v.mu.Unlock()
		if looks {
			v.registry.leave(v.Owner, v.of)
		}
	}()
	delete(v.viewers, v)
	if v.ended != nil {
		return
	}
	if len(v.viewers) == 0 {
		v.rest(true)
	}
	v.fit()
}

// add gives the viewer output. The caller holds mu of the terminal.
func (v *Viewer) add(shown []byte) {
	switch {
	case v.redraw:
	case len(v.pending)+len(shown) > maxPending:
		v.late()
	default:
		v.pending = append(v.pending, shown...)
	}
	v.signal()
}

// late makes the viewer get the screen in place of what was printed. The caller holds mu of the terminal.
func (v *Viewer) late() {
	v.redraw, v.pending = true, nil
	v.signal()
}

func (v *Viewer) signal() {
	select {
	case v.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Output is what a viewer gets.
type Output struct {
	Size  *agent.Size // of the screen from now on; nil: as before
	Bytes []byte
	End   *End // nil: it goes on
}

// Next waits for what the viewer gets next.
func (v *Viewer) Next(ctx context.Context) (Output, error) {
	for {
		switch out, ok := v.take(); {
		case ok && out.End != nil && out.End.stops:
			return Output{}, ErrStops
		case ok:
			return out, nil
		}
		select {
		case <-v.wake:
		case <-ctx.Done():
			return Output{}, context.Cause(ctx)
		}
	}
}

func (v *Viewer) take() (out Output, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	rows, cols := v.screen.Size()
	switch {
	case v.redraw && (v.ready || v.ended != nil):
		v.redraw = false
		if is := (agent.Size{Rows: rows, Cols: cols}); is != v.told {
			out.Size, v.told = &is, is
		}
		out.Bytes = v.screen.Draw()
	case len(v.pending) > 0:
		out.Bytes, v.pending = v.pending, nil
	case v.ended != nil:
		out.End = v.ended
	default:
		return out, false
	}
	return out, true
}
