package gateway

import (
	"context"
	"net/http"

	"sandlot/internal/gateway/rpc"
)

// EndStreams ends the requests whose clients only wait for notifications, now and from now on, and each client of Serve
// when its calls are answered. It is called when the server stops: they have no end of their own, and nothing is lost
// with them.
func (g *Gateway) EndStreams() { g.endStreams() }

// bindStanding makes a request that only waits for notifications end with EndStreams: the standing stream of the
// stateful protocol, and a subscription of the stateless one.
func (g *Gateway) bindStanding(r *http.Request, m rpc.Message) (_ *http.Request, release func()) {
	if r.Method != http.MethodGet && m.Method != "subscriptions/listen" {
		return r, func() {}
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(g.streams, cancel)
	return r.WithContext(ctx), func() {
		stop()
		cancel()
	}
}
