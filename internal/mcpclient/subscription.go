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
	maxSubscriptions   = 256 // in the stateless protocol, where each is an open request
	acknowledgeTimeout = 15 * time.Second
	maxAcknowledgement = 64 << 10 // bytes
	firstPause         = time.Second
	longestPause       = 5 * time.Minute
	// stable is how long a subscription has to stay open for the retry pause to start over.
	stable = 30 * time.Second
	// Over stdio, servers that use the Go SDK end all subscriptions when the client ends
	// one. The subscription for lists is renewed after this pause, when the server has
	// done so.
	renewPause = 500 * time.Millisecond
)

var (
	errRenew   = errors.New("the subscription is renewed")
	errRefused = errors.New("the server did not agree to announce changes of that")
)

// subscription is a subscription of the stateless protocol: a request
// subscriptions/listen, which stays open and is sent again when it ends.
type subscription struct {
	uri    string // of a resource; "": for list_changed notifications
	cancel context.CancelFunc
	agreed chan struct{} // closed when the server acknowledged it for the first time
	over   chan struct{} // closed when the request is not sent again
	err    error         // why it ended; set before ended is closed

	// Guarded by the session's mutex.
	id    int64 // of the open request; 0: none is open
	again bool  // the server acknowledged an earlier request
	renew context.CancelCauseFunc
}

// Subscribe asks the server for notifications when a resource changes. In the stateless
// protocol it returns when the server has acknowledged that.
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

// Unsubscribe ends the subscription to a resource. In the stateless protocol it does
// nothing when there is no such subscription.
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

// drop cancels a subscription.
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

// forget removes a subscription from the table. The caller holds mu.
func (s *Session) forget(l *subscription) {
	if s.subscriptions[l.uri] == l {
		delete(s.subscriptions, l.uri)
	}
}

// subscribe starts a subscription, or returns the existing one.
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

// keepSubscribed sends the request of a subscription again and again, whenever it ends,
// until the subscription is cancelled or the server refuses it. It returns why it stopped.
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

// isRefusal reports whether an error means that the server does not offer the subscription.
func isRefusal(err error) bool {
	said, ok := errors.AsType[*transport.Error](err)
	return errors.Is(err, errRefused) || ok && (said.Code == transport.CodeUnknownMethod ||
		said.Code == transport.CodeInvalidParams || said.Code == transport.CodeInvalidRequest)
}

// listen sends one subscriptions/listen, and returns when that request has ended.
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
		return cause // even if the server ended the request at the same time
	}
	return err
}

// acknowledged handles the notification that the server has accepted a subscription. If
// it is not the first one, notifications since the request before may have been lost.
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

// repeatChanges calls the handler with notifications that may have been lost: that the
// resource has changed or, without a URI, that all lists have.
func (s *Session) repeatChanges(uri string) {
	if uri != "" {
		b, _ := rawjson.Encode(map[string]string{"uri": uri}) // strings always encode
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
