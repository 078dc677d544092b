package builtin

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/agent"
	"sandlot/internal/fault"
	"sandlot/internal/limit"
	"sandlot/internal/session"
	"sandlot/internal/terminal"
)

const (
	// restTime is how long output rests before read_process returns what has come.
	restTime = 400 * time.Millisecond
	// portInterval is the time between two looks for who listens on a port.
	portInterval = 250 * time.Millisecond
	// matchWindow is how many bytes before new output a match may begin.
	matchWindow = 16 << 10
)

// condition is what a call of read_process waits for. The zero condition is that output has come, and rests.
type condition struct {
	exit    bool
	port    int
	text    string
	pattern *regexp.Regexp
}

// parseCondition reads the argument until: exit, a port, /a regular expression/ or a text.
func parseCondition(until string) (c condition, err error) {
	port, portErr := strconv.Atoi(until)
	switch {
	case until == "exit":
		c.exit = true
	case portErr == nil && port >= 1 && port <= 65535:
		c.port = port
	case len(until) > 2 && strings.HasPrefix(until, "/") && strings.HasSuffix(until, "/"):
		if c.pattern, err = regexp.Compile("(?m)" + until[1:len(until)-1]); err != nil {
			return c, fault.Argument("until", "argument \"until\" is not a regular expression: %v", err).
				With("allowed", `"exit", a port, a text, or /a regular expression/ (RE2)`)
		}
	default:
		c.text = until
	}
	return c, nil
}

// rests reports whether the condition is that output rests.
func (c condition) rests() bool { return !c.exit && c.port == 0 && c.text == "" && c.pattern == nil }

// in reports whether output has what the condition looks for, also where colours are in it.
func (c condition) in(output []byte) bool {
	if c.pattern == nil && c.text == "" {
		return false
	}
	for _, text := range []string{string(output), terminal.Text(strings.ToValidUTF8(string(output), "\uFFFD"))} {
		if c.text != "" && strings.Contains(text, c.text) || c.pattern != nil && c.pattern.MatchString(text) {
			return true
		}
	}
	return false
}

// follower reads the output of a process until a condition holds.
type follower struct {
	lease *session.Lease
	id    string // the agent's, of the process
	until condition
	// max is how many bytes of output it returns: the first ones, or the last ones where there is a condition.
	max int
	// leftOut is how many bytes before those it has read too.
	leftOut int64
	// window has the end of the output, for matches.
	window []byte
	// from is the cursor of the call.
	from        int64
	reservation *limit.Reservation
	// next is when the screen of a terminal may be looked at again, and unseen whether output has come since the last look.
	next   time.Time
	unseen bool
}

// read returns output from the cursor on, and whether the condition holds. It ends with the process, and when wait is over.
func (f *follower) read(ctx context.Context, wait time.Duration) (out agent.ProcessOutput, met bool, err error) {
	deadline, cursor := time.Now().Add(wait), f.from
	for first := true; ; first = false {
		left := max(0, time.Until(deadline))
		next, err := f.lease.Agent().ReadProcess(ctx, f.id, cursor, f.room(out), f.step(out, left))
		if err != nil {
			return out, false, err
		}
		cursor = next.Cursor
		came := next.Data
		if !first {
			f.join(out, &next)
		}
		out = next
		met, err = f.holds(ctx, out, came)
		rested := f.until.rests() && (len(came) == 0 || len(out.Data) >= f.max)
		if err != nil || met || left == 0 || rested || !out.Running && out.Available == 0 {
			return out, met, err
		}
		if out.Available > 0 { // a program that prints without end costs the server little
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// keptOutput is how many bytes of a process's output the sandbox keeps, at most.
const keptOutput = 1 << 20

// screen reads all that is kept of the output of a process with a terminal. It returns that without its bytes, and what
// the terminal shows, of lines that have scrolled off its screen since the cursor those that fit into max.
func (f *follower) screen(ctx context.Context) (agent.ProcessOutput, terminal.View, error) {
	incoming := f.reservation.Incoming()
	defer incoming.Release()
	if err := incoming.TryReserve(3 * keptOutput); err != nil {
		return agent.ProcessOutput{}, terminal.View{}, err
	}
	out, err := f.lease.Agent().ReadProcess(ctx, f.id, 0, keptOutput, 0)
	if err != nil || out.Terminal == nil {
		return out, terminal.View{}, err
	}
	begin := out.Cursor - int64(len(out.Data)) // what was before that is dropped
	display := terminal.Display{Rows: out.Terminal.Rows, Columns: out.Terminal.Cols, Seen: int(max(0, f.from-begin)),
		Most: f.max}
	view := display.Show(string(out.Data))
	if over := len(view.Screen) - f.max; over > 0 { // with many characters that combine
		view.Screen = strings.ToValidUTF8(view.Screen[over:], "")
	}
	out.Skipped, out.Data = max(0, begin-f.from), nil
	return out, view, nil
}

// room returns how many bytes to read next.
func (f *follower) room(out agent.ProcessOutput) int {
	if f.until.rests() {
		return f.max - len(out.Data)
	}
	return limit.LargeAnswer
}

// step returns how long to wait for more output, of the time that is left.
func (f *follower) step(out agent.ProcessOutput, left time.Duration) time.Duration {
	switch {
	case f.until.port != 0:
		return min(left, portInterval)
	case f.until.rests() && len(out.Data) > 0, f.unseen:
		return min(left, restTime)
	}
	return left
}

// join puts output that came before next in front of it, as far as there is room.
func (f *follower) join(out agent.ProcessOutput, next *agent.ProcessOutput) {
	if next.Skipped > 0 { // the process has dropped what was in between
		f.leftOut += int64(len(out.Data))
		next.Skipped += out.Skipped
		return
	}
	data := append(out.Data, next.Data...)
	over := max(0, len(data)-f.max)
	f.leftOut += int64(over)
	next.Data, next.Skipped = bytes.Clone(data[over:]), out.Skipped
}

// holds reports whether the condition holds, after some output came.
func (f *follower) holds(ctx context.Context, out agent.ProcessOutput, came []byte) (bool, error) {
	switch {
	case f.until.exit:
		return !out.Running && out.Available == 0, nil
	case f.until.port != 0:
		return listens(ctx, f.lease, f.until.port)
	case f.until.rests():
		return false, nil
	case len(came) > 0:
		f.window = append(f.window, came...)
		met := f.until.in(f.window)
		f.window = bytes.Clone(f.window[max(0, len(f.window)-matchWindow):])
		if f.unseen = out.Terminal != nil; met {
			return true, nil
		}
	}
	return f.drawn(ctx, !out.Running)
}

// drawn reports whether a program that draws its screen has drawn what the condition looks for: piece by piece, as it may
// write no more than what changes. It looks when output rests, or now and then, and so seldom that hostile output costs little.
func (f *follower) drawn(ctx context.Context, ended bool) (bool, error) {
	began := time.Now()
	if !f.unseen || !ended && began.Before(f.next) {
		return false, nil
	}
	_, view, err := f.screen(ctx)
	f.next, f.unseen = time.Now().Add(max(restTime, 10*time.Since(began))), false
	return err == nil && f.until.in([]byte(view.Drawn)), err
}

// listens reports whether something listens on a port of the session.
func listens(ctx context.Context, l *session.Lease, port int) (bool, error) {
	conn, err := l.Dial(ctx, port)
	switch {
	case err == nil:
		return true, conn.Close()
	case errors.Is(err, session.ErrNotListening):
		return false, nil
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil: // the program accepts slowly; it does listen
		return true, nil
	}
	return false, err
}

// awaitPort waits until something listens on a port of the session, and reports whether something does.
func awaitPort(ctx context.Context, l *session.Lease, port int, wait time.Duration) (bool, error) {
	deadline := time.Now().Add(wait)
	for {
		yes, err := listens(ctx, l, port)
		if yes || err != nil || time.Until(deadline) <= 0 {
			return yes, err
		}
		select {
		case <-time.After(min(portInterval, time.Until(deadline))):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}
