package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"sandlot/internal/api/protocol"
	"sandlot/internal/auth"
	"sandlot/internal/hub"
)

// Limits of a connection to the live channel.
const (
	maxLive    = 64 << 20 // bytes of a message: a list may have all sessions of all users
	ackEvery   = 64       // messages of a channel: the server waits after 256
	maxSilence = 65 * time.Second
	liveWrite  = 10 * time.Second
)

// Live is a connection to the live channel. Its methods are for one goroutine, but for Close.
type Live struct {
	ws       *websocket.Conn
	newest   uint32
	received map[uint32]int64 // messages of each open channel that count
}

// LiveMessage is what the server says on the live channel.
type LiveMessage struct {
	Op      string            `json:"op"` // opened, data, lost, current, closed, error, or a newer server's
	Channel uint32            `json:"channel"`
	Cursor  string            `json:"cursor"`
	Data    json.RawMessage   `json:"data"`
	Error   *protocol.Problem `json:"error"`
}

// The ends of a connection to the live channel that the server announces.
var (
	ErrTokenEnded    = errors.New("the token has ended")
	ErrServerStopped = errors.New("the server has stopped")
)

// Live connects to the live channel.
func (c *Client) Live(ctx context.Context) (*Live, error) {
	header := http.Header{}
	if c.token != "" {
		header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	if c.user != "" {
		header.Set(auth.UserHeader, c.user)
	}
	ctx, cancel := context.WithTimeout(ctx, maxSilence)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, c.base+"/v1/live", &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header})
	if err != nil {
		if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
			return nil, noServer(failed)
		}
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, responseError(resp)
		}
		return nil, err
	}
	ws.SetReadLimit(maxLive)
	return &Live{ws: ws, received: map[uint32]int64{}}, nil
}

// Open opens a channel of a kind, and returns its number.
func (l *Live) Open(ctx context.Context, kind string, args any) (uint32, error) {
	l.newest++
	return l.newest, l.say(ctx, map[string]any{"op": "open", "channel": l.newest, "kind": kind, "args": args})
}

func (l *Live) say(ctx context.Context, m any) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, liveWrite)
	defer cancel()
	return l.ws.Write(ctx, websocket.MessageText, text)
}

// Next returns the next message about a channel. It acknowledges what it returns.
func (l *Live) Next(ctx context.Context) (m LiveMessage, err error) {
	for {
		m = LiveMessage{}
		text, err := l.read(ctx)
		if err != nil {
			return m, err
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return m, err
		}
		switch m.Op {
		case "alive":
			continue
		case "data", "lost":
			l.received[m.Channel]++
			if n := l.received[m.Channel]; n%ackEvery == 0 {
				err = l.say(ctx, map[string]any{"op": "ack", "channel": m.Channel, "count": n})
			}
		case "closed":
			delete(l.received, m.Channel)
		}
		return m, err
	}
}

// read reads a message. The server says every 20 seconds that it is there.
func (l *Live) read(ctx context.Context) ([]byte, error) {
	heard, cancel := context.WithTimeout(ctx, maxSilence)
	defer cancel()
	_, text, err := l.ws.Read(heard)
	switch {
	case err == nil:
		return text, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case heard.Err() != nil:
		return nil, errors.New("the server is silent")
	case websocket.CloseStatus(err) == websocket.StatusPolicyViolation:
		return nil, ErrTokenEnded
	case websocket.CloseStatus(err) == websocket.StatusGoingAway:
		return nil, ErrServerStopped
	case errors.Is(err, io.EOF):
		return nil, errors.New("the connection broke")
	}
	return nil, err
}

// Close ends the connection. It may be called twice.
func (l *Live) Close() { _ = l.ws.CloseNow() }

// The ops of LiveMessage that follow looks at.
const (
	liveData   = "data"
	liveLost   = "lost"
	liveClosed = "closed"
	liveError  = "error"
)

const (
	firstRedial = 250 * time.Millisecond // doubled after each failure
	lastRedial  = 4 * time.Second
	// maxAway is how long follow tries to reach a server that it has reached before.
	maxAway = time.Minute
)

// follow opens one channel, and calls each with each message of it, until each returns true or an error, or the server
// ends the channel. After a break it connects again, and goes on after the last cursor, if args takes one.
func follow(ctx context.Context, c *Client, kind string, args any, each func(LiveMessage) (done bool, err error)) error {
	text, err := json.Marshal(args)
	if err != nil {
		return err
	}
	given := map[string]any{}
	if err := json.Unmarshal(text, &given); err != nil {
		return err
	}
	wait, reached := firstRedial, time.Time{}
	for {
		done, heard, err := c.followOnce(ctx, kind, given, each)
		switch {
		case done, ctx.Err() != nil:
			return err
		case heard:
			reached, wait = time.Now(), firstRedial
		case reached.IsZero(), time.Since(reached) > maxAway:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRedial)
	}
}

// followOnce follows a channel over one connection. It puts the cursor into args. done: nothing more is to come; else
// err says how the connection broke, and heard whether the server had said anything.
func (c *Client) followOnce(ctx context.Context, kind string, args map[string]any,
	each func(LiveMessage) (bool, error)) (done, heard bool, err error) {
	l, err := c.Live(ctx)
	if err != nil {
		problem, refused := errors.AsType[*protocol.Problem](err)
		return refused && problem.Status < http.StatusInternalServerError, false, err
	}
	defer l.Close()
	if _, err := l.Open(ctx, kind, args); err != nil {
		return false, false, err
	}
	for {
		m, err := l.Next(ctx)
		switch {
		case err != nil:
			return errors.Is(err, ErrTokenEnded), heard, err
		case m.Op == liveClosed && m.Error == nil:
			return true, true, nil
		case m.Op == liveClosed, m.Op == liveError:
			return m.Error.Status < http.StatusInternalServerError, heard, m.Error
		}
		heard = true
		if done, err := each(m); done || err != nil {
			return true, true, err
		}
		if m.Cursor != "" {
			args["cursor"] = m.Cursor
		}
	}
}

// FollowLog calls each with the log of a third-party server that the server keeps, and then with what is added to it,
// until each returns an error, or the server refuses more, as when the third-party server is removed. lost is how many bytes are missing before the text;
// negative: that is not known, as the log has begun anew.
func (c *Client) FollowLog(ctx context.Context, server string, each func(text string, lost int64) error) error {
	args := map[string]string{"server": server}
	return follow(ctx, c, "log", args, func(m LiveMessage) (bool, error) {
		switch m.Op {
		case liveLost:
			return false, each("", -1)
		case liveData:
			var part hub.LogPart
			if err := json.Unmarshal(m.Data, &part); err != nil {
				return false, err
			}
			return false, each(part.Text, part.Lost)
		}
		return false, nil
	})
}
