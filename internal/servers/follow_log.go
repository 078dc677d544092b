package servers

import (
	"context"
	"strconv"
	"strings"
	"time"

	"sandlot/internal/auth"
	"sandlot/internal/fault"
)

// LogPart is a part of a server's log.
type LogPart struct {
	Text string `json:"text"`
	Lost int64  `json:"lost,omitempty"` // how many bytes are missing before it
}

// LogReader reads a server's log as it grows.
type LogReader struct {
	server    *server
	principal auth.Principal
	release   func()    // see hold
	at        int64     // how many bytes were read, or lost
	anew      bool      // the cursor was one of an earlier log
	read      time.Time // when it looked last
}

// logPace is the shortest time between two looks at a log: a server may print at any rate.
const logPace = 100 * time.Millisecond

// FollowLog begins to read a server's log: at its beginning or, with a cursor, after the part that has it. The log
// stays in memory until Close.
func (servers *Servers) FollowLog(p auth.Principal, what, cursor string) (_ *LogReader, err error) {
	release, err := servers.hold(p)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	s, err := servers.find(p, what)
	if err != nil {
		return nil, err
	}
	r := &LogReader{server: s, principal: p, release: release}
	if err := r.allowed(); err != nil {
		return nil, err
	}
	if cursor == "" {
		return r, nil
	}
	life, end, _ := strings.Cut(cursor, ".")
	at, err := strconv.ParseInt(end, 10, 64)
	if err != nil || at < 0 {
		return nil, fault.Argument("cursor", "cursor %q is not one of a log", fault.Clip(cursor))
	}
	if _, total := s.log.Tail(1); life == s.log.Life() && at <= total {
		r.at = at
	} else {
		r.anew = true
	}
	return r, nil
}

// Close ends the reading. It is called once.
func (r *LogReader) Close() { r.release() }

// ConnectionID returns the id of the server.
func (r *LogReader) ConnectionID() string { return r.server.ID }

// allowed returns an error if the log is the operator's.
func (r *LogReader) allowed() error {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if !r.server.shows(r.principal) {
		return fault.New(fault.NotFound, "the log of %s is the operator's", r.server.Title())
	}
	return nil
}

// Next returns the next part of the log, and its cursor. It waits for it, until ctx ends.
func (r *LogReader) Next(ctx context.Context) (part LogPart, cursor string, err error) {
	for {
		if wait := logPace - time.Since(r.read); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return part, "", context.Cause(ctx)
			}
		}
		got := r.server.log.After(r.at)
		r.at, r.read = got.End, time.Now()
		if got.Text != "" || got.Lost > 0 {
			if err := r.allowed(); err != nil {
				return part, "", err
			}
			return LogPart{Text: got.Text, Lost: got.Lost}, r.server.log.Life() + "." + strconv.FormatInt(r.at, 10), nil
		}
		if got.Closed {
			return part, "", r.ended()
		}
		select {
		case <-got.More:
		case <-ctx.Done():
			return part, "", context.Cause(ctx)
		}
	}
}

// ended returns why the log has ended.
func (r *LogReader) ended() error {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	if r.server.Removed {
		return fault.New(fault.NotFound, "%s was removed", r.server.Title())
	}
	return fault.New(fault.Connection, "the log of %s begins anew: open it again", r.server.Title())
}

// Anew reports whether the log began again after the cursor that FollowLog was given.
func (r *LogReader) Anew() bool { return r.anew }
