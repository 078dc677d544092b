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
	minRetryPause      = time.Second
	maxRetryPause      = 5 * time.Minute
	// stableAfter is how long a subscription has to stay open for the retry pause to start over.
	stableAfter = 30 * time.Second
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
	uri          string // of a resource; "": for list_changed notifications
	cancel       context.CancelFunc
	acknowledged chan struct{} // closed when the server acknowledged it for the first time
	ended        chan struct{} // closed when the request is not sent again
	err          error         // why it ended; set before ended is closed

	// Guarded by the session's mutex.
	requestID          int64 // of the open request; 0: none is open
	acknowledgedBefore bool  // the server acknowledged an earlier request
	renew              context.CancelCauseFunc
}

// Subscribe asks the server for notifications when a resource changes. In the stateless
// protocol it returns when the server has acknowledged that.
func (s *Session) Subscribe(ctx context.Context, uri string) error {
	if !s.Stateless() {
		return s.callWithString(ctx, "resources/subscribe", "uri", uri)
	}
	if uri == "" {
		return errors.New("a subscription needs the URI of a resource")
	}
	sub, err := s.subscribe(uri)
	if err != nil {
		return err
	}
	select {
	case <-sub.acknowledged:
		return nil
	case <-sub.ended:
		err = sub.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(acknowledgeTimeout):
		err = fmt.Errorf("%w: the subscription was not acknowledged within %s", transport.ErrTimeout,
			acknowledgeTimeout)
	}
	s.cancelSubscription(sub)
	return err
}

// Unsubscribe ends the subscription to a resource. In the stateless protocol it does
// nothing when there is no such subscription.
func (s *Session) Unsubscribe(ctx context.Context, uri string) error {
	if !s.Stateless() {
		return s.callWithString(ctx, "resources/unsubscribe", "uri", uri)
	}
	s.mu.Lock()
	sub := s.subscriptions[uri]
	s.mu.Unlock()
	if uri != "" && sub != nil {
		s.cancelSubscription(sub)
	}
	return nil
}

// cancelSubscription cancels a subscription.
func (s *Session) cancelSubscription(sub *subscription) {
	sub.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeSubscription(sub)
	lists := s.subscriptions[""]
	if lists != nil && lists.renew != nil && !s.transport.Traits().StreamPerRequest {
		lists.renew(errRenew)
	}
}

// removeSubscription removes a subscription from the table. The caller holds mu.
func (s *Session) removeSubscription(sub *subscription) {
	if s.subscriptions[sub.uri] == sub {
		delete(s.subscriptions, sub.uri)
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
	sub := &subscription{uri: uri, cancel: cancel, acknowledged: make(chan struct{}), ended: make(chan struct{})}
	s.subscriptions[uri] = sub
	s.goroutines.Go(func() {
		defer cancel()
		sub.err = s.keepSubscribed(ctx, sub)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.removeSubscription(sub)
		close(sub.ended)
	})
	return sub, nil
}

// keepSubscribed sends the request of a subscription again and again, whenever it ends,
// until the subscription is cancelled or the server refuses it. It returns why it stopped.
func (s *Session) keepSubscribed(ctx context.Context, sub *subscription) error {
	pause := minRetryPause
	for {
		began := time.Now()
		err := s.listenOnce(ctx, sub)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errRenew):
			pause = renewPause
		case isRefusal(err):
			s.options.Log.Debug("mcpclient: changes will not be announced", "uri", transport.Clip(sub.uri, 200),
				"error", err)
			return err
		case time.Since(began) > stableAfter:
			pause = minRetryPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause = min(2*pause, maxRetryPause)
	}
}

// isRefusal reports whether an error means that the server does not offer the subscription.
func isRefusal(err error) bool {
	rpcErr, ok := errors.AsType[*transport.Error](err)
	return errors.Is(err, errRefused) || ok && (rpcErr.Code == transport.CodeUnknownMethod ||
		rpcErr.Code == transport.CodeInvalidParams || rpcErr.Code == transport.CodeInvalidRequest)
}

// listenOnce sends one subscriptions/listen, and returns when that request has ended.
func (s *Session) listenOnce(ctx context.Context, sub *subscription) error {
	ctx, renew := context.WithCancelCause(ctx)
	defer renew(nil)
	capabilities := s.server.capabilities
	wanted := map[string]any{"toolsListChanged": capabilities.ToolsListChanged,
		"promptsListChanged":   capabilities.PromptsListChanged,
		"resourcesListChanged": capabilities.ResourcesListChanged}
	if sub.uri != "" {
		wanted = map[string]any{"resourceSubscriptions": []string{sub.uri}}
	}
	b, err := rawjson.Encode(wanted)
	if err != nil {
		return err
	}
	params := rawjson.Object{"notifications": b}
	_, err = s.Call(ctx, Request{Method: "subscriptions/listen", Params: params, stayOpen: true,
		beforeSend: func(id int64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			sub.requestID, sub.renew = id, renew
		}})
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.requestID, sub.renew = 0, nil
	if cause := context.Cause(ctx); cause != nil {
		return cause // even if the server ended the request at the same time
	}
	return err
}

// handleAcknowledged handles the notification that the server has accepted a subscription. If
// it is not the first one, notifications since the request before may have been lost.
func (s *Session) handleAcknowledged(params json.RawMessage) {
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
	id, ok := transport.ParseRequestID(p.Meta.ID)
	if !ok {
		return
	}
	n := p.Notifications
	lists := n.ToolsListChanged || n.PromptsListChanged || n.ResourcesListChanged
	repeated, uri := false, ""
	s.mu.Lock()
	for _, sub := range s.subscriptions {
		if sub.requestID != id {
			continue
		}
		uri = sub.uri
		switch {
		case uri == "" && !lists, uri != "" && !slices.Contains(n.ResourceSubscriptions, uri):
			sub.renew(errRefused)
		case !sub.acknowledgedBefore:
			sub.acknowledgedBefore = true
			close(sub.acknowledged)
		default:
			repeated = true
		}
		break
	}
	s.mu.Unlock()
	if repeated {
		s.repeatNotifications(uri)
	}
}

// repeatNotifications calls the handler with notifications that may have been lost: that the
// resource has changed or, without a URI, that all lists have.
func (s *Session) repeatNotifications(uri string) {
	if uri != "" {
		b, _ := rawjson.Encode(map[string]string{"uri": uri}) // strings always encode
		s.callNotificationHandler("notifications/resources/updated", b)
		return
	}
	capabilities := s.server.capabilities
	for _, c := range []struct {
		declared bool
		list     string
	}{{capabilities.ToolsListChanged, "tools"}, {capabilities.PromptsListChanged, "prompts"},
		{capabilities.ResourcesListChanged, "resources"}} {
		if c.declared {
			s.callNotificationHandler("notifications/"+c.list+"/list_changed", nil)
		}
	}
}
