package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/rawjson"
)

const (
	maxSubscriptions = 256 // of the newer era, where each is a request that stays open
	ackLimit         = 15 * time.Second
	maxAck           = 64 << 10
	firstPause       = time.Second
	longestPause     = 5 * time.Minute
	steadyListen     = 30 * time.Second // one that has lived so long has not failed
	// A server of the Go SDK takes the end of one subscription on a pipe for the
	// end of all: the one for lists is asked for again when it has done that.
	renewPause = 500 * time.Millisecond
)

var (
	errRenew   = errors.New("the subscription is renewed")
	errRefused = errors.New("the server did not agree to announce changes of that")
)

// listen is one subscriptions/listen of the newer era, which is made again when
// it breaks.
type listen struct {
	uri    string // of a resource; empty: for changes of lists
	cancel context.CancelFunc
	agreed chan struct{} // closed when the server has agreed for the first time
	over   chan struct{} // closed when nothing more is tried
	err    error         // why; set before over is closed

	// Guarded by the session's mutex.
	id    int64 // of the request that is on its way
	times int   // how often the server has agreed
	again context.CancelCauseFunc
}

// Subscribe asks for announcements of a resource's changes. In the newer era it
// returns when the server has agreed.
func (s *Session) Subscribe(ctx context.Context, uri string) error {
	if !s.stateless() {
		_, err := s.Call(ctx, Request{Method: "resources/subscribe", Params: rawjson.Object{"uri": rawjson.Quote(uri)}})
		return err
	}
	if uri == "" {
		return errors.New("a subscription needs the URI of a resource")
	}
	l, err := s.listen(uri)
	if err != nil {
		return err
	}
	select {
	case <-l.agreed:
		return nil
	case <-l.over:
		err = l.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(ackLimit):
		err = fmt.Errorf("%w: the subscription was not acknowledged within %s", ErrTimeout, ackLimit)
	}
	s.drop(l)
	return err
}

// Unsubscribe ends a subscription. In the newer era one that is not there is
// ended already.
func (s *Session) Unsubscribe(ctx context.Context, uri string) error {
	if !s.stateless() {
		_, err := s.Call(ctx, Request{Method: "resources/unsubscribe", Params: rawjson.Object{"uri": rawjson.Quote(uri)}})
		return err
	}
	s.mu.Lock()
	l := s.listens[uri]
	s.mu.Unlock()
	if uri != "" && l != nil {
		s.drop(l)
	}
	return nil
}

// drop ends a subscription.
func (s *Session) drop(l *listen) {
	l.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listens[l.uri] == l {
		delete(s.listens, l.uri)
	}
	if lists := s.listens[""]; lists != nil && lists.again != nil && !s.pipe.traits().streams {
		lists.again(errRenew)
	}
}

// listen begins a subscription, or returns the one that is there.
func (s *Session) listen(uri string) (*listen, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	l := &listen{uri: uri, cancel: cancel, agreed: make(chan struct{}), over: make(chan struct{})}
	s.mu.Lock()
	old, many := s.listens[uri], len(s.listens) >= maxSubscriptions
	if old == nil && !many {
		s.listens[uri] = l
	}
	s.mu.Unlock()
	switch {
	case old != nil:
		cancel()
		return old, nil
	case many:
		cancel()
		return nil, fmt.Errorf("%d resources of this server are subscribed to; unsubscribe from one first",
			maxSubscriptions)
	}
	if !s.work(func(context.Context) {
		defer cancel()
		s.keepListening(ctx, l)
	}) {
		cancel()
		return nil, s.Err()
	}
	return l, nil
}

// keepListening asks for announcements until that is not wanted any more, or
// refused.
func (s *Session) keepListening(ctx context.Context, l *listen) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.listens[l.uri] == l {
			delete(s.listens, l.uri)
		}
		close(l.over)
	}()
	pause := firstPause
	for {
		began := time.Now()
		err := s.listenOnce(ctx, l)
		switch {
		case ctx.Err() != nil:
			l.err = context.Cause(ctx)
			return
		case errors.Is(err, errRenew):
			pause = renewPause
		case hopeless(err):
			l.err = err
			s.log.Debug("mcpclient: changes will not be announced", "uri", clip(l.uri, 200), "error", err)
			return
		case time.Since(began) > steadyListen:
			pause = firstPause
		}
		if sleep(ctx, pause) != nil {
			l.err = context.Cause(ctx)
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// hopeless says whether asking again would not help.
func hopeless(err error) bool {
	var said *Error
	return errors.Is(err, errRefused) || errors.As(err, &said) && (said.Code == codeUnknownMethod ||
		said.Code == codeInvalidParams || said.Code == codeInvalidRequest)
}

// listenOnce is one request, which stays open while the server announces.
func (s *Session) listenOnce(ctx context.Context, l *listen) error {
	ctx, again := context.WithCancelCause(ctx)
	defer again(nil)
	want := map[string]any{}
	if l.uri != "" {
		want["resourceSubscriptions"] = []string{l.uri}
	} else {
		want["toolsListChanged"], want["promptsListChanged"], want["resourcesListChanged"] = s.can.ToolsChanged,
			s.can.PromptsChanged, s.can.ResourcesChanged
	}
	b, err := rawjson.Encode(want)
	if err != nil {
		return err
	}
	_, err = s.Call(ctx, Request{Method: "subscriptions/listen", Params: rawjson.Object{"notifications": b}, endless: true,
		begun: func(id int64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			l.id, l.again = id, again
		}})
	s.mu.Lock()
	defer s.mu.Unlock()
	l.id, l.again = 0, nil
	if why := context.Cause(ctx); why != nil {
		return why // also when the server has answered meanwhile
	}
	return err
}

// acknowledged notes that the server has agreed to a subscription. What was
// announced while there was none may have been missed.
func (s *Session) acknowledged(params json.RawMessage) {
	var p struct {
		Meta struct {
			ID json.RawMessage `json:"io.modelcontextprotocol/subscriptionId"`
		} `json:"_meta"`
		Notifications struct {
			ToolsListChanged      bool     `json:"toolsListChanged"`
			PromptsListChanged    bool     `json:"promptsListChanged"`
			ResourcesListChanged  bool     `json:"resourcesListChanged"`
			ResourceSubscriptions []string `json:"resourceSubscriptions"`
		} `json:"notifications"`
	}
	if len(params) > maxAck || json.Unmarshal(params, &p) != nil {
		return
	}
	id, ok := ours(p.Meta.ID)
	if !ok {
		return
	}
	n := p.Notifications
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listens {
		if l.id != id {
			continue
		}
		if yes := n.ToolsListChanged || n.PromptsListChanged || n.ResourcesListChanged; l.uri == "" && !yes ||
			l.uri != "" && !slices.Contains(n.ResourceSubscriptions, l.uri) {
			l.again(errRefused)
			return
		}
		if l.times++; l.times == 1 {
			close(l.agreed)
			return
		}
		s.mu.Unlock()
		s.caughtUp(l.uri)
		s.mu.Lock()
		return
	}
}

// missed implements inbox.
func (s *Session) missed() { s.caughtUp("") }

// caughtUp makes up the announcements that may have been missed.
func (s *Session) caughtUp(uri string) {
	if uri != "" {
		b, _ := rawjson.Encode(map[string]string{"uri": uri}) // strings can always be written
		s.announce("notifications/resources/updated", b)
		return
	}
	for _, c := range []struct {
		can  bool
		what string
	}{{s.can.ToolsChanged, "tools"}, {s.can.PromptsChanged, "prompts"}, {s.can.ResourcesChanged, "resources"}} {
		if c.can {
			s.announce("notifications/"+c.what+"/list_changed", nil)
		}
	}
}
