package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sandlot/internal/mcpclient/transport"
	"sandlot/internal/rawjson"
)

const (
	maxSubscriptions   = 256 // in the stateless protocol, where each is a request that stays open
	acknowledgeTimeout = 15 * time.Second
	maxAcknowledgement = 64 << 10 // bytes
	firstPause         = time.Second
	longestPause       = 5 * time.Minute
	// stable is how long a subscription has to last not to count as one that failed.
	stable = 30 * time.Second
	// A server of the Go SDK takes the end of one subscription over stdio for the end of
	// all: the one for lists is renewed when the server has had time to do that.
	renewPause = 500 * time.Millisecond
)

var (
	errRenew   = errors.New("the subscription is renewed")
	errRefused = errors.New("the server did not agree to announce changes of that")
)

// subscription is one subscriptions/listen of the stateless protocol, which is sent
// again when it ends.
type subscription struct {
	uri    string // of a resource; "": for changes of lists
	cancel context.CancelFunc
	agreed chan struct{} // closed when the server has agreed for the first time
	over   chan struct{} // closed when it is not sent again
	err    error         // why; set before over is closed

	// Guarded by the session's mutex.
	id    int64 // of the request that is on its way
	again bool  // the server has agreed before
	renew context.CancelCauseFunc
}

// Subscribe asks for notifications of a resource's changes. In the stateless protocol it
// returns when the server has agreed.
func (s *Session) Subscribe(ctx context.Context, uri string) error {
	if !s.Stateless() {
		return s.send(ctx, "resources/subscribe", "uri", uri)
	}
	if uri == "" {
		return errors.New("a subscription needs the URI of a resource")
	}
	l, err := s.subscribe(uri)
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
	case <-time.After(acknowledgeTimeout):
		err = fmt.Errorf("%w: the subscription was not acknowledged within %s", transport.ErrTimeout,
			acknowledgeTimeout)
	}
	s.drop(l)
	return err
}

// Unsubscribe ends a subscription. In the stateless protocol it does nothing when there
// is none.
func (s *Session) Unsubscribe(ctx context.Context, uri string) error {
	if !s.Stateless() {
		return s.send(ctx, "resources/unsubscribe", "uri", uri)
	}
	s.mu.Lock()
	l := s.subscriptions[uri]
	s.mu.Unlock()
	if uri != "" && l != nil {
		s.drop(l)
	}
	return nil
}

// drop ends a subscription.
func (s *Session) drop(l *subscription) {
	l.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(l)
	lists := s.subscriptions[""]
	if lists != nil && lists.renew != nil && !s.transport.Traits().Streams {
		lists.renew(errRenew)
	}
}

// forget removes a subscription from the table. The lock is held.
func (s *Session) forget(l *subscription) {
	if s.subscriptions[l.uri] == l {
		delete(s.subscriptions, l.uri)
	}
}

// subscribe begins a subscription, or returns the one that there is.
func (s *Session) subscribe(uri string) (*subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.subscriptions[uri]; old != nil {
		return old, nil
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(s.subscriptions) >= maxSubscriptions {
		return nil, fmt.Errorf("%d resources of this server are subscribed to; unsubscribe from one first",
			maxSubscriptions)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	l := &subscription{uri: uri, cancel: cancel, agreed: make(chan struct{}), over: make(chan struct{})}
	s.subscriptions[uri] = l
	s.running.Go(func() {
		defer cancel()
		l.err = s.keepSubscribed(ctx, l)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(l)
		close(l.over)
	})
	return l, nil
}

// keepSubscribed sends the request of a subscription, and sends it again when it ends,
// until that is cancelled or refused. It returns why it stopped.
func (s *Session) keepSubscribed(ctx context.Context, l *subscription) error {
	pause := firstPause
	for {
		began := time.Now()
		err := s.listen(ctx, l)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errRenew):
			pause = renewPause
		case isRefusal(err):
			s.options.Log.Debug("mcpclient: changes will not be announced", "uri", transport.Clip(l.uri, 200),
				"error", err)
			return err
		case time.Since(began) > stable:
			pause = firstPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, longestPause)
	}
}

// isRefusal reports whether an error says that the server will not agree.
func isRefusal(err error) bool {
	said, ok := errors.AsType[*transport.Error](err)
	return errors.Is(err, errRefused) || ok && (said.Code == transport.CodeUnknownMethod ||
		said.Code == transport.CodeInvalidParams || said.Code == transport.CodeInvalidRequest)
}

// listen is one request of a subscription, which stays open while the server sends
// notifications.
func (s *Session) listen(ctx context.Context, l *subscription) error {
	ctx, renew := context.WithCancelCause(ctx)
	defer renew(nil)
	can := s.server.capabilities
	wanted := map[string]any{"toolsListChanged": can.ToolsChanged, "promptsListChanged": can.PromptsChanged,
		"resourcesListChanged": can.ResourcesChanged}
	if l.uri != "" {
		wanted = map[string]any{"resourceSubscriptions": []string{l.uri}}
	}
	b, err := rawjson.Encode(wanted)
	if err != nil {
		return err
	}
	params := rawjson.Object{"notifications": b}
	_, err = s.Call(ctx, Request{Method: "subscriptions/listen", Params: params, endless: true,
		begun: func(id int64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			l.id, l.renew = id, renew
		}})
	s.mu.Lock()
	defer s.mu.Unlock()
	l.id, l.renew = 0, nil
	if cause := context.Cause(ctx); cause != nil {
		return cause // also when the server has answered meanwhile
	}
	return err
}

// acknowledged handles the notification that the server has agreed to a subscription.
// Notifications between two requests of it may have been lost.
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
	if len(params) > maxAcknowledgement || json.Unmarshal(params, &p) != nil {
		return
	}
	id, ok := transport.RequestID(p.Meta.ID)
	if !ok {
		return
	}
	n := p.Notifications
	lists := n.ToolsListChanged || n.PromptsListChanged || n.ResourcesListChanged
	repeated, uri := false, ""
	s.mu.Lock()
	for _, l := range s.subscriptions {
		if l.id != id {
			continue
		}
		uri = l.uri
		switch {
		case uri == "" && !lists, uri != "" && !slices.Contains(n.ResourceSubscriptions, uri):
			l.renew(errRefused)
		case !l.again:
			l.again = true
			close(l.agreed)
		default:
			repeated = true
		}
		break
	}
	s.mu.Unlock()
	if repeated {
		s.repeatChanges(uri)
	}
}

// repeatChanges calls the handler for changes of which the notifications may have been
// lost: of a resource or, without a URI, of all lists.
func (s *Session) repeatChanges(uri string) {
	if uri != "" {
		b, _ := rawjson.Encode(map[string]string{"uri": uri}) // texts can always be written
		s.handleNotification("notifications/resources/updated", b)
		return
	}
	can := s.server.capabilities
	for _, c := range []struct {
		declared bool
		list     string
	}{{can.ToolsChanged, "tools"}, {can.PromptsChanged, "prompts"}, {can.ResourcesChanged, "resources"}} {
		if c.declared {
			s.handleNotification("notifications/"+c.list+"/list_changed", nil)
		}
	}
}
